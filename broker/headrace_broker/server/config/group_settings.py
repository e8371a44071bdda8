"""The settings of the group coordinator."""

from __future__ import annotations

from headrace_broker.server.config.setting import (
    Setting,
    int_setting,
    list_setting,
    long_setting,
    one_of_setting,
)


def _times(
    kind: str, name: str, default: int, bounds: tuple[int, int], doc: str
) -> tuple[Setting, ...]:
    """Return a time setting of `kind`'s groups, and the bounds for a group's own value."""
    low, high = bounds
    return (
        int_setting(
            f"group.{kind}.{name}",
            default,
            f"{doc}; a group may set its own, {kind}.{name}.",
            low=1,
        ),
        int_setting(f"group.{kind}.min.{name}", low, "The least that a group may set.", low=1),
        int_setting(f"group.{kind}.max.{name}", high, "The most that a group may set.", low=1),
    )


GROUPS = (
    int_setting("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", low=1),
    int_setting(
        "offsets.topic.replication.factor", 3, "Replicas of __consumer_offsets.", low=1, high=32767
    ),
    int_setting(
        "offsets.topic.segment.bytes", 104857600, "Segment size of __consumer_offsets.", low=1048576
    ),
    int_setting(
        "offsets.retention.minutes", 10080, "How long an empty group keeps its offsets.", low=1
    ),
    long_setting("offsets.retention.check.interval.ms", 600000, "How often offsets expire.", low=1),
    int_setting(
        "offset.metadata.max.bytes", 4096, "The most metadata of one committed offset.", low=0
    ),
    int_setting(
        "offsets.commit.timeout.ms",
        5000,
        "How long what a group or a transactional id has written may take to be committed.",
        low=1,
    ),
    int_setting("group.min.session.timeout.ms", 6000, "The least session timeout.", low=1),
    int_setting("group.max.session.timeout.ms", 1800000, "The greatest session timeout.", low=1),
    int_setting(
        "group.initial.rebalance.delay.ms", 3000, "How long a new group waits for members.", low=0
    ),
    int_setting("group.max.size", 10000, "The most members of one group.", low=1),
    int_setting("headrace.max.groups", 100000, "The most groups of this broker.", low=1),
    *_times(
        "consumer",
        "session.timeout.ms",
        45000,
        (45000, 60000),
        "How long a member of the consumer protocol (KIP-848) may be silent",
    ),
    *_times(
        "consumer",
        "heartbeat.interval.ms",
        5000,
        (5000, 15000),
        "How often such a member sends a heartbeat",
    ),
    # Kafka's default is unlimited.
    int_setting("group.consumer.max.size", 10000, "The most members of such a group.", low=1),
    list_setting(
        "group.consumer.assignors",
        ["uniform", "range"],
        "Assignors that members may ask for, the first where none does.",
        allowed=(
            "uniform",
            "range",
            "org.apache.kafka.coordinator.group.assignor.UniformAssignor",
            "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        ),
    ),
    one_of_setting(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which groups may change their protocol while members are in them.",
        ("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    int_setting(
        "group.consumer.regex.refresh.interval.ms",
        600000,
        "How often the topics of a regular expression are looked up again, at least; new topics "
        "are seen within ten seconds.",
        low=10000,
    ),
)
