"""Kafka's topic settings: names, types, defaults, bounds, docs and broker synonyms, as one table.

The table is the documentation: DescribeConfigs prints it. It follows Apache Kafka 4.2's TopicConfig
and ServerTopicConfigSynonyms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace_broker.metadata.settings.resources import ConfigType
from headrace_broker.metadata.settings.setting_types import (
    LONG_MAX,
    Bounds,
    Check,
    OneOf,
    Synonym,
    ThrottledReplicas,
    hours,
    minutes,
    parse_value,
)

_INT, _LONG = ConfigType.INT, ConfigType.LONG
_DOUBLE, _STRING, _LIST = ConfigType.DOUBLE, ConfigType.STRING, ConfigType.LIST

_NOT_NEGATIVE = Bounds(low=0)
_POSITIVE = Bounds(low=1)
_OR_UNLIMITED = Bounds(low=-1)
_OR_INHERITED = Bounds(low=-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """One setting of a topic."""

    name: str
    type: ConfigType
    default: Any
    doc: str
    check: Check | None = None
    synonyms: tuple[Synonym, ...] = ()

    def parse(self, text: str) -> Any:
        """Return the typed value of `text`; raise ValueError saying what is allowed."""
        value = parse_value(text, self.type)
        if self.check is not None:
            self.check.check(value)
        return value


def _setting(
    name: str, config_type: ConfigType, default: Any, doc: str, check: Check | None = None
) -> TopicSetting:
    return TopicSetting(name=name, type=config_type, default=default, doc=doc, check=check)


def _flag(name: str, doc: str) -> TopicSetting:
    """Return a boolean setting that is off by default, as all of Kafka's are."""
    return TopicSetting(name=name, type=ConfigType.BOOLEAN, default=False, doc=doc)


_TABLE = (
    _setting(
        "cleanup.policy",
        _LIST,
        ["delete"],
        "What happens to old segments: delete drops them past the retention limits, compact keeps "
        "the last record of each key, both do both, and an empty list keeps everything.",
        OneOf(("compact", "delete"), may_repeat=True),  # as in Kafka
    ),
    _setting(
        "compression.gzip.level",
        _INT,
        -1,
        "The level where compression.type is gzip; -1 is the codec's own default.",
        Bounds(low=1, high=9, also=(-1,)),
    ),
    _setting(
        "compression.lz4.level",
        _INT,
        9,
        "The level where compression.type is lz4.",
        Bounds(low=1, high=17),
    ),
    _setting(
        "compression.type",
        _STRING,
        "producer",
        "How batches are stored: as the producer sent them (producer), or in this codec.",
        OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    ),
    _setting(
        "compression.zstd.level",
        _INT,
        3,
        "The level where compression.type is zstd.",
        Bounds(low=-131072, high=22),
    ),
    _setting(
        "delete.retention.ms",
        _LONG,
        86_400_000,
        "How long a compacted topic keeps tombstones; a reader from offset 0 must be done by then. "
        "While a replica is not in sync they are kept for longer: without them it would keep what "
        "they delete.",
        _NOT_NEGATIVE,
    ),
    _flag(
        "errors.deadletterqueue.group.enable",
        "Whether groups may have the topic as their dead-letter topic (KIP-1191).",
    ),
    _setting(
        "file.delete.delay.ms",
        _LONG,
        60_000,
        "How long a dropped segment's files stay before they are removed.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "After so many records the log is fsynced; by default replication gives durability.",
        _POSITIVE,
    ),
    _setting(
        "flush.ms",
        _LONG,
        LONG_MAX,
        "The longest that a record waits to be fsynced.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "follower.replication.throttled.replicas",
        _LIST,
        [],
        "Replicas whose followers are throttled: partition:broker,… or * for all.",
        ThrottledReplicas(),
    ),
    _setting(
        "index.interval.bytes",
        _INT,
        4096,
        "How many bytes of log lie between two entries of the offset index.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "leader.replication.throttled.replicas",
        _LIST,
        [],
        "Replicas whose leaders are throttled: partition:broker,… or * for all.",
        ThrottledReplicas(),
    ),
    _setting(
        "local.retention.bytes",
        _LONG,
        -2,
        "With tiered storage, the size that stays on the broker; -2 takes retention.bytes.",
        _OR_INHERITED,
    ),
    _setting(
        "local.retention.ms",
        _LONG,
        -2,
        "With tiered storage, how long data stays on the broker; -2 takes retention.ms.",
        _OR_INHERITED,
    ),
    _setting(
        "max.compaction.lag.ms",
        _LONG,
        LONG_MAX,
        "The longest that a record of a compacted topic stays out of compaction.",
        _POSITIVE,
    ),
    _setting(
        "max.message.bytes",
        _INT,
        1_048_588,
        "The largest record batch that is taken, as it arrives, compressed or not.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "message.timestamp.after.max.ms",
        _LONG,
        3_600_000,
        "With CreateTime, how far a record's timestamp may lie after the broker's clock.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "With CreateTime, how far a record's timestamp may lie before the broker's clock.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "message.timestamp.type",
        _STRING,
        "CreateTime",
        "Whose clock a record's timestamp is: the producer's (CreateTime) or the broker's.",
        OneOf(("CreateTime", "LogAppendTime")),
    ),
    _setting(
        "min.cleanable.dirty.ratio",
        _DOUBLE,
        0.5,
        "The share of a compacted log that must be dirty before it is compacted again.",
        Bounds(low=0, high=1),
    ),
    _setting(
        "min.compaction.lag.ms",
        _LONG,
        0,
        "The least time that a record of a compacted topic stays as it is.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "min.insync.replicas",
        _INT,
        1,
        "How many replicas must be in sync for a write with acks=all to be taken.",
        _POSITIVE,
    ),
    _flag("preallocate", "Whether a new segment's file gets its size at once."),
    _flag(
        "remote.log.copy.disable",
        "With tiered storage, whether no more segments are uploaded.",
    ),
    _flag(
        "remote.log.delete.on.disable",
        "Whether remote data is deleted when tiered storage is turned off for the topic.",
    ),
    _flag(
        "remote.storage.enable",
        "Whether the topic uses tiered storage, which this broker does not have.",
    ),
    _setting(
        "retention.bytes",
        _LONG,
        -1,
        "The size of a partition above which delete drops its oldest segments; -1 is no limit.",
        _OR_UNLIMITED,
    ),
    _setting(
        "retention.ms",
        _LONG,
        604_800_000,
        "The age past which delete drops segments; -1 is no limit.",
        _OR_UNLIMITED,
    ),
    _setting(
        "segment.bytes",
        _INT,
        1_073_741_824,
        "The size of one segment's file; retention and compaction work on whole segments.",
        Bounds(low=1_048_576),
    ),
    _setting(
        "segment.index.bytes",
        _INT,
        10_485_760,
        "The most bytes of one segment's index.",
        Bounds(low=4),
    ),
    _setting(
        "segment.jitter.ms",
        _LONG,
        0,
        "The most that is randomly taken off segment.ms, so that segments do not roll at once.",
        _NOT_NEGATIVE,
    ),
    _setting(
        "segment.ms",
        _LONG,
        604_800_000,
        "The age at which a segment is closed though it is not full.",
        _POSITIVE,
    ),
    _flag(
        "unclean.leader.election.enable",
        "Whether a replica that is out of sync may lead as a last resort, losing records.",
    ),
)


def _named(*names: str) -> tuple[Synonym, ...]:
    return tuple(Synonym(name=name) for name in names)


# The broker settings behind each topic setting, the strongest first (ServerTopicConfigSynonyms).
_SYNONYMS: Mapping[str, tuple[Synonym, ...]] = {
    "cleanup.policy": _named("log.cleanup.policy"),
    "compression.gzip.level": _named("compression.gzip.level"),
    "compression.lz4.level": _named("compression.lz4.level"),
    "compression.type": _named("compression.type"),
    "compression.zstd.level": _named("compression.zstd.level"),
    "delete.retention.ms": _named("log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": _named("log.segment.delete.delay.ms"),
    "flush.messages": _named("log.flush.interval.messages"),
    "flush.ms": _named("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "index.interval.bytes": _named("log.index.interval.bytes"),
    "local.retention.bytes": _named("log.local.retention.bytes"),
    "local.retention.ms": _named("log.local.retention.ms"),
    "max.compaction.lag.ms": _named("log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": _named("message.max.bytes"),
    "message.timestamp.after.max.ms": _named("log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": _named("log.message.timestamp.before.max.ms"),
    "message.timestamp.type": _named("log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": _named("log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": _named("log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": _named("min.insync.replicas"),
    "preallocate": _named("log.preallocate"),
    "retention.bytes": _named("log.retention.bytes"),
    "retention.ms": (
        *_named("log.retention.ms"),
        minutes("log.retention.minutes"),
        hours("log.retention.hours"),
    ),
    "segment.bytes": _named("log.segment.bytes"),
    "segment.index.bytes": _named("log.index.size.max.bytes"),
    "segment.jitter.ms": (*_named("log.roll.jitter.ms"), hours("log.roll.jitter.hours")),
    "segment.ms": (*_named("log.roll.ms"), hours("log.roll.hours")),
    "unclean.leader.election.enable": _named("unclean.leader.election.enable"),
}

#: Every topic setting by name.
TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    setting.name: replace(setting, synonyms=_SYNONYMS.get(setting.name, ())) for setting in _TABLE
}

#: The topic setting and the synonym behind each broker setting that gives topics a default.
BROKER_SYNONYMS: Mapping[str, tuple[TopicSetting, Synonym]] = {
    synonym.name: (setting, synonym)
    for setting in TOPIC_SETTINGS.values()
    for synonym in setting.synonyms
}
