"""Which namespaces another operator's Lease keeps, and for how long."""

import asyncio
from typing import Any

import pytest

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.neighbours import GRACE_SECONDS, LOOK_SECONDS, Neighbours
from headrace_operator.kubernetes.neighbours import lease_metadata as told

OWN = ("headrace-system", "headrace-operator")


class World:
    """Leases as the API server lists them, and a clock."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str], dict[str, Any]] = {}
        self.now = 1000.0
        self.changes = 0
        self.refusal: KubernetesError | None = None
        self.neighbours = Neighbours(self, OWN, lambda: self.now, self._changed)  # type: ignore[arg-type]  # it only lists
        self._version = 0

    def _changed(self) -> None:
        self.changes += 1

    async def list(self, *_: Any) -> list[dict[str, Any]]:
        if self.refusal is not None:
            raise self.refusal
        return list(self.leases.values())

    def renew(
        self, where: tuple[str, str], *served: str, created: str = "b", holder: str = "x"
    ) -> None:
        self._version += 1
        namespace, name = where
        metadata = {
            "namespace": namespace,
            "name": name,
            "uid": f"{namespace}/{name}",
            "creationTimestamp": created,
            "resourceVersion": str(self._version),
            **told(served),
        }
        self.leases[where] = {"metadata": metadata, "spec": {"holderIdentity": holder}}

    def pass_by(self, seconds: float, *renewed: tuple[str, str]) -> None:
        """Let time go by in which these are renewed, and look as often as the operator does."""
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK_SECONDS
            for where in renewed:
                metadata = self.leases[where]["metadata"]
                self._version += 1
                metadata["resourceVersion"] = str(self._version)
            self.look()

    def look(self) -> None:
        asyncio.run(self.neighbours.look())

    def serves(self, namespace: str) -> bool:
        return self.neighbours.serves(namespace)


@pytest.fixture
def world() -> World:
    found = World()
    found.renew(OWN, created="a")
    return found


NARROW = ("streams", "headrace-operator")


def test_what_another_one_serves_is_left_to_it_and_all_else_is_not(world: World) -> None:
    world.renew(NARROW, "streams", "more")
    world.look()
    assert [world.serves(name) for name in ("streams", "more", "others")] == [False, False, True]
    assert world.changes == 1
    world.pass_by(300, NARROW, OWN)
    assert not world.serves("streams")
    assert world.changes == 1


def test_a_restart_is_waited_for_and_an_end_is_not_for_ever(world: World) -> None:
    world.renew(NARROW, "streams")
    world.look()
    world.renew(NARROW, "streams", holder="")
    world.pass_by(GRACE_SECONDS - LOOK_SECONDS)
    assert not world.serves("streams")
    world.pass_by(2 * LOOK_SECONDS)
    assert world.serves("streams")
    assert world.changes == 2


def test_a_lease_that_is_renewed_no_more_is_held_no_more(world: World) -> None:
    world.renew(NARROW, "streams")
    world.look()
    world.pass_by(GRACE_SECONDS + 30)
    assert world.serves("streams")


def test_a_namespace_that_goes_with_its_lease_is_free(world: World) -> None:
    world.renew(NARROW, "streams")
    world.look()
    del world.leases[NARROW]
    world.pass_by(GRACE_SECONDS + 2 * LOOK_SECONDS)
    assert world.serves("streams")


def test_one_that_was_given_up_before_keeps_nothing(world: World) -> None:
    world.renew(NARROW, "streams", holder="")
    world.look()
    assert world.serves("streams")


def test_while_nobody_answers_everybody_stays_as_known(world: World) -> None:
    world.renew(NARROW, "streams")
    world.look()
    world.refusal = KubernetesError(503, "ServiceUnavailable", "down")
    world.pass_by(600)
    world.refusal = None
    world.look()
    assert not world.serves("streams")
    world.pass_by(30, NARROW)
    assert not world.serves("streams")
    assert world.changes == 1


@pytest.mark.parametrize(("created", "serves"), [("a0", False), ("b0", True)])
def test_of_two_for_all_the_older_one_works(world: World, created: str, serves: bool) -> None:  # noqa: FBT001 - a table
    world.renew(OWN, created="b")
    world.renew(("elsewhere", "headrace-operator"), created=created)
    world.look()
    assert world.serves("streams") is serves
