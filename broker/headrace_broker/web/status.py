"""The interface of a broker's status for the HTTP side: the `server` layer implements it.

Reading is cheap: everything is in memory, except that the age of a lagging group's next record
costs one read, and that `refresh` asks other brokers about partitions without a replica here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace_broker.web.planned_balance import Planner


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStatus:
    """Counters of one API since the start. `bucket_counts` has one more entry than `buckets`."""

    name: str
    requests: int
    seconds_sum: float
    buckets: tuple[float, ...]
    bucket_counts: tuple[int, ...]
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition on this broker. An end offset is that of the next record to be written.

    `min_in_sync_replicas` is what a write needs. `is_under_replicated` leaves out replicas that are
    being added. `retention_seconds` is None if nothing is removed by age.
    """

    topic: str
    partition: int
    leader: int
    is_leader: bool
    is_preferred_leader: bool
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    replicas: int
    in_sync_replicas: int
    min_in_sync_replicas: int
    is_under_replicated: bool
    retention_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind in one partition; seconds since the next record was written.

    `lag_seconds` is None while another broker, the leader, has not reported that record's time.
    `expired_records` were removed by retention before the group read them.
    """

    group: str
    topic: str
    partition: int
    committed_offset: int
    lag_records: int
    lag_seconds: float | None
    expired_records: int
    commit_timestamp_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group that this broker coordinates. `type`: classic, consumer or share."""

    type: str
    state: str
    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupLag:
    """A share group's position in a partition; this broker coordinates the group.

    `lag_records` from the start offset on are not finished; None if that is unknown. `lag_seconds`
    is the time since the record at the start offset was written, None as in GroupLag.
    """

    group: str
    topic: str
    partition: int
    start_offset: int
    lag_records: int | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionStatus:
    """A partition that this broker leads, as a share group reads it."""

    group: str
    topic: str
    records_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTotalsStatus:
    """Totals of a share group's records on this broker since its start."""

    redelivered: int
    rejected: int
    undeliverable: int
    dead_lettered: int
    dead_letters_lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatus:
    """Changes of the partitions that this broker leads, since its start.

    An election is counted by the new leader, so that sums over brokers are right.
    """

    isr_shrinks: int
    isr_expands: int
    leader_elections: int
    unclean_leader_elections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """The metadata quorum as this node sees it; `leader` is -1 if there is none."""

    leader: int
    epoch: int
    applied_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus:
    """The whole cluster as the active controller sees it.

    `partitions_by_topic` has the partitions of each topic.
    """

    brokers_active: int
    brokers_fenced: int
    partitions: int
    offline_partitions: int
    partitions_not_led_by_preferred: int
    reassigning_partitions: int
    partitions_by_topic: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryStatus:
    """One of `log.dirs`; bytes are those of its file system, None if it does not answer."""

    path: str
    is_online: bool
    free_bytes: int | None
    total_bytes: int | None
    scrub_bytes: int = 0
    scrub_damage: int = 0
    damaged_ranges: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLimits:
    """How many partitions, topics and groups may have separate series."""

    partitions_max: int
    topics_max: int
    groups_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStatus:
    """Totals of the network side; delays are in seconds."""

    bytes_in: int
    bytes_out: int
    connections: int
    connections_opened: int
    connections_refused: int
    malformed_requests: int
    slow_readers_closed: int
    event_loop_delay_seconds: float
    event_loop_delay_seconds_max: float
    fetch_sessions: int
    descriptor_shortages: int
    """Operations on files that failed because the process had no file descriptor left."""


class BrokerStatus(Planner, Protocol):
    """A broker as the HTTP side sees it."""

    def node_id(self) -> int:
        """Return this node's id."""
        ...

    def unready_reasons(self) -> list[str]:
        """Return why clients should not be sent here; empty when ready."""
        ...

    def unhealthy_reasons(self) -> list[str]:
        """Return why this process should be restarted; empty if healthy."""
        ...

    async def refresh(self) -> None:
        """Ask other leaders for what this broker's group lags need; bounded in time."""
        ...

    def series_limits(self) -> SeriesLimits:
        """Return the limits of series."""
        ...

    def replication(self) -> ReplicationStatus | None:
        """Return the changes of the partitions led here; None if this node is not a broker."""
        ...

    def quorum(self) -> QuorumStatus | None:
        """Return the metadata quorum as this node sees it; None before it takes part."""
        ...

    def controller(self) -> ControllerStatus | None:
        """Return the cluster's state on the active controller, else None."""
        ...

    def log_directories(self) -> Iterable[LogDirectoryStatus]:
        """Return the log directories."""
        ...

    def apis(self) -> Iterable[ApiStatus]:
        """Return the counters of each API."""
        ...

    def network(self) -> NetworkStatus:
        """Return the counters of the network side."""
        ...

    def partitions(self) -> Iterable[PartitionStatus]:
        """Return the partitions of this broker."""
        ...

    def group_lags(self) -> Iterable[GroupLag]:
        """Return the lag of each group that this broker coordinates."""
        ...

    def group_states(self) -> Mapping[str, GroupStatus]:
        """Return the groups that this broker coordinates."""
        ...

    def share_lags(self) -> Iterable[ShareGroupLag]:
        """Return the positions of the share groups that this broker coordinates."""
        ...

    def share_partitions(self) -> Iterable[SharePartitionStatus]:
        """Return the share partitions in use at this broker."""
        ...

    def share_totals(self) -> Mapping[str, ShareTotalsStatus]:
        """Return the totals of share groups' records on this broker, by group."""
        ...
