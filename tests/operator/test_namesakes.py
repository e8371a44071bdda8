"""A Cluster that is made again by the same name is another one: the former is forgotten."""

import asyncio
from typing import Any

import pytest

from headrace_operator.kubernetes.reconcile import ClusterReconciler, Surroundings
from headrace_operator.kubernetes.register import Register
from headrace_operator.plan import Observed
from headrace_operator.resources import Cluster
from support.operator_resources import CONFIG, make, observed

KEY = ("default", "c")


def cluster(uid: str) -> Cluster:
    spec = {"pools": [{"name": "a"}], "config": CONFIG}
    return make("Cluster", "c", spec, metadata={"uid": uid})  # type: ignore[no-any-return]  # make returns any kind


class Around:
    """A backend, its connections and all else: it answers, and notes what it is asked."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.servers = "broker:9092"

    async def effective(self, found: Cluster) -> tuple[Cluster, tuple[()]]:
        return found, ()

    def bootstrap_servers(self, _: Cluster) -> str:
        return self.servers

    def forget(self, what: Any) -> Any:
        if isinstance(what, Cluster):
            self.notes.append(f"forget {what.metadata.uid}")
            return None
        self.notes.append("disconnect")
        return asyncio.sleep(0)

    async def of(self, *_: Any) -> "Around":
        return self

    async def advertised(self, _: Any) -> dict[int, dict[str, str]]:
        return {}

    async def observe(self, found: Any, **rest: Any) -> Any:
        if isinstance(found, Cluster):
            return observed()
        if not rest:
            return {}
        self.notes.append("ask everything")
        return observed()

    async def observe_health(self, _: Observed) -> Observed:
        self.notes.append("ask health")
        return observed()

    async def observe_some(self, _: Any, known: Observed, **__: Any) -> Observed:
        return known

    async def perform(self, *_: Any) -> tuple[()]:
        return ()

    async def write(self, *_: Any, **__: Any) -> frozenset[Any]:
        return frozenset()

    async def selected(self, _: Cluster) -> frozenset[str]:
        return frozenset()


@pytest.mark.parametrize("is_again", [True, False])
def test_what_brokers_of_a_former_cluster_said_is_not_taken_for_the_new_ones(
    *, is_again: bool
) -> None:
    around = Around()
    present = [cluster("first")]
    surroundings: Any = Surroundings(
        register=Register(),
        clusters=lambda _: present[0],
        backend=around,  # type: ignore[arg-type]  # what is asked of it
        admins=around,  # type: ignore[arg-type]  # as above
        statuses=around,  # type: ignore[arg-type]  # as above
        workloads=around,  # type: ignore[arg-type]  # as above
        namespaces=around,  # type: ignore[arg-type]  # as above
        on_action=lambda *_: None,
    )

    async def run() -> None:
        reconciler = ClusterReconciler(surroundings)
        await reconciler.reconcile(KEY)
        assert around.notes == ["ask everything"]
        if is_again:
            # Before it has brokers it cannot be asked.
            present[0], around.servers = cluster("second"), ""
            await reconciler.reconcile(KEY)
            assert around.notes[1:] == ["forget first", "disconnect"]
        around.servers = "broker:9092"
        reconciler.mark(KEY, health=True)
        await reconciler.reconcile(KEY)
        assert around.notes[-1] == ("ask everything" if is_again else "ask health")

    asyncio.run(run())
