"""When brokers that came back get their leaderships back: soon, but not again and again.

Plain state of the active controller, given `now_ms`. Kafka waits for its next check of the
imbalance, up to five minutes in which all leaders may sit on one broker after a restart of all. A
broker that comes back several times within that interval waits twice as long each time, so one that
crashes in a loop does not take leaderships with it each time.
"""

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.replication_rules import partitions_of
from headrace_broker.protocol.types import BrokerEpoch, NodeId


class LeaderReturns:
    """Brokers that are back, and from when on they may lead what they are preferred for."""

    def __init__(self, *, delay_ms: int, interval_ms: int) -> None:
        """`interval_ms`: how often leaders are checked anyway; nobody is watched for longer."""
        self._delay_ms = delay_ms
        self._interval_ms = interval_ms
        self._active: dict[NodeId, BrokerEpoch] = {}
        self._due_ms: dict[NodeId, int] = {}
        self._came_ms: dict[NodeId, list[int]] = {}
        self._has_begun = False

    def begin(self) -> None:
        """Forget what another controller may have dealt with: whoever is active is new to us."""
        self._active.clear()
        self._due_ms.clear()
        self._came_ms.clear()
        self._has_begun = False

    def observe(self, image: MetadataImage, now_ms: int) -> None:
        """Note who came and who went."""
        active = {broker.node_id: broker.epoch for broker in image.active_brokers()}
        for node_id in self._active.keys() - active.keys():
            self._due_ms.pop(node_id, None)
        for node_id, epoch in active.items():
            if self._active.get(node_id) != epoch:
                since_ms = now_ms - self._interval_ms
                came = [at for at in self._came_ms.get(node_id, ()) if at > since_ms]
                if self._has_begun:
                    self._came_ms[node_id] = [*came, now_ms][-32:]
                delay_ms = min(self._delay_ms << len(came), self._interval_ms)
                self._due_ms[node_id] = now_ms + delay_ms
        self._active, self._has_begun = active, True

    def due(self, image: MetadataImage, now_ms: int) -> frozenset[NodeId]:
        """Return whose leaderships may return now; who has all of them is not watched any more."""
        due = {node_id for node_id, at in self._due_ms.items() if at <= now_ms}
        if not due:
            return frozenset()
        waiting = {
            partition.replicas[0]
            for _, _, partition in partitions_of(image)
            if partition.leader != partition.replicas[0]
        }
        for node_id in due:
            if node_id not in waiting or now_ms - self._due_ms[node_id] > self._interval_ms:
                del self._due_ms[node_id]
        return frozenset(due & waiting)
