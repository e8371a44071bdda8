"""The composition root: everything that one process is made of, started and stopped in order.

Start: lock the log directories, bind the ports (so that they are known), join the metadata quorum,
register, open the partitions, load the groups, listen, and ask to be unfenced. Stop is the reverse,
and ends with the clean-shutdown marker, which tells the next start to skip recovery.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.metadata.entities import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Endpoint,
)
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.protocol.apis import BROKER, CONTROLLER
from headrace_broker.protocol.schema import Message
from headrace_broker.server.api import api_versions
from headrace_broker.server.api.dispatch import left_out_by, load_api_table, served_by
from headrace_broker.server.api.write_txn_markers import write_markers
from headrace_broker.server.clock import Clock, SystemClock
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.config.live_settings import LiveSettings
from headrace_broker.server.fetch import fast_follower
from headrace_broker.server.fetch.fast_follower import FastFollower
from headrace_broker.server.fetch.fetch_sessions import FetchSessions
from headrace_broker.server.follower.replication import Replication, selects_by_rack
from headrace_broker.server.groups.composition import compose_groups
from headrace_broker.server.groups.group_driver import GroupCoordinator
from headrace_broker.server.groups.group_driver_log import PartitionOffsetsLog
from headrace_broker.server.membership.broker_lifecycle import BrokerLifecycle
from headrace_broker.server.membership.departures import Departures
from headrace_broker.server.membership.process_watch import ProcessWatch
from headrace_broker.server.monitoring.http_port import HttpPort
from headrace_broker.server.monitoring.loop_delay import LoopDelay
from headrace_broker.server.monitoring.partition_changes import PartitionChanges
from headrace_broker.server.monitoring.status import ServerStatus
from headrace_broker.server.network.api_entry import ApiEntry
from headrace_broker.server.network.budget import Budget
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener import Acceptor
from headrace_broker.server.network.metrics import NetworkMetrics
from headrace_broker.server.partitions.directory_assignments import DirectoryAssignments
from headrace_broker.server.partitions.directory_failures import take_offline
from headrace_broker.server.partitions.elections import Elections
from headrace_broker.server.partitions.log_manager import LogManager
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from headrace_broker.server.peers.peer_connection import api_key_of
from headrace_broker.server.peers.peers import PeerConnections
from headrace_broker.server.produce import fast_produce
from headrace_broker.server.produce.fast_produce import FastProduce
from headrace_broker.server.quorum.controller import ControllerDriver
from headrace_broker.server.quorum.controller_tasks import ControllerTasks
from headrace_broker.server.quorum.forwarding import Forwarding
from headrace_broker.server.quorum.metadata_quorum import Identity, MetadataQuorum, NodeAddresses
from headrace_broker.server.quorum.producer_ids import ProducerIds
from headrace_broker.server.quorum.raft_driver import RaftDriver
from headrace_broker.server.shares.shares import Shares
from headrace_broker.server.transactions.composition import compose_coordinator
from headrace_broker.server.transactions.coordinator import TransactionCoordinator
from headrace_broker.server.transactions.state_log import PartitionStateLog
from headrace_broker.server.transactions.verifier import Verifier

log = structlog.get_logger()

# A node that is not ready by then reports that over HTTP meanwhile.
_HTTP_DELAY_SECONDS = 1.0


class Broker:
    """One node. `on_failure` is called once if the process must exit."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._live = LiveSettings(config)
        self.config = config = replace(config, values=self._live)
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.SystemRandom()
        self._end = on_failure
        self.network_metrics = NetworkMetrics()
        self.changes = PartitionChanges()
        self.budget = Budget(config.values["queued.max.request.bytes"])
        self.apis: Mapping[int, ApiEntry] = load_api_table()
        self.fetch_sessions = FetchSessions(
            config.values["max.incremental.fetch.session.cache.slots"],
            config.values["headrace.fetch.session.max.partitions"],
            self.rng,
            lambda: asyncio.get_running_loop().time(),
        )
        self.directories: LogDirectories
        self.controller: ControllerDriver
        self.controller_tasks: ControllerTasks
        self.raft: RaftDriver
        self.peers: PeerConnections
        self.forwarding: Forwarding
        self.lifecycle: BrokerLifecycle
        self.replicas: ReplicaManager
        self.replication: Replication
        self.groups: GroupCoordinator
        self.transactions: TransactionCoordinator
        self.verifier: Verifier
        self.shares: Shares
        self.departures: Departures
        self.assignments: DirectoryAssignments
        self.producer_ids: ProducerIds
        self.incarnation_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        self._is_stopping = False
        self._metadata_quorum: MetadataQuorum | None = None
        self._acceptors: list[Acceptor] = []
        self._controller_acceptors: list[Acceptor] = []
        self._process_watch: ProcessWatch
        self._elections: list[Elections] = []
        self._http = HttpPort(config.http_listener)
        self._log_managers: list[LogManager] = []
        self._loop_delay: LoopDelay | None = None

    @property
    def is_ready(self) -> bool:
        """Whether clients should be sent here: an unfenced broker, a controller in the quorum."""
        if self._is_stopping or self._metadata_quorum is None:
            return False
        if not self.config.is_broker:
            return self.raft.leader_id is not None
        return self.lifecycle.unfenced.is_set()

    @property
    def is_composed(self) -> bool:
        """Whether the quorum, the replicas and the groups exist yet."""
        return hasattr(self, "groups")

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""
        return self.controller.image

    @property
    def listeners(self) -> Sequence[Acceptor]:
        """The bound listeners for clients."""
        return self._acceptors

    @property
    def cluster_id(self) -> str:
        """The cluster's id, as stored in the log directories."""
        return self.directories.cluster_id

    def on_failure(self, error: BaseException) -> None:
        """Continue without a failed log directory if possible; other failures end the process."""
        end: BaseException | None = error
        if isinstance(error, LogDirectoryFailure) and self.is_composed:
            end = take_offline(
                error,
                self.directories,
                self.replicas,
                unload={item.topic: item.unload for item in self._elections},
                report=self.lifecycle.report_failed_directories,
            )
        if end is not None:
            self._end(end)

    def apis_of(self, listener: str) -> Mapping[int, ApiEntry]:
        """Return what a listener serves."""
        for acceptor in (*self._acceptors, *self._controller_acceptors):
            if acceptor.name == listener:
                return acceptor.apis
        return self.apis

    async def start(self) -> None:
        """Start everything; clients are served when this returns."""
        config = self.config
        self.directories = LogDirectories.open(
            config.log_directories,
            config.metadata_log_directory,
            node_id=config.node_id,
            cluster_id=config.values["cluster.id"] or "",
            clock=self.clock,
        )
        self._bind()
        self._compose()
        for acceptor in self._controller_acceptors:
            await acceptor.start()
        quorum = self._metadata_quorum
        if quorum is not None:
            quorum.start(self.peers)
        self._loop_delay = LoopDelay(asyncio.get_running_loop(), self.network_metrics)
        serving = asyncio.ensure_future(self._serve())
        try:
            if not config.quorum.is_alone:
                await asyncio.wait({serving}, timeout=_HTTP_DELAY_SECONDS)
                await self._http.start(ServerStatus(self))
            await serving
        finally:
            serving.cancel()
        await self._http.start(ServerStatus(self))
        log.info(
            "broker started",
            node_id=config.node_id,
            cluster_id=self.cluster_id,
            listeners=[
                f"{item.name}://{item.listener.host}:{item.port}"
                for item in (*self._acceptors, *self._controller_acceptors)
            ],
            partitions=len(self.replicas),
            was_clean_shutdown=self.directories.was_clean,
        )

    def _bind(self) -> None:
        for listener in self.config.listeners:
            is_for_controllers = listener.name in self.config.controller_listener_names
            role = CONTROLLER if is_for_controllers else BROKER
            acceptor = Acceptor(
                self,
                listener,
                served_by(self.apis, role),
                partial(left_out_by, role),
                api_versions.unsupported,
            )
            if role == BROKER:
                acceptor.fast_paths[fast_produce.API_KEY] = FastProduce(
                    self, acceptor.busy_poll
                ).answer
                acceptor.fast_paths[fast_follower.API_KEY] = FastFollower(self).answer
            acceptor.bind()
            (self._controller_acceptors if is_for_controllers else self._acceptors).append(acceptor)
        self._http.bind()

    def _compose(self) -> None:
        config, directory = self.config, self.directories.metadata
        identity = Identity(
            directory_id=directory.directory_id,
            cluster_id=directory.cluster_id,
            ports={item.name: item.port for item in self._controller_acceptors},
        )
        quorum = self._metadata_quorum = MetadataQuorum(
            config, identity, clock=self.clock, rng=self.rng, on_failure=self.on_failure
        )
        self.raft, self.controller, self.rejoin = quorum.driver, quorum.controller, quorum.rejoin
        self.peers = PeerConnections(
            NodeAddresses(config, quorum),
            client_id=f"node-{config.node_id}",
            frame_bytes_max=config.values["socket.request.max.bytes"],
            own=(config.node_id, self._call_controller),
        )
        self.lifecycle = BrokerLifecycle(
            config,
            self.peers,
            quorum.loader,
            incarnation_id=self.incarnation_id,
            cluster_id=directory.cluster_id,
            on_failure=self.on_failure,
        )
        self.forwarding = Forwarding(
            config.node_id, self.peers, quorum.loader, lambda: self.lifecycle.epoch
        )
        self.controller.forwarding = self.forwarding
        self._compose_controller()
        self.producer_ids = ProducerIds(self.controller.allocate_producer_ids)
        self.replicas = ReplicaManager(
            config.node_id,
            self.directories,
            config.static,
            lag_time_max_ms=config.values["replica.lag.time.max.ms"],
            selects_by_rack=selects_by_rack(config.values),
            move_threads=config.values["num.replica.alter.log.dirs.threads"],
        )
        self.replicas.host.belong_to(self.incarnation_id, self.on_failure)
        self.assignments = DirectoryAssignments(
            config.node_id, self.peers, lambda: self.lifecycle.epoch, self.on_failure
        )
        self.replicas.note_directory = self.assignments.note
        self.replicas.unopened.apply_again = quorum.loader.publish_again
        self.replication = Replication(self.replicas, self.peers, config.values, self.lifecycle)
        self.shares = Shares(self, self.controller.ensure_internal_topic)
        self.groups = compose_groups(self, self.shares.initialize)
        self.shares.administer(self.groups)
        for acceptor in self._acceptors:
            acceptor.on_disconnect.append(self.shares.partitions.disconnected)
        self._compose_transactions()
        self.departures = Departures()
        self.controller.subscribe(self.departures.changed)
        self.controller.subscribe(self._live.changed)
        self.controller.subscribe(self._metadata_changed)

    def _compose_controller(self) -> None:
        config = self.config
        self.controller_tasks = ControllerTasks(self.controller, config.values, self.on_failure)
        self._process_watch = ProcessWatch(
            config.node_id,
            self.incarnation_id,
            peers=self.peers,
            raft=self.raft,
            controller=self.controller,
            tasks=self.controller_tasks,
        )

    def _compose_transactions(self) -> None:
        config = self.config
        self.transactions = compose_coordinator(self, partial(write_markers, self))
        self.verifier = Verifier(
            config.node_id, self.transactions, self.peers, lambda: self.metadata
        )

        async def load_groups(partition: Partition) -> None:
            await self.groups.load(partition.index, PartitionOffsetsLog(partition, self.clock))

        async def load_transactions(partition: Partition) -> None:
            # In the background: what it waits for may only come with the next image.
            load_bytes = self.config.values["transaction.state.log.load.buffer.size"]
            state_log = PartitionStateLog(partition, self.clock, load_bytes)
            self.transactions.load(partition.index, state_log)

        self._elections = [
            self.shares.elections,
            Elections(GROUP_METADATA_TOPIC, self.replicas, load_groups, self.groups.unload),
            Elections(
                TRANSACTION_STATE_TOPIC, self.replicas, load_transactions, self.transactions.unload
            ),
        ]

    async def _serve(self) -> None:
        """Join the cluster as a broker and serve clients; return when it is unfenced."""
        if not self.config.is_broker:
            return
        self.lifecycle.start(
            self._endpoints(),
            [directory.directory_id for directory in self.directories],
            await self.rejoin(self.directories.previous_broker_epoch),
        )
        await self.lifecycle.registered.wait()
        self.assignments.start()
        self.replication.start()
        self.groups.start()
        self.transactions.start()
        self.shares.coordinator.start()
        for directory in self.directories:
            log_manager = LogManager(
                self.config, directory, self.replicas, self.clock, self.on_failure
            )
            log_manager.start()
            self._log_managers.append(log_manager)
        for acceptor in self._acceptors:
            acceptor.wakeups = self.replicas.host.wakeups
            await acceptor.start()
        self.lifecycle.serve()
        await self.lifecycle.unfenced.wait()

    def _endpoints(self) -> list[Endpoint]:
        ports = {item.name: item.port for item in self._acceptors}
        return [
            Endpoint(name=item.name, host=item.host, port=item.port or ports[item.name])
            for item in self.config.advertised_listeners
        ]

    async def _call_controller(self, request: Message, version: int | None) -> Any:
        """Serve this node's own request, as it is the active controller itself."""
        entry = self.apis[api_key_of(request)]
        names = self.config.controller_listener_names
        context = RequestContext(
            entry.max_version if version is None else version,
            0,
            f"node-{self.config.node_id}",
            "",
            names[0] if names else "",
            0,
        )
        result = entry.handle(self, context, request)
        return await result if asyncio.isfuture(result) or asyncio.iscoroutine(result) else result

    async def _metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.brokers_changed:
            self._process_watch.follow(image)
        self.changes.count(delta, image, self.config.node_id, self.incarnation_id)
        if not self.config.is_broker:
            return
        await self.replicas.apply(delta, image)
        for name, coordinator in (
            (GROUP_METADATA_TOPIC, self.groups),
            (TRANSACTION_STATE_TOPIC, self.transactions),
        ):
            if name in delta.topics_changed:
                # The topic's actual partition count decides the mapping, not the present setting.
                coordinator.partition_count = len(image.topics[name].partitions)
        for elections in self._elections:
            await elections.apply(delta)
        self.shares.apply(delta, image)
        self.groups.topics_deleted(delta.topics_removed.values())

    async def stop(self) -> None:
        """Stop in the reverse order; everything appended is on disk when this returns."""
        self._is_stopping = True
        if self._metadata_quorum is None:
            return
        if self.config.is_broker:
            await self.lifecycle.shut_down()
        for acceptor in self._acceptors:
            await acceptor.stop()
        if self._loop_delay is not None:
            self._loop_delay.stop()
        self.shares.close()
        self.transactions.close()
        self.groups.close()
        if self.config.is_broker:
            await self.replication.stop()
            await self.replicas.moves.stop()
            await self.assignments.close()
        for log_manager in self._log_managers:
            await log_manager.stop()
        await self.lifecycle.close()
        await self.controller_tasks.stop()
        await self._metadata_quorum.close()
        await self.peers.close()
        for acceptor in self._controller_acceptors:
            await acceptor.stop()
        self.directories.close(broker_epoch=self.lifecycle.epoch)
        await self._http.stop()
        log.info("broker stopped", node_id=self.config.node_id)
