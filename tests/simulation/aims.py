"""Faults aimed at two moments of transactions that chance seldom comes to; in aimed seeds.

A marker that a coordinator has sent arrives when another has taken its place and written its own.
And the coordinator's answer to a partition's leader, that a transaction is open, arrives when the
transaction is over.
"""

from typing import Any

from headrace_broker.metadata.entities import TRANSACTION_STATE_TOPIC
from headrace_broker.server.transactions.verifier import Verifier
from simulation.cluster import Cluster, Node
from simulation.faults import Faults
from simulation.history import History
from simulation.loop import CURRENT
from simulation.observing import observer
from simulation.workloads.workload import is_aimed

_MARKERS_MAX = 5
_ANSWERS_MAX = 8


class Aims:
    """Strikes at most a few times in a seed that has transactions."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._rng = rng = cluster.fork("aimed")
        profile = cluster.profile
        takes_part = (
            is_aimed(cluster.seed) and len(profile.brokers) > 1 and "transactions" in profile.works
        )
        self._markers_left = _MARKERS_MAX if takes_part and rng.random() < 0.5 else 0
        self._answers_left = _ANSWERS_MAX if takes_part and rng.random() < 0.5 else 0

    def happened(self, step: str) -> None:
        """Hold back the markers that a coordinator is about to send, and replace its process."""
        if step != "markers are sent" or not self._markers_left or self._rng.random() < 0.5:
            return
        process = CURRENT.get()
        for node in self._cluster.nodes:
            if process is not None and node.process is process and not self._faults.is_over:
                self._markers_left -= 1
                self._later(0.0, self._hold_back_and_end, node, process)

    def _hold_back_and_end(self, node: Node, process: Any) -> None:
        if self._faults.is_over or node.process is not process:
            return
        rng, seconds = self._rng, self._rng.choice((1.0, 2.0, 3.0))
        self._cluster.say(f"{node} sends markers; they are stuck for {seconds} s")
        self._cluster.network.stall(node.host, seconds)
        # The requests are written by then.
        end = rng.choice((0.0005, 0.003))
        self._later(end, self._end, node, process)
        self._later(end + rng.choice((0.05, 0.2)), node.start)

    def _end(self, node: Node, process: Any) -> None:
        if not self._faults.is_over and node.process is process:
            node.kill()

    def asked(self, leader: int, coordinator: int) -> None:
        """Hold back what a coordinator answers a partition's leader."""
        if not self._answers_left or self._faults.is_over or self._rng.random() < 0.5:
            return
        nodes, seconds = self._cluster.nodes, self._rng.choice((1.0, 1.5, 2.5))
        asker, asked = nodes[leader - 1], nodes[coordinator - 1]
        if self._cluster.network.stall_answers(asked.host, asker.host, seconds):
            self._answers_left -= 1
            self._cluster.say(f"{asked}'s answers to {asker} are stuck for {seconds} s")

    def _later(self, delay: float, action: Any, *arguments: Any) -> None:
        loop = self._cluster.loop
        loop.call_in(loop.kernel, delay, action, *arguments)


@observer(Verifier, "_question")
def _question(
    history: History, original: Any, verifier: Verifier, name: str, *arguments: Any
) -> Any:
    index = verifier._coordinator.partition_for(name)
    state = verifier._image().partition(TRANSACTION_STATE_TOPIC, index)
    if state is not None and state.leader not in (-1, verifier._node_id):
        history.on_question(int(verifier._node_id), int(state.leader))
    return original(verifier, name, *arguments)
