"""The composition root: all that one broker process is made of, started and stopped in order.

Start: lock and recover the log directory, bind the ports (so that they are known), replay the
metadata, register, open the partitions, load the groups, and only then listen. Stop is the reverse,
and ends with the marker that tells the next start that nothing needs recovery.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.metadata.brokers import Registration
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC, Endpoint
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.protocol.types import BrokerEpoch, PartitionIndex
from headrace_broker.server.budget import Budget
from headrace_broker.server.clock import Clock, SystemClock
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.controller import ControllerDriver
from headrace_broker.server.controller_log import MetadataLog
from headrace_broker.server.controller_tasks import ControllerTasks
from headrace_broker.server.dispatch import ApiEntry, load_api_table
from headrace_broker.server.fetch_sessions import FetchSessions
from headrace_broker.server.group_driver import GroupCoordinator, group_config
from headrace_broker.server.group_driver_log import PartitionOffsetsLog
from headrace_broker.server.listener import Listening
from headrace_broker.server.loop_delay import LoopDelay
from headrace_broker.server.metrics import NetworkMetrics
from headrace_broker.server.producer_ids import ProducerIds
from headrace_broker.server.replica_manager import ReplicaManager
from headrace_broker.server.status import ServerStatus
from headrace_broker.server.upkeep import Upkeep

log = structlog.get_logger()


class Broker:
    """One node. `on_failure` is called once where the process must end."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.chance = chance or random.SystemRandom()
        self.on_failure = on_failure
        self.network_metrics = NetworkMetrics()
        self.budget = Budget(config.values["queued.max.request.bytes"])
        self.apis: Mapping[int, ApiEntry] = load_api_table()
        self.fetch_sessions = FetchSessions(
            config.values["max.incremental.fetch.session.cache.slots"],
            config.values["headrace.fetch.session.max.partitions"],
            self.chance,
        )
        self.is_ready = False
        self.directory: LogDirectory
        self.controller: ControllerDriver
        self.controller_tasks: ControllerTasks
        self.replicas: ReplicaManager
        self.groups: GroupCoordinator
        self.producer_ids: ProducerIds
        self._epoch = BrokerEpoch(-1)
        self._listening: list[Listening] = []
        self._loaded_groups: set[PartitionIndex] = set()
        self._http: Any = None
        self._upkeep: Upkeep | None = None
        self._loop_delay: LoopDelay | None = None

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""
        return self.controller.image

    @property
    def listeners(self) -> Sequence[Listening]:
        """The bound listeners for clients."""
        return self._listening

    @property
    def cluster_id(self) -> str:
        """The cluster's id, as the log directory keeps it."""
        return self.directory.cluster_id

    async def start(self) -> None:
        """Start everything; clients are served when this returns."""
        config = self.config
        self.directory = LogDirectory.open(
            config.log_directories[0],
            node_id=config.node_id,
            cluster_id=config.values["cluster.id"] or "",
            clock=self.clock,
        )
        await self._bind()
        self.controller = ControllerDriver(
            config,
            MetadataLog.open(config.metadata_log_directory, self.clock),
            self.clock,
            self.chance,
            self.on_failure,
        )
        self.controller_tasks = ControllerTasks(self.controller, config.values, self.on_failure)
        self.producer_ids = ProducerIds(self.controller.allocate_producer_ids)
        self.replicas = ReplicaManager(config.node_id, self.directory, config.static)
        self.groups = GroupCoordinator(group_config(config.values), self.clock)
        self.controller.subscribe(self._metadata_changed)
        await self.controller.start()
        self._epoch = await self.controller.register_broker(self._registration())
        self.groups.start()
        self._upkeep = Upkeep(config, self.directory, self.replicas, self.clock, self.on_failure)
        self._upkeep.start()
        self._loop_delay = LoopDelay(asyncio.get_running_loop(), self.network_metrics)
        for listening in self._listening:
            await listening.start()
        self.is_ready = True
        await self._start_http()
        log.info(
            "broker started",
            node_id=config.node_id,
            cluster_id=self.cluster_id,
            listeners=[
                f"{item.name}://{item.listener.host}:{item.port}" for item in self._listening
            ],
            partitions=len(self.replicas),
            was_clean_shutdown=self.directory.was_clean,
        )

    async def _bind(self) -> None:
        for listener in self.config.listeners:
            if listener.name in self.config.controller_listener_names:
                continue  # a quorum of one has nobody to talk to
            listening = Listening(self, listener, self.apis)
            listening.bind()
            self._listening.append(listening)

    async def _start_http(self) -> None:
        if self.config.http_listener is None:
            return
        # aiohttp takes longer to import than all the rest to start; clients are served meanwhile.
        web = await asyncio.get_running_loop().run_in_executor(
            None, importlib.import_module, "headrace_broker.web.app"
        )
        self._http = await web.start_http(ServerStatus(self), *self.config.http_listener)

    def _registration(self) -> Registration:
        ports = {item.name: item.port for item in self._listening}
        return Registration(
            node_id=self.config.node_id,
            incarnation_id=uuid.uuid4(),
            endpoints=[
                Endpoint(name=item.name, host=item.host, port=item.port or ports[item.name])
                for item in self.config.advertised_listeners
            ],
            rack=self.config.rack,
            log_dirs=[self.directory.directory_id],
            previous_broker_epoch=BrokerEpoch(self.directory.previous_broker_epoch),
        )

    async def _metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        await self.replicas.apply(delta, image)
        if GROUP_METADATA_TOPIC in delta.topics_changed:
            # The topic's own count decides where groups live, whatever the setting says now.
            self.groups.partition_count = len(image.topics[GROUP_METADATA_TOPIC].partitions)
        for index in delta.topics_changed.get(GROUP_METADATA_TOPIC, ()):
            partition = self.replicas.partitions_of(GROUP_METADATA_TOPIC).get(index)
            leads = partition is not None and partition.leader == self.config.node_id
            if partition is not None and leads and index not in self._loaded_groups:
                self._loaded_groups.add(index)
                await self.groups.load(index, PartitionOffsetsLog(partition, self.clock))
            elif not leads and index in self._loaded_groups:
                self._loaded_groups.discard(index)
                self.groups.unload(index)
        if delta.topics_removed:
            self.groups.topics_deleted([topic.name for topic in delta.topics_removed.values()])

    async def stop(self) -> None:
        """Stop in the reverse order; everything appended is on disk when this returns."""
        self.is_ready = False
        for listening in self._listening:
            await listening.stop()
        if self._loop_delay is not None:
            self._loop_delay.stop()
        self.groups.close()
        if self._upkeep is not None:
            await self._upkeep.stop()
        await self.controller.close()
        self.directory.close(broker_epoch=self._epoch)
        if self._http is not None:
            await self._http.cleanup()
        log.info("broker stopped", node_id=self.config.node_id)
