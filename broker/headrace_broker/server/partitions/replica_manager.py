"""The partitions of this broker: found by name or id, made and removed as the metadata says.

Owns which logs are open. What a partition does with its log is `partition.py`'s; when logs are
flushed, cleaned and checkpointed is `log_manager.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID

import structlog

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.config import INFINITE, LogConfig
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.configs.balance_settings import balance_throttle
from headrace_broker.metadata.cordons import cordoned_directories
from headrace_broker.metadata.entities import (
    NO_LEADER,
    PartitionImage,
    TopicImage,
)
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.layers import broker_layers, topic_values
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.metadata.settings.setting_types import format_value
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    NodeId,
    PartitionIndex,
    TopicId,
)
from headrace_broker.replication.read_replica import read_replica
from headrace_broker.replication.throttle import UNLIMITED, names_replica
from headrace_broker.server.partitions.flushing import unsynced_records_max
from headrace_broker.server.partitions.healing import heal
from headrace_broker.server.partitions.log_moves import LogMoves
from headrace_broker.server.partitions.partition import Partition, not_leader
from headrace_broker.server.partitions.replica_host import REPLICA_LAG_TIME_MAX_MS, ReplicaHost
from headrace_broker.server.partitions.stray_replicas import set_strays_aside
from headrace_broker.server.partitions.unopened import UnopenedReplicas

log = structlog.get_logger()

_OFFLINE = "the log directory of this replica has failed"
_UNOPENED = "no file descriptor is left for this replica's log"
_UNSAID = (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY)


def _ignore(*_: object) -> None:
    """Without a controller to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The settings of one topic, as its replicas use them."""

    values: Mapping[str, Any]
    log_config: LogConfig
    unsynced_max: int | None
    is_planned: bool
    """Whether a plan of the balancer is being carried out."""


class Followers(Protocol):
    """Who fetches for the partitions that this broker follows (`replica_fetcher`)."""

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its leader, from its log end on; call again after each change."""

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching a partition."""

    def silent_seconds(self, partition: Partition) -> float:
        """For how long the leader of a partition that is followed has answered no fetch."""


class ReplicaManager:
    """The replicas on this broker. `static` is the settings file: the topics' defaults."""

    def __init__(
        self,
        node_id: NodeId,
        directories: LogDirectories,
        static: Mapping[str, str],
        *,
        lag_time_max_ms: int = REPLICA_LAG_TIME_MAX_MS,
        selects_by_rack: bool = False,
        move_threads: int | None = None,
    ) -> None:
        self.host = ReplicaHost(node_id, lag_time_max_ms=lag_time_max_ms)
        self.moves = LogMoves(directories, self.host, move_threads)
        """The replicas that move between log directories of this broker."""
        self.moves.note_directory = self._say_directory
        self.selects_by_rack = selects_by_rack
        """Whether consumers are sent to a follower in their rack (replica.selector.class)."""
        self.followers: Followers | None = None
        self.follower_sessions: dict[NodeId, int] = {}
        """The fetch session of each follower that replicates from this broker."""
        self._node_id = node_id
        self._directories = directories
        self._static = static
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[UUID, dict[int, Partition]] = {}
        self._image = MetadataImage()
        self._offline: set[tuple[UUID, int]] = set()
        """Replicas in log directories that failed."""
        self.note_directory: Callable[[UUID, int, UUID, UUID], None] = _ignore
        """Called for each replica with the directory in the metadata and the one that holds it."""
        self._has_looked_for_strays = False
        self._is_complete = False
        """Whether all logs were opened once; a start that cannot open one is given up."""
        self.unopened = UnopenedReplicas()
        """Replicas that wait for a file descriptor."""
        self.host.on_damage = self._damaged

    def partition(self, topic: str, index: int) -> Partition:
        """Return a replica on this broker; raise ApiError if it has none."""
        try:
            return self._by_name[topic][index]
        except KeyError:
            raise self._missing(self._image.topics.get(topic), index) from None

    def partition_by_id(self, topic_id: UUID, index: int) -> Partition:
        """Return a replica on this broker by topic id; raise ApiError if it has none."""
        try:
            return self._by_id[topic_id][index]
        except KeyError:
            topic = self._image.topics_by_id.get(TopicId(topic_id))
            if topic is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}"
                ) from None
            raise self._missing(topic, index) from None

    def _missing(self, topic: TopicImage | None, index: int) -> ApiError:
        if topic is None or index not in topic.partitions:
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist")
        if (topic.topic_id, index) in self._offline:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, _OFFLINE)
        if (topic.topic_id, index) in self.unopened:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, _UNOPENED)
        return ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no replica of the partition"
        )

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(len(partitions) for partitions in self._by_name.values())

    def partitions_of(self, topic: str) -> Mapping[int, Partition]:
        """Return this broker's replicas of a topic by index."""
        return self._by_name.get(topic, {})

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make the replicas match `image`; `delta` says which ones have changed.

        Opening a log takes about a millisecond of file operations, so clients are served in
        between. Raises OutOfDescriptorsError the first time, while this process starts; later,
        replicas that lack a descriptor are opened as soon as there is one.
        """
        self._image = self.host.image = image
        for topic in delta.topics_removed.values():
            await self._remove(topic)
        for name, indexes in delta.topics_changed.items():
            await self._change(image.topics[name], indexes)
        kinds = {resource.type for resource in delta.configs_changed}
        if ConfigResourceType.BROKER in kinds:
            planned = balance_throttle(image)
            leading = self._rate("leader.replication.throttled.rate")
            following = self._rate("follower.replication.throttled.rate")
            self.host.leader_throttle.set_rate(min(leading, planned))
            self.host.follower_throttle.set_rate(min(following, planned))
            self.moves.throttle.set_rate(
                self._rate("replica.alter.log.dirs.io.max.bytes.per.second")
            )
            changed = set(self._by_name)
        else:
            changed = {resource.name for resource in delta.configs_changed} & set(self._by_name)
        for name in sorted(changed):
            rest = set(image.topics[name].partitions) - delta.topics_changed.get(name, set())
            await self._change(image.topics[name], frozenset(rest))
        if delta.brokers_changed:
            for partition in self:
                partition.expand_isr()
        self.host.check_deletions()
        self._is_complete = True
        if self.followers is not None and not self._has_looked_for_strays:
            # This process is registered, so it has caught up, and no log is being opened right now.
            self._has_looked_for_strays = True
            opened = {(each.topic_id, each.index) for each in self}
            try:
                set_strays_aside(
                    self._directories, image, self._node_id, opened, self.host.on_failure
                )
            except OutOfDescriptorsError:
                self._has_looked_for_strays = False

    def directory_failed(self, directory: LogDirectory) -> list[Partition]:
        """Take the replicas in a failed log directory out of service; return them."""
        self.moves.directory_failed(directory)
        lost = [each for each in self if self._directories.holder(each.log) is directory]
        for partition in lost:
            self._offline.add((partition.topic_id, partition.index))
            del self._by_id[partition.topic_id][partition.index]
            if self.followers is not None:
                self.followers.unfollow(partition)
            partition.close(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, _OFFLINE))
        return lost

    async def _remove(self, topic: TopicImage) -> None:
        partitions = self._by_id.pop(topic.topic_id, {})
        self._offline = {each for each in self._offline if each[0] != topic.topic_id}
        self.unopened.forget(topic.topic_id)
        if self._by_name.get(topic.name) is partitions:
            del self._by_name[topic.name]
        gone = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        for partition in list(partitions.values()):
            self._drop(partition, gone)
            await asyncio.sleep(0)

    def _drop(self, partition: Partition, reason: ApiError) -> None:
        if self.followers is not None:
            self.followers.unfollow(partition)
        self.moves.cancel(partition)
        partition.close(reason)
        directory = self._directories.holder(partition.log)
        if directory is not None:
            # Without a descriptor the folder has its new name, only not yet durably.
            with self._failing(), contextlib.suppress(OutOfDescriptorsError):
                directory.delete(partition.topic, partition.index)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Report a log directory that fails inside; the caller continues without its replicas."""
        try:
            yield
        except LogDirectoryFailure as failure:
            self.host.on_failure(failure)

    async def _change(self, topic: TopicImage, indexes: frozenset[PartitionIndex]) -> None:
        settings = self._settings(topic.name)
        if topic.topic_id not in self._by_id:
            self._by_id[topic.topic_id] = self._by_name[topic.name] = {}
        for index in sorted(indexes):
            self.unopened.done(topic.topic_id, index)
            try:
                await self._change_replica(topic, index, settings)
            except OutOfDescriptorsError:
                if not self._is_complete:
                    raise
                self.unopened.note(topic.topic_id, index)

    def _settings(self, topic: str) -> _Settings:
        values = self.effective_config(topic)
        log_config = LogConfig.from_settings(
            {name: format_value(value) or "" for name, value in values.items()}
        )
        return _Settings(
            values=values,
            # Group commit syncs instead (flushing.py): an fsync in an append would block the event
            # loop.
            log_config=replace(log_config, flush_messages=INFINITE),
            unsynced_max=unsynced_records_max(log_config),
            is_planned=balance_throttle(self._image) != UNLIMITED,
        )

    async def _change_replica(
        self, topic: TopicImage, index: PartitionIndex, settings: _Settings
    ) -> None:
        """Apply the metadata of one replica. Raises OutOfDescriptorsError: then do it again."""
        partitions = self._by_id[topic.topic_id]
        image = topic.partitions[index]
        partition = partitions.get(index)
        if self._node_id not in image.replicas:
            self._offline.discard((topic.topic_id, index))
            if partition is not None:
                del partitions[index]
                self._drop(partition, not_leader("the replica moved to another broker"))
            return
        if (topic.topic_id, index) in self._offline:
            return
        if partition is None:
            with self._failing():
                partition = await self._open(topic, index, image, settings.log_config)
            if partition is None:
                self._offline.add((topic.topic_id, index))
                self._note_absence(topic.topic_id, index, image)
                return
            partitions[index] = partition
            await asyncio.sleep(0)
            if partitions.get(index) is not partition:
                return  # its log directory failed in the meantime
        else:
            partition.log.update_config(settings.log_config)
        self._note_directory(partition, image)
        self.moves.changed(partition)
        # Copies made by a plan are throttled without topic settings, so no setting is left behind.
        values, is_planned = settings.values, settings.is_planned
        partition.is_leader_throttled = names_replica(
            values["leader.replication.throttled.replicas"], index, self._node_id
        ) or (is_planned and bool(image.adding_replicas))
        partition.is_follower_throttled = names_replica(
            values["follower.replication.throttled.replicas"], index, self._node_id
        ) or (is_planned and self._node_id in image.adding_replicas)
        with self._failing():
            if partition.apply(image, values["min.insync.replicas"], settings.unsynced_max):
                self._assign(partition)
            self.moves.resume(partition)
            if partition.log.is_damaged:
                self._heal(partition, image)

    def _damaged(self, topic_id: UUID, index: int) -> None:
        # Not at once: a read that finds damage must return first.
        asyncio.get_running_loop().call_soon(self._heal_soon, topic_id, index)

    def _heal_soon(self, topic_id: UUID, index: int) -> None:
        partition = self._by_id.get(topic_id, {}).get(index)
        topic = self._image.topics_by_id.get(TopicId(topic_id))
        if partition is not None and topic is not None and partition.log.is_damaged:
            try:
                with self._failing():
                    self._heal(partition, topic.partitions[PartitionIndex(index)])
            except OutOfDescriptorsError:
                self.unopened.note(topic_id, index)

    def _heal(self, partition: Partition, image: PartitionImage) -> None:
        directory = self._directories.holder(partition.log)
        if directory is not None:
            heal(
                partition,
                image,
                directory.directory_id,
                note_directory=self.note_directory,
                follow=self._assign,
            )

    def _assign(self, partition: Partition) -> None:
        if self.followers is None:
            return
        if partition.leading is None and partition.leader not in (NO_LEADER, self._node_id):
            self.followers.follow(partition)
        else:
            self.followers.unfollow(partition)

    def start_following(self, followers: Followers) -> None:
        """From now on have `followers` fetch the partitions that this broker follows."""
        self.followers = followers
        for partition in self:
            self._assign(partition)

    def read_replica(self, partition: Partition, rack: str, fetch_offset: int) -> NodeId | None:
        """Return the follower that a consumer in `rack` should read instead of us (KIP-392)."""
        leading = partition.leading
        if leading is None or not rack:
            return None
        brokers = self._image.brokers
        own = brokers.get(self._node_id)
        if own is not None and own.rack == rack:
            return None
        nearby = {
            node_id: progress.fetch_offset
            for node_id, progress in leading.followers.items()
            if node_id in leading.isr
            and (broker := brokers.get(node_id)) is not None
            and broker.is_active
            and broker.rack == rack
        }
        return read_replica(nearby, fetch_offset)

    def is_cut_off(self, partition: Partition) -> bool:
        """Whether a follower here has not reached its leader for too long to be in sync.

        If the controller cannot be reached either, this is the only sign. A leader checks for
        lagging followers at the latest after 1.5 times the lag limit, and sends consumers here
        until then.
        """
        if self.followers is None:
            return False
        return self.followers.silent_seconds(partition) > 1.5 * self.host.lag_time_max_ms / 1000

    async def _open(
        self, topic: TopicImage, index: PartitionIndex, image: PartitionImage, config: LogConfig
    ) -> Partition | None:
        """Open or create a replica's log; return None if it may be in a failed log directory."""
        cordoned = cordoned_directories(self._image, self._node_id)
        assigned = image.directory_of(self._node_id)
        self._directories.settle(topic.name, index)
        chosen = self.moves.take_choice(TopicPartition(topic.name, index))
        # Before the registration the metadata is what former processes knew.
        is_new = self.followers is not None
        directory = self._directories.place(
            topic.name, index, assigned, cordoned, chosen, is_new=is_new
        )
        if directory is None:
            return None
        found = directory.topic_id(topic.name, index)
        if found is not None and found != topic.topic_id:
            # An older topic of this name, deleted while this broker was down.
            log.warning(
                "stray partition removed", topic=topic.name, partition=index, topic_id=found
            )
            directory.delete(topic.name, index)
            return await self._open(topic, index, image, config)
        recovered: PartitionLog | None = None
        recovery = directory.recovery(topic.name, index, config)
        if recovery is not None:
            # After a kill every batch since the recovery point is read: seconds for a busy log.
            recovered = await asyncio.get_running_loop().run_in_executor(None, recovery)
            if directory.is_abandoned:
                recovered.abandon()
                return None
        opened = directory.create(
            topic.name, index, config, topic_id=topic.topic_id, recovered=recovered
        )
        return Partition(topic.name, topic.topic_id, index, opened, self.host)

    def _note_directory(self, partition: Partition, image: PartitionImage) -> None:
        directory = self.moves.directory_of(partition)
        known = image.directory_of(self._node_id)
        if directory is None or (known in _UNSAID and not self._directories.is_one_of_several):
            return
        if partition.log.is_damaged:
            return  # `_heal` reports the directory
        self.note_directory(partition.topic_id, partition.index, known, directory.directory_id)

    def _say_directory(self, topic_id: UUID, index: int, known: UUID, actual: UUID) -> None:
        self.note_directory(topic_id, index, known, actual)

    def _note_absence(self, topic_id: UUID, index: int, image: PartitionImage) -> None:
        """Report a replica as lost that is not in the directory that the metadata names.

        It was about to move to that directory when the one that holds it failed, or the metadata
        names none yet.
        """
        known = image.directory_of(self._node_id)
        if known in _UNSAID or any(each.directory_id == known for each in self._directories):
            self.note_directory(topic_id, index, known, LOST_DIRECTORY)

    def _rate(self, name: str) -> int:
        for layer in broker_layers(self._image, self._node_id, self._static):
            if name in layer.texts:
                return int(layer.texts[name])
        return UNLIMITED

    def effective_config(self, topic: str) -> Mapping[str, Any]:
        """Return every setting of a topic, typed, by Kafka's name."""
        return topic_values(self._image, topic, self._node_id, self._static)
