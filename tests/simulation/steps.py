"""Ends aimed at the steps of a transaction's coordinator, and ids near their last epoch.

Each append to `__transaction_state`, its commit, and each marker is a step after which the process
that took it ends, or its machine loses power, before the next. From the first seed that may draw
it on; the seeds before stay what they were.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace_broker.coordinator.transactions import init_producer
from headrace_broker.coordinator.transactions.transaction import LAST_EPOCH, Transaction
from headrace_broker.server.transactions.marker_sender import MarkerSender
from headrace_broker.server.transactions.shard_driver import ShardDriver
from simulation.cluster import Cluster
from simulation.faults import Faults
from simulation.history import History
from simulation.loop import CURRENT
from simulation.observing import observer

SINCE = 4000
_STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
STEPS = (
    *(f"{state} is appended" for state in _STATES),
    *(f"{state} is committed" for state in _STATES),
    "markers are sent",
    "a marker is written",
)
STEP_MARKS: dict[str, int] = {
    **{f"a coordinator ends where {step}": 3 for step in STEPS},
    "a producer goes on with another id: its epochs are exhausted": 10,
}
_ENDS_MAX = 4
_EPOCHS_LEFT_MAX = 6


class Steps:
    """Draws which step is next, and ends who takes it."""

    def __init__(self, cluster: Cluster, faults: Faults, history: History) -> None:
        self._cluster = cluster
        self._faults = faults
        self._history = history
        self._rng = rng = cluster.fork("steps")
        takes_part = cluster.seed >= SINCE and "transactions" in cluster.profile.works
        self._left = _ENDS_MAX if takes_part and rng.random() < 0.5 else 0
        self._wanted = rng.choice(STEPS)
        self.exhausts = takes_part and rng.random() < 0.4

    def happened(self, step: str) -> None:
        """End the process that has just come to a step, or let it pass."""
        if self._left == 0 or step != self._wanted or self._rng.random() < 0.5:
            return
        process = CURRENT.get()
        for node in self._cluster.nodes:
            if node.process is process and process is not None and not self._faults.is_over:
                self._left -= 1
                self._wanted = self._rng.choice(STEPS)
                self._cluster.loop.call_in(
                    self._cluster.loop.kernel, 0.0, self._end, node, process, step
                )

    def _end(self, node: Any, process: Any, step: str) -> None:
        if self._faults.is_over or node.process is not process:
            return
        self._cluster.say(f"{node} ends where {step}")
        self._faults.end_at(node, self._rng)
        if node.process is not process:
            self._history.reach(f"a coordinator ends where {step}")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Give new transactional ids few epochs, in the seeds that draw it."""
        original = init_producer._newcomer
        rng = self._cluster.fork("epochs")

        def newcomer(*arguments: Any) -> Transaction:
            epoch = type(LAST_EPOCH)(LAST_EPOCH - rng.randint(0, _EPOCHS_LEFT_MAX))
            return replace(original(*arguments), epoch=epoch)

        if self.exhausts:
            init_producer._newcomer = newcomer  # type: ignore[assignment]  # more arguments fit
        try:
            yield
        finally:
            init_producer._newcomer = original


@observer(ShardDriver, "_append")
def _append(history: History, original: Any, driver: Any, record: Any, *rest: Any) -> None:
    original(driver, record, *rest)
    if record.transaction is not None:
        history.on_step(f"{record.transaction.status.label} is appended")


@observer(ShardDriver, "_settle")
def _settle(
    history: History, original: Any, driver: Any, record: Any, settled: Any, error: Any
) -> None:
    if error is None and record.transaction is not None:
        history.on_step(f"{record.transaction.status.label} is committed")
    original(driver, record, settled, error)


@observer(MarkerSender, "send")
def _send(history: History, original: Any, *arguments: Any) -> None:
    original(*arguments)
    history.on_step("markers are sent")


@observer(ShardDriver, "note_marked")
def _note_marked(history: History, original: Any, *arguments: Any) -> None:
    history.on_step("a marker is written")
    original(*arguments)


@observer(Transaction, "rotate")
def _rotate(history: History, original: Any, *arguments: Any, **named: Any) -> Any:
    history.reach("a producer goes on with another id: its epochs are exhausted")
    return original(*arguments, **named)


@observer(Transaction, "prepare")
def _prepare(history: History, original: Any, *arguments: Any, **named: Any) -> Any:
    if named.get("next_producer_id", -1) >= 0:
        history.reach("a producer goes on with another id: its epochs are exhausted")
    return original(*arguments, **named)
