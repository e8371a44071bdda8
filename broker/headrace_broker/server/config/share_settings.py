"""The settings of share groups and of their coordinator (KIP-932), under Kafka's names."""

from __future__ import annotations

from headrace_broker.metadata.settings.broker_settings import (
    DEAD_LETTER_AUTO_CREATE,
    DEAD_LETTER_PREFIX,
)
from headrace_broker.metadata.settings.resources import ConfigType
from headrace_broker.metadata.settings.setting_types import TopicNamePrefix
from headrace_broker.server.config.setting import Setting, flag_setting, int_setting, list_setting

SHARE_GROUPS = (
    int_setting(
        "group.share.session.timeout.ms",
        45000,
        "How long a member of a share group (KIP-932) may be silent; a group may set its own, "
        "share.session.timeout.ms.",
        low=1,
    ),
    int_setting(
        "group.share.min.session.timeout.ms", 45000, "The least that a group may set.", low=1
    ),
    int_setting(
        "group.share.max.session.timeout.ms", 60000, "The most that a group may set.", low=1
    ),
    int_setting(
        "group.share.heartbeat.interval.ms",
        5000,
        "How often such a member sends a heartbeat; a group may set its own, "
        "share.heartbeat.interval.ms.",
        low=1,
    ),
    int_setting(
        "group.share.min.heartbeat.interval.ms", 5000, "The least that a group may set.", low=1
    ),
    int_setting(
        "group.share.max.heartbeat.interval.ms", 15000, "The most that a group may set.", low=1
    ),
    int_setting(
        "group.share.max.size", 200, "The most members of a share group.", low=1, high=1000
    ),
    list_setting(
        "group.share.assignors",
        ["simple"],
        "The assignor of share groups.",
        allowed=("simple", "org.apache.kafka.coordinator.group.assignor.SimpleAssignor"),
    ),
    int_setting(
        "group.share.delivery.count.limit",
        5,
        "How often a record is delivered to a share group at most; then it is archived.",
        low=2,
        high=10,
    ),
    int_setting(
        "group.share.record.lock.duration.ms",
        30000,
        "How long a member of a share group has a record before another one gets it; a group may "
        "set its own, share.record.lock.duration.ms.",
        low=1000,
        high=3600000,
    ),
    int_setting(
        "group.share.min.record.lock.duration.ms",
        15000,
        "The least that a group may set.",
        low=1000,
        high=30000,
    ),
    int_setting(
        "group.share.max.record.lock.duration.ms",
        60000,
        "The most that a group may set.",
        low=30000,
        high=3600000,
    ),
    int_setting(
        "group.share.partition.max.record.locks",
        2000,
        "The most records of a partition in flight to one share group.",
        low=100,
        high=10000,
    ),
    int_setting(
        "group.share.max.share.sessions", 2000, "The most share sessions of this broker.", low=1
    ),
    int_setting(
        "share.coordinator.state.topic.num.partitions",
        50,
        "Partitions of __share_group_state.",
        low=1,
    ),
    int_setting(
        "share.coordinator.state.topic.replication.factor",
        3,
        "Replicas of __share_group_state.",
        low=1,
        high=32767,
    ),
    int_setting(
        "share.coordinator.state.topic.min.isr",
        2,
        "The least in-sync replicas of __share_group_state that an acknowledgement needs.",
        low=1,
        high=32767,
    ),
    int_setting(
        "share.coordinator.state.topic.segment.bytes",
        104857600,
        "Segment size of __share_group_state.",
        low=1048576,
    ),
    int_setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        "How many updates follow a snapshot of a share partition's state before the next one.",
        low=0,
    ),
    int_setting(
        "share.coordinator.write.timeout.ms",
        5000,
        "How long a write of __share_group_state may take.",
        low=1,
    ),
    int_setting(
        "share.coordinator.state.topic.prune.interval.ms",
        300000,
        "How often what nobody needs any more is deleted from __share_group_state.",
        low=1,
    ),
    int_setting(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        300000,
        "A share partition whose state is not written for so long gets a new snapshot.",
        low=1,
    ),
    Setting(
        name=DEAD_LETTER_PREFIX,
        type=ConfigType.STRING,
        default="dlq.",
        doc="What names of share groups' dead-letter topics must begin with (KIP-1191).",
        check=TopicNamePrefix(),
    ),
    flag_setting(
        DEAD_LETTER_AUTO_CREATE,
        "Whether a share group's dead-letter topic is made when its first record comes.",
        default=False,
    ),
)
