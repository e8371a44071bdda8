"""When returned brokers get their leaderships back: soon, but not over and over.

Plain state of the active controller, given `now_ms`. Kafka waits for its next imbalance check, up
to five minutes; after a restart of all brokers, one broker may lead everything until then. For a
broker that returns several times within that interval, the wait doubles each time, so a broker in a
crash loop does not take leaderships down with it each time.
"""

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.replication_rules import partitions_of
from headrace_broker.protocol.types import BrokerEpoch, NodeId


class LeaderReturns:
    """Returned brokers, and when each may lead its preferred partitions again."""

    def __init__(self, *, delay_ms: int, interval_ms: int) -> None:
        """`interval_ms`: the interval of the regular check; no broker is tracked for longer."""
        self._delay_ms = delay_ms
        self._interval_ms = interval_ms
        self._active: dict[NodeId, BrokerEpoch] = {}
        self._due_ms: dict[NodeId, int] = {}
        self._came_ms: dict[NodeId, list[int]] = {}
        self._has_begun = False

    def begin(self) -> None:
        """Drop the state: another controller may have handled these brokers since."""
        self._active.clear()
        self._due_ms.clear()
        self._came_ms.clear()
        self._has_begun = False

    def observe(self, image: MetadataImage, now_ms: int) -> None:
        """Record which brokers left and which returned."""
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
        """Return the brokers that may lead again now; drop those that lead all they should."""
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
