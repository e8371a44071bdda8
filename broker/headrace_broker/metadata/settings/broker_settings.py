"""A broker's own settings for the metadata layer, which describes and alters them.

The server has the table of the process's settings, and passes it in. This module has the settings
that may change at runtime: the defaults of topics, which every broker takes from the image (Kafka's
DynamicLogConfig), and those that only the cluster has (`CLUSTER_SETTINGS`). All others are
read-only until a restart.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_broker.metadata.settings.resources import ConfigType
from headrace_broker.metadata.settings.setting_types import LONG_MAX, Synonym
from headrace_broker.metadata.settings.topic_settings import (
    BROKER_SYNONYMS,
    TOPIC_SETTINGS,
    TopicSetting,
)
from headrace_broker.protocol.types import NodeId

_SENSITIVE = re.compile(
    r"password|secret|jaas\.config|credential|keystore\.key$|truststore\.certificates$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting of the broker, for DescribeConfigs."""

    name: str
    type: ConfigType
    default: Any
    doc: str


def _throttle(name: str, what: str) -> BrokerSetting:
    doc = f"Bytes per second for {what}, of the replicas that the topic's setting names."
    return BrokerSetting(name=name, type=ConfigType.LONG, default=LONG_MAX, doc=doc)


#: Settings that only the cluster has, not a file (Kafka's QuotaConfig): the throttles of moves.
REPLICATION_THROTTLES: Mapping[str, BrokerSetting] = {
    setting.name: setting
    for setting in (
        _throttle("follower.replication.throttled.rate", "what followers fetch"),
        _throttle("leader.replication.throttled.rate", "what leaders send to followers"),
        _throttle("replica.alter.log.dirs.io.max.bytes.per.second", "moves between directories"),
    )
}

CORDONED_LOG_DIRS = "cordoned.log.dirs"

_CORDON = BrokerSetting(
    name=CORDONED_LOG_DIRS,
    type=ConfigType.LIST,
    default=[],
    doc="With * the broker gets no new replicas, with paths those log directories get none; what "
    "is there stays (KIP-1066). Of one broker only.",
)

#: The brokers that an operator has cordoned, so that it uncordons only these. Cluster-wide only.
DRAINED_BROKERS = "headrace.drain.brokers"

_DRAINED = BrokerSetting(
    name=DRAINED_BROKERS,
    type=ConfigType.LIST,
    default=[],
    doc="Brokers that the operator cordoned to drain them; it uncordons no others.",
)

#: The throttle for copies to new replicas, by any client's request. Cluster-wide only.
MOVES_THROTTLE = "headrace.moves.throttle"

_MOVES_THROTTLE = BrokerSetting(
    name=MOVES_THROTTLE,
    type=ConfigType.LONG,
    default=LONG_MAX,
    doc="Bytes per second that each broker sends and receives for replicas that are being added, "
    "whoever asked for them. The operator sets it for its own moves and takes it back.",
)

#: The plan that the controller carries out (`balance_settings`). Cluster-wide only.
BALANCE_PLAN = "headrace.balance.plan"
BALANCE_STATE = "headrace.balance.state"
BALANCE_THROTTLE = "headrace.balance.throttle"
BALANCE_CONCURRENT_MOVES = "headrace.balance.concurrent.moves"
BALANCE_LAST = "headrace.balance.last"
#: One piece of the plan's moves; a number from 0 follows.
BALANCE_MOVES_PREFIX = "headrace.balance.moves."
BALANCE_CONCURRENT_MOVES_DEFAULT = 20

BALANCE_SETTINGS: Mapping[str, BrokerSetting] = {
    setting.name: setting
    for setting in (
        BrokerSetting(
            name=BALANCE_PLAN,
            type=ConfigType.STRING,
            default=None,
            doc="Hash of the plan of moves that the controller carries out.",
        ),
        BrokerSetting(
            name=BALANCE_STATE,
            type=ConfigType.STRING,
            default=None,
            doc="running, paused or cancelled: what becomes of the plan.",
        ),
        BrokerSetting(
            name=BALANCE_THROTTLE,
            type=ConfigType.LONG,
            default=LONG_MAX,
            doc="Bytes per second that each broker sends and receives for the plan's moves.",
        ),
        BrokerSetting(
            name=BALANCE_CONCURRENT_MOVES,
            type=ConfigType.INT,
            default=BALANCE_CONCURRENT_MOVES_DEFAULT,
            doc="Partitions of the plan whose replicas are copied at the same time.",
        ),
        BrokerSetting(
            name=BALANCE_LAST,
            type=ConfigType.STRING,
            default=None,
            doc="What became of the last plan; the controller writes it.",
        ),
    )
}

#: Settings that are only in the cluster's metadata, not in a file.
CLUSTER_SETTINGS: Mapping[str, BrokerSetting] = {
    **REPLICATION_THROTTLES,
    CORDONED_LOG_DIRS: _CORDON,
    DRAINED_BROKERS: _DRAINED,
    MOVES_THROTTLE: _MOVES_THROTTLE,
    **BALANCE_SETTINGS,
}

#: Where share groups' dead letters may go (KIP-1191). In the file or cluster-wide.
DEAD_LETTER_PREFIX = "errors.deadletterqueue.topic.name.prefix"
DEAD_LETTER_AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"

#: Settings that a running process takes from the metadata.
LIVE_SETTINGS: Mapping[str, ConfigType] = {
    "log.cleaner.backoff.ms": ConfigType.LONG,
    "max.connections": ConfigType.LONG,
    "max.connections.per.ip": ConfigType.LONG,
    "producer.id.expiration.ms": ConfigType.LONG,
    DEAD_LETTER_PREFIX: ConfigType.STRING,
    DEAD_LETTER_AUTO_CREATE: ConfigType.BOOLEAN,
}

#: Broker settings that may change without a restart: the first synonym of each topic setting, those
#: of the cluster's metadata, and those that a running process takes from there.
DYNAMIC_BROKER_SETTINGS = (
    frozenset(CLUSTER_SETTINGS)
    | frozenset(setting.synonyms[0].name for setting in TOPIC_SETTINGS.values() if setting.synonyms)
    | frozenset(LIVE_SETTINGS)
)


def kept_setting(name: str) -> BrokerSetting:
    """Return the description of a setting that is stored and has no effect."""
    return BrokerSetting(
        name=name,
        type=ConfigType.STRING,
        default=None,
        doc="Kept as it was set; it means nothing in this broker.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker: its id, its file's texts, and the settings that its process has."""

    node_id: NodeId
    static: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, BrokerSetting] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    """The typed value of every setting in the file, for checks against it."""

    def all(self) -> dict[str, BrokerSetting]:
        """Return every setting by name, including the topics' defaults."""
        topics = {
            name: _as_broker_setting(setting, synonym)
            for name, (setting, synonym) in BROKER_SYNONYMS.items()
        }
        return {**topics, **CLUSTER_SETTINGS, **self.known}


def is_sensitive(name: str) -> bool:
    """Return whether a value under that name is never shown (secrets in Describe are CVEs)."""
    return _SENSITIVE.search(name) is not None


def _as_broker_setting(setting: TopicSetting, synonym: Synonym) -> BrokerSetting:
    # Of several synonyms the last, weakest one has the default; the others are unset (null).
    is_last = synonym == setting.synonyms[-1]
    return BrokerSetting(
        name=synonym.name,
        type=setting.type if synonym.factor == 1 else ConfigType.INT,
        default=synonym.default_of(setting.default) if is_last else None,
        doc=f"The default of the topic setting {setting.name}. {setting.doc}",
    )
