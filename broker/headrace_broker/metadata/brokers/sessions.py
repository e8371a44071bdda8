"""When the active controller last heard from each broker.

Plain state beside the image: it is not in the log, and only the active controller has it. A new
active controller gives every broker a new session, because it cannot know when the former one last
heard from it (KRaft's BrokerHeartbeatManager). The time is passed in.
"""

from dataclasses import dataclass

from headrace_broker.metadata.entities import BrokerImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.types import NO_OFFSET, BrokerEpoch, NodeId, Offset


@dataclass(slots=True, kw_only=True)
class _Session:
    epoch: BrokerEpoch
    last_contact_ms: int
    # Whether this controller has heard from it, or at most the former one.
    was_heard: bool = False
    metadata_offset: Offset = NO_OFFSET
    # The offset of its leaders' moves; it may stop when all others have read up to there.
    shutdown_offset: Offset | None = None


class BrokerSessions:
    """The sessions of the brokers, by id."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: dict[NodeId, _Session] = {}
        self._dead: dict[NodeId, BrokerEpoch] = {}
        self._last_check_ms: int | None = None

    def begin(self, image: MetadataImage, now_ms: int) -> None:
        """Give each unfenced broker a new session: this controller has become active."""
        self._sessions = {
            node: _Session(epoch=broker.epoch, last_contact_ms=now_ms)
            for node, broker in image.brokers.items()
            if not broker.fenced
        }
        self._dead.clear()
        self._last_check_ms = now_ms

    def doubt(self, node_id: NodeId) -> None:
        """Give a broker only half a session: it was the controller, and stopped answering."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.last_contact_ms -= self.timeout_ms // 2

    def end(self) -> None:
        """Drop everything: this controller is no longer the active one."""
        self._sessions.clear()
        self._dead.clear()
        self._last_check_ms = None

    def touch(
        self, node_id: NodeId, epoch: BrokerEpoch, metadata_offset: Offset, now_ms: int
    ) -> None:
        """Record a heartbeat; one with an older epoch is ignored.

        A broker that sends one is not dead: only its network was broken.
        """
        session = self._sessions.get(node_id)
        if session is None or session.epoch < epoch:
            session = self._sessions[node_id] = _Session(epoch=epoch, last_contact_ms=now_ms)
        elif session.epoch > epoch:
            return
        self._dead.pop(node_id, None)
        session.was_heard = True
        session.last_contact_ms = max(session.last_contact_ms, now_ms)
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def declare_dead(self, node_id: NodeId, epoch: BrokerEpoch) -> None:
        """Drop the session of a process that is known to have died: it may register again."""
        session = self._sessions.get(node_id)
        if session is None or session.epoch <= epoch:
            self._sessions.pop(node_id, None)
            self._dead[node_id] = epoch

    def is_alive(self, node_id: NodeId, now_ms: int) -> bool:
        """Whether the broker was heard from within the timeout."""
        session = self._sessions.get(node_id)
        return session is not None and now_ms - session.last_contact_ms < self.timeout_ms

    def was_heard_from(self, node_id: NodeId, now_ms: int) -> bool:
        """Whether this very controller has heard from the broker within the timeout.

        Then no other process may take its id. A session that a new controller merely assumes must
        not keep a restarted cluster's brokers out.
        """
        session = self._sessions.get(node_id)
        return session is not None and session.was_heard and self.is_alive(node_id, now_ms)

    def expired(self, image: MetadataImage, now_ms: int) -> list[BrokerImage]:
        """Return the unfenced brokers whose session has expired. Call often, about every 100 ms.

        If this controller itself was stuck (stopped, starved), heartbeats may be waiting unread:
        between two calls no session ages by more than a quarter of the timeout. A controller that
        is always late still fences silent brokers.
        """
        if self._last_check_ms is not None:
            held_up = now_ms - self._last_check_ms - self.timeout_ms // 4
            if held_up > 0:
                for session in self._sessions.values():
                    session.last_contact_ms = min(now_ms, session.last_contact_ms + held_up)
        self._last_check_ms = now_ms
        gone = []
        for node, broker in sorted(image.brokers.items()):
            if broker.fenced:
                continue
            if self._dead.get(node) == broker.epoch:
                gone.append(broker)
            elif node not in self._sessions:
                self._sessions[node] = _Session(epoch=broker.epoch, last_contact_ms=now_ms)
            elif not self.is_alive(node, now_ms):
                gone.append(broker)
        return gone

    def metadata_offset(self, node_id: NodeId) -> Offset:
        """Return the metadata offset that the broker last reported as read."""
        session = self._sessions.get(node_id)
        return NO_OFFSET if session is None else session.metadata_offset

    def begin_shutdown(self, node_id: NodeId, offset: Offset) -> None:
        """Record that the records up to `offset` move the broker's leaders away."""
        session = self._sessions.get(node_id)
        if session is not None and session.shutdown_offset is None:
            session.shutdown_offset = offset

    def shutdown_is_known(self, image: MetadataImage, node_id: NodeId) -> bool:
        """Whether all active brokers have read that this one no longer leads anything."""
        session = self._sessions.get(node_id)
        if session is None or session.shutdown_offset is None:
            return True
        until = session.shutdown_offset
        return all(
            self.metadata_offset(broker.node_id) >= until
            for broker in image.active_brokers()
            if broker.node_id != node_id
        )
