"""The limits and times of the group coordinator, under Kafka's names and defaults.

Where Kafka's default is infinite (`group.max.size`) or there is no setting at all (groups, pending
members, sizes of what members send), ours is finite: nothing that a client can send grows memory
without bound.
"""

from dataclasses import dataclass

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of one broker's coordinator; each comment gives the property's name."""

    session_timeout_ms_min: int = 6_000  # group.min.session.timeout.ms
    session_timeout_ms_max: int = 30 * _MINUTE_MS  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    group_size_max: int = 10_000  # group.max.size
    offset_metadata_bytes_max: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS
    # offsets.retention.check.interval.ms
    offsets_topic_partitions: int = 50  # offsets.topic.num.partitions
    groups_max: int = 100_000  # headrace.max.groups
    pending_members_max: int = 1_000
    member_protocols_max: int = 64
    member_metadata_bytes_max: int = 256 * 1024
    record_bytes_max: int = 900 * 1024  # below message.max.bytes; one record holds a whole group
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS  # a constant in Kafka
