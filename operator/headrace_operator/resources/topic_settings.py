"""The topic settings of Kafka 4.2, and 4.4's for dead letters: the type of each value."""

from __future__ import annotations

from enum import Enum, auto


class SettingType(Enum):
    """Types of values without a fixed list of words."""

    INTEGER = auto()
    FRACTION = auto()
    BOOLEAN = auto()
    TEXT = auto()


#: A tuple lists the accepted words.
TOPIC_SETTINGS: dict[str, SettingType | tuple[str, ...]] = {
    "cleanup.policy": ("compact", "delete"),
    "compression.gzip.level": SettingType.INTEGER,
    "compression.lz4.level": SettingType.INTEGER,
    "compression.type": ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": SettingType.INTEGER,
    "delete.retention.ms": SettingType.INTEGER,
    "errors.deadletterqueue.group.enable": SettingType.BOOLEAN,
    "file.delete.delay.ms": SettingType.INTEGER,
    "flush.messages": SettingType.INTEGER,
    "flush.ms": SettingType.INTEGER,
    "follower.replication.throttled.replicas": SettingType.TEXT,
    "index.interval.bytes": SettingType.INTEGER,
    "leader.replication.throttled.replicas": SettingType.TEXT,
    "local.retention.bytes": SettingType.INTEGER,
    "local.retention.ms": SettingType.INTEGER,
    "max.compaction.lag.ms": SettingType.INTEGER,
    "max.message.bytes": SettingType.INTEGER,
    "message.timestamp.after.max.ms": SettingType.INTEGER,
    "message.timestamp.before.max.ms": SettingType.INTEGER,
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": SettingType.FRACTION,
    "min.compaction.lag.ms": SettingType.INTEGER,
    "min.insync.replicas": SettingType.INTEGER,
    "preallocate": SettingType.BOOLEAN,
    "remote.log.copy.disable": SettingType.BOOLEAN,
    "remote.log.delete.on.disable": SettingType.BOOLEAN,
    "remote.storage.enable": SettingType.BOOLEAN,
    "retention.bytes": SettingType.INTEGER,
    "retention.ms": SettingType.INTEGER,
    "segment.bytes": SettingType.INTEGER,
    "segment.index.bytes": SettingType.INTEGER,
    "segment.jitter.ms": SettingType.INTEGER,
    "segment.ms": SettingType.INTEGER,
    "unclean.leader.election.enable": SettingType.BOOLEAN,
}
