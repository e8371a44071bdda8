"""A clock that is set, forward or back, changes nothing that is measured between two looks."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_operator.kubernetes import reconcile
from headrace_operator.kubernetes.reconcile import ClusterReconciler, Surroundings
from headrace_operator.kubernetes.register import Register
from headrace_operator.plan import Observed, ObservedGroup, ObservedTarget
from support.operator_resources import cluster, group, observed

KEY = ("default", "c")
HOUR = 3600
LAG = {"target": {"maxLagRecords": 10}, "maxReplicas": 4, "scaleDownDelay": "0s"}


class Around:
    """One group, whose lag is `lag`, read by two readers of a Deployment."""

    def __init__(self) -> None:
        self.lag = 2
        self.scaled: list[int] = []

    async def effective(self, found: Any) -> Any:
        return found, ()

    def bootstrap_servers(self, _: Any) -> str:
        return "broker:9092"

    async def of(self, *_: Any) -> "Around":
        return self

    async def observe(self, *_: Any, **rest: Any) -> Any:
        return self._seen() if rest else observed()

    async def observe_some(self, *_: Any, **__: Any) -> Any:
        return self._seen()

    def _seen(self) -> Observed:
        partitions = [("t", number) for number in range(4)]
        found = ObservedGroup(
            state="Stable",
            offsets=dict.fromkeys(partitions, 0),
            end_offsets=dict.fromkeys(partitions, self.lag),
        )
        return observed(groups={"g": found})

    async def advertised(self, _: Any) -> dict[int, dict[str, str]]:
        return {}

    async def perform(self, *_: Any) -> tuple[()]:
        return ()

    async def write(self, *_: Any, **__: Any) -> frozenset[Any]:
        return frozenset()

    async def selected(self, _: Any) -> frozenset[str]:
        return frozenset()

    async def note_pauses(self, _: Any) -> tuple[()]:
        return ()


class Targets:
    """Two readers."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def observe(self, groups: Any) -> Any:
        return {each.key: ObservedTarget(replicas=2, running=2) for each in groups}

    async def scale(self, actions: Any) -> tuple[()]:
        self._around.scaled += [each.replicas for each in actions]
        return ()


@pytest.mark.parametrize("jump", [0, -HOUR, HOUR])
def test_readers_are_added_though_the_clock_was_set(
    monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    now = SimpleNamespace(wall=1_000_000.0, steady=1_000.0)
    monkeypatch.setattr(
        reconcile,
        "time",
        SimpleNamespace(
            time=lambda: now.wall, monotonic=lambda: now.steady, process_time=lambda: 0.0
        ),
    )
    around, register = Around(), Register()
    register.upsert(group(targetRef={"kind": "Deployment", "name": "readers"}, lagPolicy=LAG))
    collaborator: Any = around
    surroundings = Surroundings(
        register=register,
        clusters=lambda _: cluster(),
        backend=collaborator,
        admins=collaborator,
        statuses=collaborator,
        workloads=Targets(around),  # type: ignore[arg-type]  # what is asked of it
        namespaces=collaborator,
        on_action=lambda *_: None,
    )

    async def run() -> None:
        reconciler = ClusterReconciler(surroundings)
        for step in range(3):
            await reconciler.reconcile(KEY)
            around.lag = 100
            now.steady += 20
            now.wall += 20 + (jump if step == 0 else 0)

    asyncio.run(run())
    assert around.scaled[:1] == [4]
