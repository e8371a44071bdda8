"""The topic settings of Kafka 4.2, and 4.4's for dead letters: the accepted values of each.

The broker's own table is authoritative and must not be imported here: a test compares the two.
"""

from __future__ import annotations

from headrace_operator.resources.setting_types import (
    FLAG,
    Setting,
    SettingType,
    double_of,
    int_of,
    list_of,
    long_of,
    one_of,
)

#: Nothing, all replicas, or partition:broker pairs.
THROTTLED_REPLICAS = Setting(
    type=SettingType.LIST, pattern=r"|\*|[0-9]+:[0-9]+(\s*,\s*[0-9]+:[0-9]+)*"
)

TOPIC_SETTINGS: dict[str, Setting] = {
    "cleanup.policy": list_of("compact", "delete", may_repeat=True),
    "compression.gzip.level": int_of(1, 9, also=(-1,)),
    "compression.lz4.level": int_of(1, 17),
    "compression.type": one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": int_of(-131_072, 22),
    "delete.retention.ms": long_of(0),
    "errors.deadletterqueue.group.enable": FLAG,
    "file.delete.delay.ms": long_of(0),
    "flush.messages": long_of(1),
    "flush.ms": long_of(0),
    "follower.replication.throttled.replicas": THROTTLED_REPLICAS,
    "index.interval.bytes": int_of(0),
    "leader.replication.throttled.replicas": THROTTLED_REPLICAS,
    "local.retention.bytes": long_of(-2),
    "local.retention.ms": long_of(-2),
    "max.compaction.lag.ms": long_of(1),
    "max.message.bytes": int_of(0),
    "message.timestamp.after.max.ms": long_of(0),
    "message.timestamp.before.max.ms": long_of(0),
    "message.timestamp.type": one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": double_of(0, 1),
    "min.compaction.lag.ms": long_of(0),
    "min.insync.replicas": int_of(1),
    "preallocate": FLAG,
    "remote.log.copy.disable": FLAG,
    "remote.log.delete.on.disable": FLAG,
    "remote.storage.enable": FLAG,
    "retention.bytes": long_of(-1),
    "retention.ms": long_of(-1),
    "segment.bytes": int_of(1_048_576),
    "segment.index.bytes": int_of(4),
    "segment.jitter.ms": long_of(0),
    "segment.ms": long_of(1),
    "unclean.leader.election.enable": FLAG,
}
