"""What the HTTP side needs to know of a broker: the `server` layer implements it.

Reading is cheap and never blocks: everything is in memory, except that the age of a lagging group's
next record costs one read.
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
    """One partition on this broker. An end offset is that of the next record to be written."""

    topic: str
    partition: int
    is_leader: bool
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    replicas: int
    in_sync_replicas: int
    min_in_sync_replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind in one partition; seconds since the next record was written."""

    group: str
    topic: str
    partition: int
    committed_offset: int
    lag_records: int
    lag_seconds: float


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


class BrokerStatus(Planner, Protocol):
    """A broker as the HTTP side sees it."""

    def node_id(self) -> int:
        """Return this node's id."""
        ...

    def unready_reasons(self) -> list[str]:
        """Return why clients should not be sent here; empty when ready."""
        ...

    def unhealthy_reasons(self) -> list[str]:
        """Return why this process should be restarted; empty when healthy."""
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

    def group_states(self) -> Mapping[str, tuple[str, int]]:
        """Return the state and the number of members by group."""
        ...
