"""Watches other brokers' processes through connections, and reacts when one dies.

Every node holds a connection to each broker that is not fenced (`peers`). The active controller
fences a broker whose process died; the other nodes learn that the metadata of its partitions is
about to change. Decides nothing: `controller_tasks` decides whom to fence, and how.
"""

from __future__ import annotations

import asyncio
import uuid

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.peers.peers import PeerConnections
from headrace_broker.server.quorum.controller import ControllerDriver
from headrace_broker.server.quorum.controller_tasks import ControllerTasks
from headrace_broker.server.quorum.raft_driver import RaftDriver


class ProcessWatch:
    """Watches brokers' processes, and starts the controller's tasks while this node leads."""

    def __init__(
        self,
        node_id: NodeId,
        incarnation_id: uuid.UUID,
        *,
        peers: PeerConnections,
        raft: RaftDriver,
        controller: ControllerDriver,
        tasks: ControllerTasks,
    ) -> None:
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._peers = peers
        self._raft = raft
        self._controller = controller
        self._tasks = tasks
        self._fencing: set[asyncio.Task[None]] = set()
        peers.on_process_died(self._broker_died)
        controller.subscribe_activity(self._activity_changed)

    def follow(self, image: MetadataImage) -> None:
        """Watch the brokers in this image that are not fenced."""
        wanted = {
            node_id
            for node_id, broker in image.brokers.items()
            if not broker.fenced and node_id != self._node_id
        }
        for node_id in sorted(self._peers.watched - wanted):
            self._peers.unwatch(node_id)
        for node_id in sorted(wanted - self._peers.watched):
            self._peers.watch(node_id)

    def _activity_changed(self, is_active: bool, image: MetadataImage) -> None:  # noqa: FBT001 (an observer's signature)
        if is_active:
            self._tasks.begin(image)
            former = self._raft.former_leader_id
            if former not in {None, self._node_id}:
                self._tasks.sessions.doubt(former)
            own = image.brokers.get(self._node_id)
            if own is not None and own.incarnation_id != self._incarnation_id:
                # This node's former process is certainly gone: this one has locked its directory.
                self._tasks.sessions.declare_dead(own.node_id, own.epoch)
            for node_id in self._peers.refusing:
                self._broker_died(node_id)
        else:
            self._tasks.end()
        self.follow(image)

    def _broker_died(self, node_id: NodeId) -> None:
        broker = self._controller.image.brokers.get(node_id)
        if broker is None or broker.fenced or not self._controller.is_active:
            return
        task = asyncio.ensure_future(self._tasks.broker_process_died(node_id, broker.epoch))
        self._fencing.add(task)
        task.add_done_callback(self._fencing.discard)
