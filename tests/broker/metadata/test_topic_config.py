"""Topic settings: what they accept, where their value comes from."""

import pytest

from headrace_broker.metadata.settings.broker_settings import DYNAMIC_BROKER_SETTINGS
from headrace_broker.metadata.settings.resources import ConfigSource
from headrace_broker.metadata.settings.topic_config import (
    ConfigLayer,
    broker_topic_settings,
    effective_topic_config,
    validate_topic_config,
)
from headrace_broker.metadata.settings.topic_settings import TOPIC_SETTINGS
from headrace_broker.protocol.errors import ApiError, ErrorCode

# What Apache Kafka 4.2.1's LogConfig says, without its internal settings.
KAFKAS_DEFAULTS = {
    "cleanup.policy": ["delete"],
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "delete.retention.ms": 86400000,
    "file.delete.delay.ms": 60000,
    "flush.messages": 9223372036854775807,
    "flush.ms": 9223372036854775807,
    "follower.replication.throttled.replicas": [],
    "index.interval.bytes": 4096,
    "leader.replication.throttled.replicas": [],
    "local.retention.bytes": -2,
    "local.retention.ms": -2,
    "max.compaction.lag.ms": 9223372036854775807,
    "max.message.bytes": 1048588,
    "message.timestamp.after.max.ms": 3600000,
    "message.timestamp.before.max.ms": 9223372036854775807,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": 1,
    "preallocate": False,
    "remote.log.copy.disable": False,
    "remote.log.delete.on.disable": False,
    "remote.storage.enable": False,
    "retention.bytes": -1,
    "retention.ms": 604800000,
    "segment.bytes": 1073741824,
    "segment.index.bytes": 10485760,
    "segment.jitter.ms": 0,
    "segment.ms": 604800000,
    "unclean.leader.election.enable": False,
}


def _static(**texts):
    named = {name.replace("_", "."): text for name, text in texts.items()}
    return [ConfigLayer(source=ConfigSource.STATIC_BROKER_CONFIG, texts=named)]


def test_every_setting_of_kafka_exists_with_its_default():
    later = {"errors.deadletterqueue.group.enable": False}  # Kafka 4.4 (KIP-1191)
    assert effective_topic_config({}, []) == KAFKAS_DEFAULTS | later


def test_every_setting_accepts_its_own_default_and_says_what_it_means():
    for setting in TOPIC_SETTINGS.values():
        assert setting.doc.endswith(".")
        if setting.check is not None:
            setting.check.check(setting.default)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("retention.ms", "soon", "Not a number of type LONG"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "1_000", "Not a number"),
        ("retention.ms", "٣", "Not a number"),
        ("retention.ms", "9223372036854775808", "Not a number"),
        ("max.message.bytes", "2147483648", "Not a number of type INT"),
        ("cleanup.policy", "shrink", "compact, delete"),
        ("compression.type", "zip", "zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "at least 1, or -1"),
        ("compression.gzip.level", "10", "no more than 9"),
        ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "DOUBLE"),
        ("min.cleanable.dirty.ratio", "0_0.5", "DOUBLE"),
        ("min.insync.replicas", "0", "at least 1"),
        ("preallocate", "yes", "true or false"),
        ("segment.bytes", "14", "at least 1048576"),
        ("leader.replication.throttled.replicas", "1-2", "partition:broker"),
        ("remote.storage.enable", "true", "tiered storage"),
        ("no.such.setting", "1", "Unknown topic config name: no.such.setting"),
        ("leader.replication.throttled.replicas", "1:1," * 9000, "32767"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name, text, says):
    with pytest.raises(ApiError) as refused:
        validate_topic_config({name: text}, [])
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert name in refused.value.message
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", " compact , delete ", ["compact", "delete"]),
        ("cleanup.policy", "", []),
        ("preallocate", "TRUE", True),
        ("retention.ms", " -1 ", -1),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("follower.replication.throttled.replicas", "*", ["*"]),
        ("follower.replication.throttled.replicas", "0:1,1:2", ["0:1", "1:2"]),
        ("compression.gzip.level", "-1", -1),
    ],
)
def test_text_is_read_as_kafka_reads_it(name, text, value):
    validate_topic_config({name: text}, [])
    assert effective_topic_config({name: text}, [])[name] == value


def test_compaction_lags_may_not_cross_even_over_layers():
    layers = _static(log_cleaner_max_compaction_lag_ms="5")
    with pytest.raises(
        ApiError, match=r"min.compaction.lag.ms \(9\) > max.compaction.lag.ms \(5\)"
    ):
        validate_topic_config({"min.compaction.lag.ms": "9"}, layers)


def test_hours_and_minutes_become_milliseconds_and_the_finest_unit_wins():
    def retention(**texts):
        return effective_topic_config({}, _static(**texts))["retention.ms"]

    assert retention(log_retention_hours="2") == 7_200_000
    assert retention(log_retention_hours="2", log_retention_minutes="1") == 60_000
    assert retention(log_retention_hours="2", log_retention_ms="7") == 7
    assert retention(log_retention_hours="-1") == -1


def test_a_stronger_layer_wins_over_a_weaker_one_of_the_same_name():
    dynamic = ConfigLayer(
        source=ConfigSource.DYNAMIC_BROKER_CONFIG, texts={"log.retention.ms": "1"}
    )
    layers = [dynamic, *_static(log_retention_ms="2")]
    assert effective_topic_config({}, layers)["retention.ms"] == 1
    assert effective_topic_config({"retention.ms": "3"}, layers)["retention.ms"] == 3


def test_a_brokers_file_is_checked_by_the_topic_settings_rules():
    parsers = broker_topic_settings()
    assert parsers["log.retention.hours"]("-1") == -1
    assert parsers["log.cleanup.policy"]("compact") == ["compact"]
    for name, text in {"log.retention.hours": "x", "log.segment.bytes": "1"}.items():
        with pytest.raises(ValueError, match=r"at least|Not a number"):
            parsers[name](text)


def test_what_can_change_while_a_broker_runs_is_in_kafkas_list():
    assert {"log.retention.ms", "message.max.bytes", "min.insync.replicas"} < set(
        DYNAMIC_BROKER_SETTINGS
    )
    assert "log.retention.hours" not in DYNAMIC_BROKER_SETTINGS
