"""Faults aimed at moments that chance seldom comes to; in aimed seeds.

A marker that a coordinator has sent arrives when another has taken its place and written its own.
The coordinator's answer to a partition's leader, that a transaction is open, arrives when the
transaction is over. And a controller that was stopped finds what a leader asked it for when another
one has its place.
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
_CONTROLLERS_MAX = 3
_VOTERS_MIN = 3
_LOOK_SECONDS = 0.01
_STOPPED_SECONDS_MAX = 2.0
_HEARS_NOTHING_SECONDS = 0.3
FORMER_CONTROLLERS_SINCE = 4_000_000
"""The first seed in which a controller is stopped while it is asked."""


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


class FormerControllers:
    """Stops a controller with a leader's request in its socket, until another one is elected.

    No longer: one that hears nothing for half as long again resigns before it looks at its sockets.
    """

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._rng = rng = cluster.fork("former-controllers")
        takes_part = (
            cluster.seed >= FORMER_CONTROLLERS_SINCE
            and len(cluster.profile.voters) >= _VOTERS_MIN
            and cluster.rotting is None
        )
        self._left = _CONTROLLERS_MAX if takes_part and rng.random() < 0.5 else 0
        self._stopped: Node | None = None

    def proposed(self, leader: int) -> None:
        """Stop the controller that is about to be asked for an in-sync set."""
        if not self._left or self._stopped is not None or self._faults.is_over:
            return
        active = self._active()
        if len(active) == 1 and active[0].node_id != leader and self._rng.random() < 0.5:
            self._left -= 1
            self._stopped = active[0]
            self._cluster.say(f"{active[0]} is stopped while a leader asks it for an in-sync set")
            active[0].pause(on=True)
            # The request has arrived by then; of an election it hears nothing.
            self._later(self._rng.choice((0.003, 0.01)), self._cut_off, active[0])
            self._later(_LOOK_SECONDS, self._look, active[0], _STOPPED_SECONDS_MAX)

    def _active(self) -> list[Node]:
        nodes = self._cluster.nodes
        return [node for node in nodes if self._cluster.is_active_controller(node.node_id)]

    def _cut_off(self, node: Node) -> None:
        for other in self._cluster.nodes:
            if other is not node and not self._faults.is_over:
                self._cluster.network.hold(other.host, node.host)

    def _look(self, node: Node, seconds: float) -> None:
        """Let it go on as soon as it has a successor."""
        if seconds > 0 and self._active() == [node] and not self._faults.is_over:
            self._later(_LOOK_SECONDS, self._look, node, seconds - _LOOK_SECONDS)
            return
        node.pause(on=False)
        self._later(_HEARS_NOTHING_SECONDS, self._end)

    def _end(self) -> None:
        self._stopped = None
        self._cluster.network.let_go()

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
