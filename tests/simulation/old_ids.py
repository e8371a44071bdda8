"""Transactional ids that are old: their producers' epochs are almost used up.

An id gets its next producer id after 32,766 epochs (KIP-360), which no run has the time for. In a
third of the seeds from `STRANGERS_SINCE` on each new id begins as one that has been used so often.
"""

from dataclasses import replace
from typing import Any

from headrace_broker.coordinator.transactions import init_producer
from headrace_broker.coordinator.transactions.transaction import LAST_EPOCH
from headrace_broker.protocol.types import ProducerEpoch
from simulation.cluster import Cluster
from simulation.history import History
from simulation.observing import observer
from simulation.workloads.workload import STRANGERS_SINCE

_LEFT = (1, 2, 5, 20)


def draw_age(cluster: Cluster, history: History) -> None:
    """Decide whether ids are old in this seed, and how many epochs each has left."""
    rng = cluster.fork("old-ids")
    if cluster.seed >= STRANGERS_SINCE and rng.random() < 1 / 3:
        history.epochs_left = lambda: rng.choice(_LEFT)


@observer(init_producer, "_newcomer")
def _newcomer(history: History, original: Any, *arguments: Any) -> Any:
    found = original(*arguments)
    left = history.epochs_left()
    if left is None:
        return found
    history.reach("a transactional id is almost used up")
    return replace(found, epoch=ProducerEpoch(LAST_EPOCH - left))
