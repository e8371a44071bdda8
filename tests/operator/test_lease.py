"""Who holds the lease, and from when on nobody else writes."""

import asyncio
from typing import Any

import pytest

from headrace_operator.kubernetes.api.client import FencedError, KubernetesError
from headrace_operator.kubernetes.api.lease import LEASE_SECONDS, MARGIN_SECONDS, Election


class Leases:
    """One Lease in an API server, with its versions."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self._version = 0

    async def get(self, *_: Any) -> Any:
        return None if self.lease is None else {**self.lease, "spec": dict(self.lease["spec"])}

    async def create(self, body: Any) -> Any:
        if self.lease is not None:
            raise KubernetesError(409, "AlreadyExists", "it is there")
        return self._stored(body)

    async def replace(self, body: Any) -> Any:
        if self.lease is None:
            raise KubernetesError(404, "NotFound", "it is gone")
        if self.lease["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise KubernetesError(409, "Conflict", "it has changed")
        return self._stored(body)

    def _stored(self, body: Any) -> Any:
        self._version += 1
        version = {"resourceVersion": str(self._version)}
        self.lease = {**body, "metadata": body["metadata"] | version}
        return self.lease


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def candidates(leases: Leases, clock: Clock) -> tuple[Any, Any]:
    client: Any = leases
    first, second = (
        Election(client, namespace="n", name="l", identity=name, clock=clock) for name in "ab"
    )
    return first, second


def test_one_of_two_holds_it_and_the_other_after_its_time() -> None:
    async def run() -> None:
        clock = Clock()
        first, second = candidates(Leases(), clock)
        await first._round()
        await second._round()
        assert (first.is_leader, second.is_leader) == (True, False)
        clock.now += LEASE_SECONDS - MARGIN_SECONDS
        with pytest.raises(FencedError):
            first.check()
        await second._round()
        assert not second.is_leader, "the holder may be late"
        clock.now += LEASE_SECONDS
        await second._round()
        await first._round()
        assert (first.is_leader, second.is_leader) == (False, True)

    asyncio.run(run())


def test_a_holder_whose_lease_somebody_deleted_stops_when_it_sees_another() -> None:
    async def run() -> None:
        clock, leases = Clock(), Leases()
        first, second = candidates(leases, clock)
        await first._round()
        leases.lease = None
        clock.now += 1
        await second._round()
        assert second.is_leader
        await first._round()
        with pytest.raises(FencedError):
            first.check()

    asyncio.run(run())
