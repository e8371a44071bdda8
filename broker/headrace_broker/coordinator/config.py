"""The limits and times of the group coordinator, under Kafka's names and defaults.

Some of Kafka's defaults are infinite (`group.max.size`), and some limits have no setting at all
(groups, pending members, sizes of what members send). Here they are finite, so that no client can
grow memory without bound.
"""

from dataclasses import dataclass, field
from enum import Enum

_MINUTE_MS = 60_000


class MigrationPolicy(Enum):
    """Which groups may change their protocol while members are in them (KIP-848)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in {MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL}

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in {MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConfig:
    """Settings of groups of the consumer protocol; the first two may be set for each group."""

    session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    size_max: int = 10_000  # group.consumer.max.size
    assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    # group.consumer.migration.policy
    regex_refresh_interval_ms: int = 10 * _MINUTE_MS  # group.consumer.regex.refresh.interval.ms
    topic_names_max: int = 10_000  # of one member
    regexes_max: int = 100  # different ones in one group


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """Settings of share groups' members; the first two may be set for each group."""

    session_timeout_ms: int = 45_000  # group.share.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # group.share.heartbeat.interval.ms
    size_max: int = 200  # group.share.max.size
    topic_names_max: int = 10_000  # of one member


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
    commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
    groups_max: int = 100_000  # headrace.max.groups
    pending_members_max: int = 1_000
    member_protocols_max: int = 64
    # Of all protocols. Kafka has no limit; Kafka Streams sends the state of each of its tasks.
    member_metadata_bytes_max: int = 4 * 1024 * 1024
    record_bytes_max: int = 900 * 1024  # below message.max.bytes; one record holds a whole group
    new_member_join_timeout_ms: int = 5 * _MINUTE_MS  # a constant in Kafka
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
    share: ShareGroupConfig = field(default_factory=ShareGroupConfig)
