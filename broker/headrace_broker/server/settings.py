"""The broker's settings: Kafka's names, types, defaults and bounds, as one table.

The table is the documentation: `headrace broker --help-settings` and DescribeConfigs print it.
Settings that a topic may override live in `metadata.topic_config`, which names its broker synonym.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_broker.metadata.resources import ConfigType
from headrace_broker.metadata.setting_types import (
    INT_MAX,
    LONG_MAX,
    Bounds,
    Check,
    OneOf,
    parse_value,
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of the broker."""

    name: str
    type: ConfigType
    default: Any
    doc: str
    check: Check | None = None
    required: bool = False

    def parse(self, text: str) -> Any:
        """Return the typed value of `text`; raise ValueError saying what is allowed."""
        value = parse_value(text, self.type)
        if self.check is not None:
            self.check.check(value)
        return value


def _int(
    name: str,
    default: int | None,
    doc: str,
    *,
    low: int = 0,
    high: int = INT_MAX,
    required: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=ConfigType.INT,
        default=default,
        doc=doc,
        check=Bounds(low=low, high=high),
        required=required,
    )


def _long(name: str, default: int | None, doc: str, *, low: int = 0) -> Setting:
    check = Bounds(low=low, high=LONG_MAX)
    return Setting(name=name, type=ConfigType.LONG, default=default, doc=doc, check=check)


def _flag(name: str, doc: str, *, default: bool) -> Setting:
    return Setting(name=name, type=ConfigType.BOOLEAN, default=default, doc=doc)


def _text(name: str, default: str | None, doc: str) -> Setting:
    return Setting(name=name, type=ConfigType.STRING, default=default, doc=doc)


def _list(
    name: str,
    default: list[str] | None,
    doc: str,
    *,
    allowed: tuple[str, ...] = (),
    required: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=ConfigType.LIST,
        default=default,
        doc=doc,
        check=OneOf(allowed) if allowed else None,
        required=required,
    )


_IDENTITY = (
    _int("node.id", None, "This node's id, one of its own in the cluster.", required=True),
    _list(
        "process.roles",
        ["broker", "controller"],
        "What this process does.",
        allowed=("broker", "controller"),
    ),
    _text("cluster.id", None, "The cluster's id; made at the first start where it is not set."),
    _text("broker.rack", None, "The rack (zone) of this broker, for placement."),
    _list("log.dirs", None, "Directories that hold the partitions.", required=True),
    _text("log.dir", None, "One directory, where log.dirs is not set."),
    _text(
        "metadata.log.dir", None, "Where the metadata log lives; the first of log.dirs otherwise."
    ),
)

_NETWORK = (
    _list("listeners", ["PLAINTEXT://:9092"], "Addresses to bind, NAME://host:port."),
    _list(
        "advertised.listeners", None, "Addresses told to clients; `listeners` where it is not set."
    ),
    _list(
        "config.providers",
        [],
        "With env, ${env:NAME} in a value of this file is the environment variable (KIP-887).",
    ),
    _list("controller.listener.names", ["CONTROLLER"], "Listeners of the metadata quorum."),
    _list("controller.quorum.voters", [], "The voters of the metadata quorum, id@host:port."),
    _list(
        "controller.quorum.bootstrap.servers", [], "Where to find the metadata quorum, host:port."
    ),
    _text("inter.broker.listener.name", None, "The listener that brokers use among themselves."),
    _list(
        "listener.security.protocol.map",
        ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", "INTERNAL:PLAINTEXT", "EXTERNAL:PLAINTEXT"],
        "The security protocol of each listener name; only PLAINTEXT is served yet.",
    ),
    _int("socket.request.max.bytes", 104857600, "The largest request frame.", low=1),
    _int("socket.listen.backlog.size", 1024, "Connections that may wait to be accepted.", low=1),
    # Kafka's default is unlimited; a finite one keeps a flood of connections from taking the file
    # descriptors that the log needs.
    _int("max.connections", 10000, "Connections at one time, over all listeners.", low=1),
    _int("max.connections.per.ip", 5000, "Connections at one time from one address.", low=1),
    _long(
        "connections.max.idle.ms", 600000, "A connection that is silent so long is closed.", low=1
    ),
    _long(
        "queued.max.request.bytes",
        536870912,
        "Bytes of unfinished requests and unsent responses, over all connections.",
        low=1048576,
    ),
    _int(
        "headrace.max.in.flight.requests.per.connection",
        100,
        "Requests of one connection that may wait for their response; reading stops above it.",
        low=1,
    ),
    _int(
        "headrace.connection.write.buffer.bytes",
        1048576,
        "Unsent response bytes of one connection; its next request waits above it.",
        low=65536,
    ),
    _long(
        "headrace.slow.reader.timeout.ms",
        60000,
        "A client that takes none of its response for so long is disconnected.",
        low=1000,
    ),
    _int(
        "headrace.busy.poll.rounds",
        250,
        "How often the event loop looks for the next request of a client that sends one small "
        "record at a time, or for the followers' word of it, before it sleeps: about 2 us each. "
        "0 never keeps a processor busy.",
        low=0,
        high=10000,
    ),
    _text(
        "headrace.http.listener",
        None,
        "host:port of health, metrics and the JSON API; off where not set.",
    ),
    _int(
        "headrace.metrics.partitions.max",
        2000,
        "Partitions of this broker with series of their own, at /metrics only.",
    ),
    _int("headrace.metrics.topics.max", 5000, "Topics of this broker with series of their own."),
    _int("headrace.metrics.groups.max", 1000, "Groups of this broker with series of their own."),
)

_TOPICS = (
    _int("num.partitions", 1, "Partitions of a topic made without a number.", low=1),
    _int(
        "default.replication.factor",
        1,
        "Replicas of a topic made without a number.",
        low=1,
        high=32767,
    ),
    _flag("auto.create.topics.enable", "Make a topic when a client asks for it.", default=True),
    _flag("delete.topic.enable", "Topics can be deleted.", default=True),
    _int("headrace.max.partitions.per.topic", 10000, "The most partitions of one topic.", low=1),
    _int("headrace.max.partitions", 100000, "The most partitions of the cluster.", low=1),
)

_FETCH = (
    _int("fetch.max.bytes", 57671680, "The most bytes that one fetch returns.", low=1024),
    _int("max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions that are kept.", low=0),
    _int(
        "headrace.fetch.session.max.partitions", 100000, "Partitions of one fetch session.", low=1
    ),
    _long("headrace.fetch.max.wait.ms", 300000, "The longest that a fetch waits for data.", low=1),
)

_LOG = (
    _long("log.retention.check.interval.ms", 300000, "How often retention is applied.", low=1),
    _long("log.cleaner.backoff.ms", 15000, "How often compaction looks for work.", low=1),
    _flag("log.cleaner.enable", "Compact topics whose cleanup.policy says so.", default=True),
    _long(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "How often recovery points are written.",
        low=1,
    ),
    _long(
        "log.flush.start.offset.checkpoint.interval.ms",
        60000,
        "How often log starts are written.",
        low=1,
    ),
    _long(
        "replica.high.watermark.checkpoint.interval.ms", 5000, "How often they are written.", low=1
    ),
    _long(
        "producer.id.expiration.ms", 86400000, "How long a silent producer is remembered.", low=1
    ),
)

_REPLICATION = (
    # Kafka's lag is 30 seconds, and its backoff one second.
    _long(
        "replica.lag.time.max.ms",
        10000,
        "A follower that lacks records for so long is no longer in sync.",
        low=1,
    ),
    _int("replica.fetch.wait.max.ms", 500, "How long a follower's fetch waits for records.", low=1),
    _int("replica.fetch.max.bytes", 1048576, "The most bytes of a partition in one fetch.", low=0),
    _int(
        "replica.fetch.response.max.bytes",
        10485760,
        "The most bytes that a follower fetches at once.",
        low=0,
    ),
    _int("replica.fetch.backoff.ms", 200, "The longest pause of a follower after an error.", low=1),
    _int(
        "replica.socket.timeout.ms",
        5000,
        "How much longer than its wait a follower's fetch may take.",
        low=1,
    ),
    _text(
        "replica.selector.class",
        None,
        "org.apache.kafka.common.replica.RackAwareReplicaSelector lets consumers read from a "
        "follower in their rack.",
    ),
)

_GROUPS = (
    _int("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", low=1),
    _int(
        "offsets.topic.replication.factor", 3, "Replicas of __consumer_offsets.", low=1, high=32767
    ),
    _int(
        "offsets.topic.segment.bytes", 104857600, "Segment size of __consumer_offsets.", low=1048576
    ),
    _int("offsets.retention.minutes", 10080, "How long an empty group keeps its offsets.", low=1),
    _long("offsets.retention.check.interval.ms", 600000, "How often offsets expire.", low=1),
    _int("offset.metadata.max.bytes", 4096, "The most metadata of one committed offset.", low=0),
    _int("group.min.session.timeout.ms", 6000, "The least session timeout.", low=1),
    _int("group.max.session.timeout.ms", 1800000, "The greatest session timeout.", low=1),
    _int(
        "group.initial.rebalance.delay.ms", 3000, "How long a new group waits for members.", low=0
    ),
    _int("group.max.size", 10000, "The most members of one group.", low=1),
    _int("headrace.max.groups", 100000, "The most groups of this broker.", low=1),
)

_CONTROLLER = (
    # Kafka's are 1000, 2000 and 1000: see docs/decisions on fast detection.
    _int(
        "controller.quorum.election.timeout.ms",
        500,
        "A voter that knows no leader of the metadata quorum for so long stands for election.",
        low=1,
    ),
    _int(
        "controller.quorum.fetch.timeout.ms",
        1000,
        "A voter that hears nothing from the leader of the metadata quorum for so long asks for "
        "an election.",
        low=1,
    ),
    _int(
        "controller.quorum.election.backoff.max.ms",
        500,
        "The longest wait after an election that nobody won.",
        low=1,
    ),
    _int(
        "controller.quorum.request.timeout.ms",
        1000,
        "How long a request among the voters may take.",
        low=1,
    ),
    _int(
        "controller.quorum.retry.backoff.ms",
        20,
        "The wait before a failed request among the voters is sent again.",
        low=0,
    ),
    _flag(
        "controller.quorum.auto.join.enable",
        "A controller that is no voter asks to become one, and with another disk than before takes "
        "its former vote away. Stop such a controller before its vote is removed.",
        default=False,
    ),
    _int(
        "headrace.kraft.version",
        1,
        "With 1, the voters of a new cluster are written into the metadata log and may change "
        "(KIP-853); with 0 they are always those of controller.quorum.voters.",
        low=0,
        high=1,
    ),
    _long(
        "metadata.log.max.record.bytes.between.snapshots",
        20971520,
        "Bytes of metadata log after which a snapshot is written.",
        low=1,
    ),
    _int("metadata.log.segment.bytes", 1073741824, "Segment size of the metadata log.", low=12),
    # Kafka's are 2000 and 9000: so long nobody can write to what a hung broker leads.
    _int(
        "broker.heartbeat.interval.ms",
        500,
        "How often a broker tells the controller that it lives.",
        low=1,
    ),
    _int(
        "broker.session.timeout.ms",
        3000,
        "A broker that is silent for so long is fenced: its partitions get other leaders.",
        low=1,
    ),
    _flag(
        "auto.leader.rebalance.enable",
        "Give leadership back to preferred leaders now and then.",
        default=True,
    ),
    _long("leader.imbalance.check.interval.seconds", 300, "How often that is looked after.", low=1),
    _int(
        "headrace.leader.return.delay.ms",
        2000,
        "A broker that is back leads again after this, once in sync; each time longer if it comes "
        "back again and again.",
    ),
)

BROKER_SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for group in (_IDENTITY, _NETWORK, _TOPICS, _FETCH, _LOG, _REPLICATION, _GROUPS, _CONTROLLER)
    for setting in group
}
