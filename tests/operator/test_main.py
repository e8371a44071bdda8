"""The operator's loop: keys are given back, what is gone is forgotten, what fails is said."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from headrace_operator.kubernetes import main
from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.api.connection import Connection
from headrace_operator.kubernetes.main import OperatorConfig, _Operator
from headrace_operator.kubernetes.metrics import OperatorMetrics
from headrace_operator.kubernetes.queue import WorkQueue
from headrace_operator.kubernetes.reconcile import Outcome
from headrace_operator.resources import API_VERSION

NAME = ("n", "c")
KEY = ("Cluster", *NAME)


class Api:
    """Keeps the statuses and Events that are written."""

    def __init__(self) -> None:
        self.statuses: list[Any] = []
        self.events: list[tuple[str, str]] = []

    async def apply_status(self, body: Any) -> Any:
        self.statuses.append(body["status"])
        metadata = body["metadata"] | {"resourceVersion": str(10 + len(self.statuses))}
        return {**CLUSTER, "metadata": metadata | {"generation": 3}, "status": body["status"]}

    async def event(self, _: Any, *, message: str, kind: str, **__: Any) -> None:
        self.events.append((kind, message))


CLUSTER: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "Cluster",
    "metadata": {
        "namespace": NAME[0],
        "name": NAME[1],
        "uid": "u",
        "resourceVersion": "5",
        "generation": 3,
    },
    "spec": {"pools": [{"name": "a"}]},
    "status": {"clusterId": "id", "readyBrokers": 1, "pools": [{"name": "a", "nodeIds": [1]}]},
}


class Reconciler:
    """Its passes end as a test says."""

    def __init__(self, end: Any) -> None:
        self._end = end

    def is_silent(self, _: Any) -> bool:
        return True

    async def reconcile(self, _: Any) -> Outcome:
        if isinstance(self._end, Exception):
            raise self._end
        return self._end  # type: ignore[no-any-return]  # a test's own


def make(end: Any = None) -> tuple[Any, Api, OperatorMetrics]:
    api, metrics = Api(), OperatorMetrics()
    election: Any = SimpleNamespace(check=lambda: None, is_leader=True, changed=asyncio.Event())
    client: Any = api
    operator: Any = _Operator(
        OperatorConfig(), Connection(server="https://nowhere"), client, election, metrics
    )
    operator._reconciler = Reconciler(end)
    return operator, api, metrics


def test_a_pass_that_is_cancelled_before_it_began_gives_its_key_back() -> None:
    async def run() -> None:
        operator, _, _ = make()
        operator._queue.add(KEY)
        worker = asyncio.create_task(operator._work())
        await asyncio.sleep(0)
        (task,) = operator._beside
        every = [worker, task]
        for each in every:
            each.cancel()
        await asyncio.gather(*every, return_exceptions=True)
        operator._queue.add(KEY)
        assert operator._queue.depth == 1

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["Cluster", "SparkApplication"])
def test_passes_that_hang_hold_up_no_others(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As where an admission webhook hangs on what they write: ten seconds each."""
    monkeypatch.setattr(main, "PATIENCE_SECONDS", 0.01)

    async def run() -> None:
        operator, _, _ = make()
        hang, passed = asyncio.Event(), asyncio.Event()

        async def reconcile(*key: Any) -> Outcome:
            if "other" in str(key):
                passed.set()
            else:
                await hang.wait()
            return Outcome(scope="everything")

        operator._reconciler = SimpleNamespace(is_silent=lambda _: False, reconcile=reconcile)
        operator._reconcile_application = reconcile
        keys = [(kind, "n", f"hangs{number}") for number in range(2 * main.WORKERS)]
        for key in [*keys, ("Cluster", "n", "other")]:
            operator._queue.add(key)
        leading = asyncio.create_task(operator._lead())
        await asyncio.wait_for(passed.wait(), 10)
        # A key is given back when its pass is over, and not before.
        operator._queue.add(keys[0])
        assert operator._queue.depth == 0
        hang.set()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    asyncio.run(run())


def test_a_worker_ends_with_its_lease_also_where_a_key_comes_at_that_moment() -> None:
    """Else the next time that this process leads it waits for the worker, and does nothing."""

    async def run(steps: int) -> None:
        queue = WorkQueue(lambda: 0.0, random.Random(1))
        queue.add_after(("Cluster", "n", "later"), 1000)

        async def work() -> None:
            while True:
                await queue.take()

        worker = asyncio.create_task(work())
        for _ in range(5):
            await asyncio.sleep(0)
        queue.add(KEY)
        for _ in range(steps):
            await asyncio.sleep(0)
        worker.cancel()
        done, _ = await asyncio.wait([worker], timeout=2)
        assert done, steps

    for steps in range(5):
        asyncio.run(run(steps))


def test_a_worker_that_ends_is_no_secret() -> None:
    async def run() -> None:
        operator, _, _ = make()

        def fail(_: str) -> bool:
            raise ZeroDivisionError

        operator._neighbours = SimpleNamespace(serves=fail)
        operator._queue.add(KEY)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(operator._lead(), 10)

    asyncio.run(run())


@pytest.mark.parametrize(("is_gone", "due"), [(True, 0), (False, 1)])
def test_what_is_gone_is_neither_looked_at_again_nor_measured(*, is_gone: bool, due: int) -> None:
    async def run() -> None:
        operator, _, metrics = make(Outcome(scope="everything"))
        await operator._reconcile(KEY)
        assert 'name="c",namespace="n"} ' in generate_latest(metrics.registry).decode()
        operator, _, metrics = make(Outcome(scope="everything", is_gone=is_gone))
        metrics.last_success.labels(*KEY).set_to_current_time()
        await operator._reconcile(KEY)
        assert len(operator._queue._due) == due
        assert generate_latest(metrics.registry).decode().count('name="c"') == due

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "stalled", "unsaid", "words"),
    [
        (KubernetesError(500, "InternalError", "no leader"), "False", 8, "no leader"),
        (KubernetesError(400, "BadRequest", "no label"), "True", 3, "no label"),
        (TypeError("unhashable type: 'dict'"), "True", 3, "TypeError: unhashable type: 'dict'"),
    ],
)
def test_a_cluster_whose_passes_fail_again_and_again_says_why(
    error: Exception, stalled: str, unsaid: int, words: str
) -> None:
    async def run() -> None:
        operator, api, _ = make(error)
        operator._store.upsert(CLUSTER)
        for _ in range(unsaid):
            await operator._reconcile(KEY)
        assert not api.statuses
        for _ in range(3):
            await operator._reconcile(KEY)
        (status,) = api.statuses
        conditions = {each["type"]: each for each in status["conditions"]}
        assert conditions["Stalled"]["status"] == stalled
        assert conditions["Reconciling"]["status"] == ("False" if stalled == "True" else "True")
        assert conditions["Ready"]["status"] == "False"
        assert words in conditions["Ready"]["message"]
        assert {key: status[key] for key in CLUSTER["status"]} == CLUSTER["status"]
        assert ("observedGeneration" in status) is (stalled == "True")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ((kind, message),) = api.events
        assert kind == ("Warning" if stalled == "True" else "Normal")
        assert words in message

    asyncio.run(run())
