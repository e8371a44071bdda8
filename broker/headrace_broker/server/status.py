"""What the broker tells its HTTP side; lag is computed here, where group and log meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headrace_broker.protocol.batch import iterate_records, parse_batch_header
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.balance import plan_balance
from headrace_broker.server.metrics import LATENCY_BUCKETS
from headrace_broker.web.planned_balance import PlannedBalance
from headrace_broker.web.status import ApiStatus, GroupLag, NetworkStatus, PartitionStatus

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.partition import Partition


class ServerStatus:
    """Implements `web.status.BrokerStatus`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # (group, topic, partition) → (committed offset, timestamp of the record there): the record
        # at an offset never changes, so it is read once, not at every scrape.
        self._next_timestamps: dict[tuple[str, str, int], tuple[int, int]] = {}

    def node_id(self) -> int:
        """Return this node's id."""
        return self._broker.config.node_id

    def plan_balance(self, drain: NodeId | None) -> PlannedBalance:
        """Return what the balancer would do. Raises BrokerNotFoundError."""
        return plan_balance(self._broker, drain)

    def unready_reasons(self) -> list[str]:
        """Return why clients should not be sent here."""
        return [] if self._broker.is_ready else ["the broker is starting or stopping"]

    def unhealthy_reasons(self) -> list[str]:
        """Return why this process should be restarted: it answers at all, so there is none."""
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
        )

    def partitions(self) -> Iterator[PartitionStatus]:
        """Yield the partitions of this broker."""
        for partition in self._broker.replicas:
            yield PartitionStatus(
                topic=partition.topic,
                partition=partition.index,
                is_leader=partition.leader == partition.node_id,
                log_start_offset=partition.log.log_start_offset,
                high_watermark=partition.high_watermark,
                log_end_offset=partition.log.log_end_offset,
                size_bytes=partition.log.size_bytes,
                replicas=len(partition.replicas),
                in_sync_replicas=len(partition.in_sync_replicas),
                min_in_sync_replicas=partition.min_in_sync_replicas,
            )

    def group_lags(self) -> Iterator[GroupLag]:
        """Yield how far each group is behind; partitions that are gone are left out."""
        now_ms = self._broker.clock.now_ms()
        seen: set[tuple[str, str, int]] = set()
        for item in self._broker.groups.groups_snapshot():
            try:
                partition = self._broker.replicas.partition(item.topic, item.partition)
            except ApiError:
                continue
            key = item.group_id, item.topic, item.partition
            seen.add(key)
            lag = max(
                0, partition.high_watermark - max(item.offset, partition.log.log_start_offset)
            )
            yield GroupLag(
                group=item.group_id,
                topic=item.topic,
                partition=item.partition,
                committed_offset=item.offset,
                lag_records=lag,
                lag_seconds=self._age_seconds(key, partition, item.offset, now_ms) if lag else 0.0,
            )
        for gone in self._next_timestamps.keys() - seen:
            del self._next_timestamps[gone]

    def group_states(self) -> Mapping[str, tuple[str, int]]:
        """Return the state and the number of members by group."""
        return {
            group.group_id: (group.state.value, len(group.members))
            for group in self._broker.groups.groups()
        }

    def _age_seconds(
        self, key: tuple[str, str, int], partition: Partition, committed: int, now_ms: int
    ) -> float:
        offset = max(committed, partition.log.log_start_offset)
        known = self._next_timestamps.get(key)
        if known is None or known[0] != offset:
            known = offset, _timestamp_at(partition, offset)
            self._next_timestamps[key] = known
        return max(0.0, (now_ms - known[1]) / 1000) if known[1] >= 0 else 0.0


def _timestamp_at(partition: Partition, offset: int) -> int:
    """Return the timestamp, in ms, of the first record at or after `offset`, or -1."""
    batch = memoryview(partition.read(offset, 1, isolation=0, at_least_one=True))
    if not batch:
        return -1
    header = parse_batch_header(batch, 0)
    if header.base_offset >= offset:
        return header.base_timestamp
    for record in iterate_records(batch):
        if record.offset >= offset:
            return record.timestamp
    return header.max_timestamp


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
