"""The broker's status for its HTTP side; lag is computed here, from group and log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace_broker.balancer.execution import PlanProgress
from headrace_broker.coordinator.admin import (
    CLASSIC_GROUP_TYPE,
    CONSUMER_GROUP_TYPE,
    SHARE_GROUP_TYPE,
)
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.share.group import ShareGroup
from headrace_broker.log.config import INFINITE
from headrace_broker.log.descriptor_shortage import SHORTAGES
from headrace_broker.log.scrub import ScrubTotals
from headrace_broker.metadata.behind import why_behind
from headrace_broker.metadata.entities import NO_LEADER
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.types import NodeId, Offset
from headrace_broker.server.monitoring.balance import balance_progress, plan_balance
from headrace_broker.server.monitoring.remote_lag import Ends, RemoteLag, timestamp_in
from headrace_broker.server.monitoring.share_lag import ShareLag
from headrace_broker.server.network.metrics import LATENCY_BUCKETS
from headrace_broker.web.planned_balance import PlannedBalance
from headrace_broker.web.status import (
    ApiStatus,
    ControllerStatus,
    GroupLag,
    GroupStatus,
    LogDirectoryStatus,
    NetworkStatus,
    PartitionStatus,
    QuorumStatus,
    ReplicationStatus,
    SeriesLimits,
    ShareGroupLag,
    SharePartitionStatus,
    ShareTotalsStatus,
)

if TYPE_CHECKING:
    from headrace_broker.coordinator.group import Group
    from headrace_broker.coordinator.offsets import CommittedOffset
    from headrace_broker.server.monitoring.node import Node
    from headrace_broker.server.partitions.partition import Partition


class ServerStatus:
    """Implements `web.status.BrokerStatus`."""

    def __init__(self, broker: Node) -> None:
        self._broker = broker
        # (group, topic, partition) → (committed offset, timestamp of the record there): the record
        # at an offset never changes, so it is read once instead of at every scrape.
        self._next_timestamps: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._remote = RemoteLag(broker)
        self._shares = ShareLag(broker)
        self._cluster: tuple[MetadataImage, ControllerStatus] | None = None
        self._behind: tuple[MetadataImage, str] | None = None

    def node_id(self) -> int:
        """Return this node's id."""
        return self._broker.config.node_id

    async def plan_balance(
        self, drain: NodeId | None, throttle_bytes_per_second: float | None
    ) -> PlannedBalance:
        """Return what the balancer would do. Raises BrokerNotFoundError."""
        return await plan_balance(self._broker, drain, throttle_bytes_per_second)

    def balance_progress(self) -> tuple[PlanProgress | None, str | None]:
        """Return the plan in progress, and the outcome of the last one."""
        return balance_progress(self._broker)

    def unready_reasons(self) -> list[str]:
        """Return why clients should not be sent here, nor the next broker be stopped."""
        if not self._broker.is_ready:
            return ["the broker is starting or stopping"]
        if not self._broker.config.is_broker:
            return []
        image = self._broker.metadata
        if self._behind is None or self._behind[0] is not image:
            self._behind = (image, why_behind(image, NodeId(self._broker.config.node_id)))
        return [self._behind[1]] if self._behind[1] else []

    def unhealthy_reasons(self) -> list[str]:
        """Return why this process should be restarted: never, if it can answer at all."""
        return []

    def apis(self) -> Iterator[ApiStatus]:
        """Yield the counters of each API."""
        for entry in self._broker.apis.values():
            metrics = entry.metrics
            yield ApiStatus(
                name=metrics.name,
                requests=metrics.requests,
                seconds_sum=metrics.seconds_sum,
                buckets=LATENCY_BUCKETS,
                bucket_counts=tuple(metrics.bucket_counts),
                errors={_error_name(code): count for code, count in metrics.errors.items()},
            )

    def network(self) -> NetworkStatus:
        """Return the counters of the network side."""
        metrics = self._broker.network_metrics
        return NetworkStatus(
            bytes_in=metrics.bytes_in,
            bytes_out=metrics.bytes_out,
            connections=metrics.connections,
            connections_opened=metrics.connections_opened,
            connections_refused=metrics.connections_refused,
            malformed_requests=metrics.malformed_requests,
            slow_readers_closed=metrics.slow_readers_closed,
            event_loop_delay_seconds=metrics.event_loop_delay_seconds,
            event_loop_delay_seconds_max=metrics.event_loop_delay_seconds_max,
            fetch_sessions=len(self._broker.fetch_sessions),
            descriptor_shortages=SHORTAGES.count,
        )

    async def refresh(self) -> None:
        """Ask for share groups' positions, and the ends of partitions without a replica here."""
        await self._shares.refresh()
        read = [(item.topic, item.partition, item.offset) for item in self._committed()]
        read += [
            (topic, index, item.start_offset)
            for (_, topic, index), item in self._shares.positions()
        ]
        await self._remote.refresh(
            (topic, index, offset)
            for topic, index, offset in read
            if self._local(topic, index) is None
        )

    def series_limits(self) -> SeriesLimits:
        """Return the bounds on series, from the settings."""
        values = self._broker.config.values
        return SeriesLimits(
            partitions_max=values["headrace.metrics.partitions.max"],
            topics_max=values["headrace.metrics.topics.max"],
            groups_max=values["headrace.metrics.groups.max"],
        )

    def replication(self) -> ReplicationStatus | None:
        """Return how the partitions led here have changed."""
        changes = self._broker.changes
        if not self._broker.config.is_broker:
            return None
        return ReplicationStatus(
            isr_shrinks=changes.isr_shrinks,
            isr_expands=changes.isr_expands,
            leader_elections=changes.leader_elections,
            unclean_leader_elections=changes.unclean_leader_elections,
        )

    def quorum(self) -> QuorumStatus | None:
        """Return the metadata quorum as this node sees it."""
        if not self._broker.is_composed:
            return None
        controller = self._broker.controller
        return QuorumStatus(
            leader=controller.leader,
            epoch=controller.epoch,
            applied_offset=controller.image.offset,
        )

    def controller(self) -> ControllerStatus | None:
        """Return the cluster's state, if this node is the active controller."""
        if not self._broker.is_composed or not self._broker.controller.is_active:
            return None
        image = self._broker.metadata
        if self._cluster is None or self._cluster[0] is not image:
            # Walking over all partitions is done once per image instead of at each scrape.
            self._cluster = image, controller_status(image)
        return self._cluster[1]

    def log_directories(self) -> Iterator[LogDirectoryStatus]:
        """Yield the log directories; one is offline from its first failed write."""
        for path in self._broker.config.log_directories:
            try:
                found = None if path in self._broker.directories.failed else os.statvfs(path)
            except OSError:
                found = None
            if found is None:
                yield LogDirectoryStatus(
                    path=str(path), is_online=False, free_bytes=None, total_bytes=None
                )
                continue
            directory = next((each for each in self._broker.directories if each.path == path), None)
            scrub = ScrubTotals() if directory is None else directory.scrub
            logs = () if directory is None else list(directory.logs.values())
            yield LogDirectoryStatus(
                path=str(path),
                is_online=True,
                free_bytes=found.f_bavail * found.f_frsize,
                total_bytes=found.f_blocks * found.f_frsize,
                scrub_bytes=scrub.checked_bytes,
                scrub_damage=scrub.damage,
                damaged_ranges=sum(len(log.damages) for log in logs if log.is_damaged),
            )

    def partitions(self) -> Iterator[PartitionStatus]:
        """Yield the partitions of this broker."""
        if not self._broker.is_composed:
            return
        topics = self._broker.metadata.topics
        for partition in self._broker.replicas:
            config = partition.log.config
            topic = topics.get(partition.topic)
            image = None if topic is None else topic.partitions.get(partition.index)
            # A replica that is being added is not missed, whatever it still has to copy.
            added = 0 if image is None else len(image.adding_replicas)
            ages = config.deletes and 0 <= config.retention_ms < INFINITE
            yield PartitionStatus(
                topic=partition.topic,
                partition=partition.index,
                leader=partition.leader,
                is_leader=partition.leader == partition.node_id,
                is_preferred_leader=partition.replicas[:1] == (partition.leader,),
                log_start_offset=partition.log.log_start_offset,
                high_watermark=partition.high_watermark,
                log_end_offset=partition.log.log_end_offset,
                size_bytes=partition.log.size_bytes,
                replicas=len(partition.replicas),
                in_sync_replicas=len(partition.in_sync_replicas),
                # With fewer replicas than min.insync.replicas a write needs all of them, not more.
                min_in_sync_replicas=min(partition.min_in_sync_replicas, len(partition.replicas)),
                is_under_replicated=len(partition.in_sync_replicas)
                < len(partition.replicas) - added,
                retention_seconds=config.retention_ms / 1000 if ages else None,
            )

    def group_lags(self) -> Iterator[GroupLag]:
        """Yield the lag of each group; partitions whose ends are unknown are left out."""
        now_ms = self._broker.clock.now_ms()
        seen: set[tuple[str, str, int]] = set()
        for item in self._committed():
            key = item.group_id, item.topic, item.partition
            partition = self._local(item.topic, item.partition)
            if partition is not None:
                ends: Ends | None = Ends(partition.log.log_start_offset, partition.high_watermark)
            else:
                ends = self._remote.ends(item.topic, item.partition)
            if ends is None:
                continue
            seen.add(key)
            offset = max(item.offset, ends.log_start_offset)
            lag = max(0, ends.high_watermark - offset)
            seconds: float | None = 0.0
            if lag:
                seconds = self._age(key, offset, now_ms)
            yield GroupLag(
                group=item.group_id,
                topic=item.topic,
                partition=item.partition,
                committed_offset=item.offset,
                lag_records=lag,
                lag_seconds=seconds,
                expired_records=offset - item.offset,
                commit_timestamp_seconds=item.commit_timestamp_ms / 1000,
            )
        shared = {key for key, _ in self._shares.positions()}
        for gone in self._next_timestamps.keys() - seen - shared:
            del self._next_timestamps[gone]

    def _committed(self) -> list[CommittedOffset]:
        """Return the offsets of this broker's groups whose topics exist."""
        if not self._broker.is_composed:
            return []
        topics = self._broker.metadata.topics
        return [
            item
            for item in self._broker.groups.groups_snapshot()
            if item.topic in topics and item.partition in topics[item.topic].partitions
        ]

    def _local(self, topic: str, index: int) -> Partition | None:
        """Return a local replica whose readable end is current: one that is in sync."""
        partition = self._broker.replicas.partitions_of(topic).get(index)
        if partition is None or partition.node_id not in partition.in_sync_replicas:
            return None
        return partition

    def group_states(self) -> Mapping[str, GroupStatus]:
        """Return the groups that this broker coordinates."""
        if not self._broker.is_composed:
            return {}
        return {
            group.group_id: GroupStatus(
                type=_kind(group), state=group.state.value, members=len(group.members)
            )
            for group in self._broker.groups.groups()
        }

    def share_lags(self) -> Iterator[ShareGroupLag]:
        """Yield the positions of share groups, as far as they are known."""
        now_ms = self._broker.clock.now_ms()
        for key, item in self._shares.positions():
            records = item.lag if item.lag >= 0 else None
            seconds = self._age(key, item.start_offset, now_ms) if records else None
            yield ShareGroupLag(
                group=key[0],
                topic=key[1],
                partition=key[2],
                start_offset=item.start_offset,
                lag_records=records,
                lag_seconds=0.0 if records == 0 else seconds,
            )

    def share_partitions(self) -> Iterator[SharePartitionStatus]:
        """Return the share partitions in use here."""
        for item in self._broker.shares.partitions.counts() if self._broker.is_composed else ():
            yield SharePartitionStatus(
                group=item.group_id,
                topic=item.topic,
                records_in_flight=item.in_flight,
            )

    def share_totals(self) -> Mapping[str, ShareTotalsStatus]:
        """Return the totals of share groups' records on this broker."""
        if not self._broker.is_composed:
            return {}
        return {
            group: ShareTotalsStatus(
                redelivered=item.redelivered,
                rejected=item.rejected,
                undeliverable=item.undeliverable,
                dead_lettered=item.dead_lettered,
                dead_letters_lost=item.dead_letters_lost,
            )
            for group, item in self._broker.shares.partitions.totals().items()
        }

    def _age(self, key: tuple[str, str, int], offset: int, now_ms: int) -> float | None:
        """Return how many seconds ago the record at an offset was written; None if not known."""
        _, topic, index = key
        partition = self._local(topic, index)
        if partition is None:
            ends = self._remote.ends(topic, index)
            offset = offset if ends is None else max(offset, ends.log_start_offset)
            written_ms = self._remote.timestamp(topic, index, offset)
        else:
            offset = max(offset, partition.log.log_start_offset)
            written_ms = self._written_ms(key, partition, offset)
        return None if written_ms is None else max(0.0, (now_ms - written_ms) / 1000)

    def _written_ms(
        self, key: tuple[str, str, int], partition: Partition, offset: int
    ) -> int | None:
        """Return when the record at an offset was written, or None if it has no timestamp."""
        known = self._next_timestamps.get(key)
        if known is None or known[0] != offset:
            batch = memoryview(partition.read(Offset(offset), 1, isolation=0, at_least_one=True))
            known = self._next_timestamps[key] = offset, timestamp_in(batch, offset)
        return known[1] if known[1] >= 0 else None


def controller_status(image: MetadataImage) -> ControllerStatus:
    """Return the description of a cluster."""
    every = [item for topic in image.topics.values() for item in topic.partitions.values()]
    return ControllerStatus(
        brokers_active=len(image.active_brokers()),
        brokers_fenced=sum(broker.fenced for broker in image.brokers.values()),
        partitions=len(every),
        offline_partitions=sum(item.leader == NO_LEADER for item in every),
        partitions_not_led_by_preferred=sum(item.leader != item.replicas[0] for item in every),
        reassigning_partitions=sum(
            bool(item.adding_replicas or item.removing_replicas) for item in every
        ),
        partitions_by_topic={name: len(topic.partitions) for name, topic in image.topics.items()},
    )


def _kind(group: Group | ConsumerGroup | ShareGroup) -> str:
    if isinstance(group, ShareGroup):
        return SHARE_GROUP_TYPE
    return CONSUMER_GROUP_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_GROUP_TYPE


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
