"""The operator accepts a setting exactly if a broker does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.metadata.settings import setting_types as broker_types
from headrace_broker.metadata.settings.kafka_names import (
    DYNAMIC_KAFKA_SETTINGS,
    FIXED_KAFKA_SETTINGS,
)
from headrace_broker.metadata.settings.resources import ConfigSource, ConfigType
from headrace_broker.metadata.settings.topic_config import ConfigLayer, validate_topic_config
from headrace_broker.metadata.settings.topic_settings import BROKER_SYNONYMS
from headrace_broker.metadata.settings.topic_settings import (
    TOPIC_SETTINGS as BROKERS_TOPIC_SETTINGS,
)
from headrace_broker.protocol.errors import ApiError
from headrace_broker.server.config.broker_config import ConfigError, has_no_meaning, parse_config
from headrace_broker.server.config.settings import BROKER_SETTINGS as BROKERS_OWN
from headrace_operator.plan import Desired, plan, status
from headrace_operator.plan.removal import COUNTED_SETTINGS
from headrace_operator.render.properties import default_settings, static_config
from headrace_operator.resources import Reason
from headrace_operator.resources.broker_settings import (
    BROKER_SETTINGS,
    LIVE_BROKER_SETTINGS,
    OWNED_BROKER_SETTINGS,
)
from headrace_operator.resources.ignored_settings import IGNORED_BROKER_SETTINGS
from headrace_operator.resources.setting_types import INT_MAX, LONG_MAX, Setting, SettingType
from headrace_operator.resources.topic_settings import TOPIC_SETTINGS
from headrace_operator.validation.settings import check_broker_settings, check_topic_settings
from support.operator_resources import broker, cluster, observed

ODD_TEXTS = (
    *("", " ", "1_000", "+5", "-0", "007", "1.5", "1e3", "0x10", "5 ", "٣", "1" * 19, "1" * 20),
    *("true", "TRUE", "yes", "nan", "inf", "0_0.5", ".5", "1.", "1e-3", "1e400", "1,2", ",", "*"),
    *(
        "gzip,lz4",
        "delete,delete",
        "compact, delete",
        "delete,",
        "0:1, 1:2",
        "0:1,",
        "0:1,*",
        "__x",
    ),
    *("dlq.", "a b", "x" * 200, "x" * 201),
)


def reasons(config):
    return [problem.reason for problem in check_broker_settings(config)]


def is_taken_by_a_broker(config):
    lines = "".join(f"{name}={value}\n" for name, value in config.items())
    try:
        parse_config(f"node.id=1\nlog.dirs=/data\n{lines}")
        live = {key: value for key, value in config.items() if key in LIVE_BROKER_SETTINGS}
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        validate_topic_config({}, [ConfigLayer(source=source, texts=live)])
    except (ConfigError, ApiError):
        return False
    return True


def is_taken_by_a_topic(config):
    try:
        validate_topic_config(config, [])
    except ApiError:
        return False
    return True


def texts_of(setting):
    """Draw values of every kind, most of them around the setting's bounds."""
    edges = {0, setting.low, setting.high, *setting.also, INT_MAX, -INT_MAX, LONG_MAX, -LONG_MAX}
    around = [each + step for each in edges if each is not None for step in (-2, -1, 0, 1, 2)]
    words = st.lists(st.sampled_from([*setting.words, "x"]), min_size=1, max_size=3)
    return st.one_of(
        st.sampled_from(around).map(str),
        st.integers(-(2**65), 2**65).map(str),
        st.sampled_from([*ODD_TEXTS, *setting.words]),
        words.map(",".join),
    )


def settings_of(table):
    name_of = st.sampled_from(sorted(table))
    return name_of.flatmap(lambda name: st.tuples(st.just(name), texts_of(table[name])))


def as_ours(broker_type, check, factor=1):
    """Return a setting of the broker's table as the operator's table has to have it."""
    if isinstance(check, broker_types.Bounds):
        low, high = check.low, check.high
        if factor != 1:
            # In another unit a number below zero is "no limit", and the type is the broker's.
            broker_type, low = ConfigType.INT, None if low is not None and low < 0 else low
        high = None if high in (INT_MAX, LONG_MAX) else high
        return Setting(type=SettingType[broker_type.name], low=low, high=high, also=check.also)
    kind = SettingType[broker_type.name]
    if isinstance(check, broker_types.OneOf):
        return Setting(type=kind, words=check.allowed, may_repeat=check.may_repeat)
    return Setting(type=kind)


def without_pattern(setting):
    return Setting(type=setting.type) if setting.pattern else setting


def test_the_table_of_broker_settings_is_the_brokers_own():
    expected = {name: as_ours(each.type, each.check) for name, each in BROKERS_OWN.items()}
    for name, (setting, synonym) in BROKER_SYNONYMS.items():
        expected[name] = as_ours(setting.type, setting.check, synonym.factor)
    assert expected.keys() >= OWNED_BROKER_SETTINGS
    kept = {name: each for name, each in expected.items() if name not in OWNED_BROKER_SETTINGS}
    assert {name: without_pattern(each) for name, each in BROKER_SETTINGS.items()} == kept


def test_the_table_of_topic_settings_is_the_brokers_own():
    expected = {
        name: as_ours(each.type, each.check) for name, each in BROKERS_TOPIC_SETTINGS.items()
    }
    assert {name: without_pattern(each) for name, each in TOPIC_SETTINGS.items()} == expected


def test_the_settings_without_effect_are_the_brokers_own():
    known = FIXED_KAFKA_SETTINGS | DYNAMIC_KAFKA_SETTINGS
    assert set(filter(has_no_meaning, known)) == IGNORED_BROKER_SETTINGS
    assert not IGNORED_BROKER_SETTINGS & BROKER_SETTINGS.keys()


@given(settings_of(BROKER_SETTINGS))
def test_a_value_is_accepted_exactly_if_a_broker_starts_with_it(setting):
    config = dict([setting])
    assert (not reasons(config)) == is_taken_by_a_broker(config), reasons(config)


@given(settings_of(TOPIC_SETTINGS))
def test_a_topics_value_is_accepted_exactly_if_a_broker_takes_it(setting):
    config = dict([setting])
    found = list(check_topic_settings(config))
    assert (not found) == is_taken_by_a_topic(config), found


def test_every_setting_is_held_against_the_broker_at_its_bounds():
    for name, setting in BROKER_SETTINGS.items():
        edges = [
            each for each in (0, setting.low, setting.high, INT_MAX, LONG_MAX) if each is not None
        ]
        values = [str(each + step) for each in edges for step in (-1, 0, 1)]
        for value in (*values, *ODD_TEXTS, *setting.words):
            config = {name: value}
            assert (not reasons(config)) == is_taken_by_a_broker(config), (name, value)


def test_a_refused_value_says_what_is_allowed():
    config = {
        "fetch.max.bytes": 0,
        "group.max.size": 0,
        "offsets.topic.replication.factor": 40000,
        "compression.gzip.level": 10,
        "num.partitions": "1_000",
        "log.segment.bytes": "9" * 20,
        "node.id": 7,
    }
    assert reasons(config) == [
        "0 is too small; at least 1024",
        "0 is too small; at least 1",
        "40000 is too large; at most 32767",
        "10 is too large; at most 9, or -1",
        "'1_000' is not an integer; Kafka's settings have no units",
        "'99999999999999999999' is not an integer; Kafka's settings have no units",
        "it follows from spec.pools and spec.listeners; leave it out",
    ]


def test_settings_that_contradict_each_other_are_refused():
    for least, most in ((1, 1), (1, 2), (2, 1)):
        lags = {"min.compaction.lag.ms": least, "max.compaction.lag.ms": str(most)}
        texts = {name: str(value) for name, value in lags.items()}
        assert (not list(check_topic_settings(lags))) == is_taken_by_a_topic(texts)
        defaults = {f"log.cleaner.{name}": value for name, value in texts.items()}
        assert (not reasons(defaults)) == is_taken_by_a_broker(defaults)


def test_what_the_brokers_file_gives_a_meaning_cannot_stand_in_a_text():
    for text in ("a\\", "a\nnode.id=7", "a\u2028b", "${env:NOPE}"):
        assert "no line breaks" in reasons({"replica.selector.class": text})[0]
    assert reasons({"replica.selector.class": "org.example.Outer$Inner"}) == []


def test_kafkas_settings_without_effect_are_accepted_and_said_and_reach_no_broker():
    config = {"num.io.threads": 8, "num.replica.fetchers": 2, "num.partitions": 3}
    assert reasons(config) == []
    known = cluster(config=config)
    assert static_config(known) == {"num.partitions": "3"}
    seen = observed(broker(config={"num.partitions": "3"}))
    planned = plan(seen, Desired(cluster=known))
    assert planned.actions == ()
    (problem,) = planned.problems
    assert (problem.reason, problem.is_stalling) == (Reason.SETTING_WITHOUT_EFFECT, False)
    conditions = {
        each.type: each for each in status(seen, Desired(cluster=known), planned)[known.key]
    }
    ready = conditions["Ready"]
    assert (ready.status, ready.reason) == ("True", "Reconciled")
    assert ready.message.endswith("brokers: num.io.threads, num.replica.fetchers")


def test_security_settings_are_not_accepted_without_effect():
    for name in ("authorizer.class.name", "sasl.enabled.mechanisms", "ssl.client.auth"):
        assert reasons({name: "x"}) == [
            "brokers do not offer this yet; it is not accepted without effect"
        ]


def test_who_comes_from_an_earlier_kafka_is_told_what_to_write():
    removed = {
        "inter.broker.protocol.version": "3.9",
        "log.message.format.version": "3.9",
        "log.message.timestamp.difference.max.ms": 5,
        "zookeeper.connect": "zk:2181",
    }
    for name, value in removed.items():
        assert not is_taken_by_a_broker({name: value})
    assert reasons(removed) == [
        "Kafka 4 has it no longer; write spec.features: metadata.version",
        "Kafka 4 has it no longer; leave it out",
        (
            "Kafka 4 has it no longer; write log.message.timestamp.before.max.ms and"
            " log.message.timestamp.after.max.ms"
        ),
        "Kafka 4 has it no longer; leave it out",
    ]
    (problem,) = check_topic_settings({"message.format.version": "2.8"})
    assert problem.reason == "Kafka 4 has it no longer; leave it out"


@pytest.mark.parametrize("brokers", range(1, 6))
def test_no_topic_of_the_clusters_own_needs_more_brokers_than_it_begins_with(brokers):
    """One broker can be away, too, where there is more than one."""
    own = {name: str(each.default) for name, each in BROKERS_OWN.items()} | {
        "min.insync.replicas": "1"
    }
    effective = own | default_settings(brokers)
    factors = {name for name in effective if name.endswith(".replication.factor")}
    in_sync = {name for name in effective if name.endswith((".min.isr", ".insync.replicas"))}
    assert len(factors) == 4
    assert len(in_sync) == 3
    for name in factors | in_sync:
        assert int(effective[name]) <= brokers - (brokers > 1 and name in in_sync), name
    assert factors | in_sync == set(COUNTED_SETTINGS)
