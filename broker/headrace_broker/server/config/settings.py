"""The broker's settings: Kafka's names, types, defaults and bounds, as one table.

The table is the documentation: docs/configuration.md is made from it, DescribeConfigs reads it.
Settings that a topic may override live in `metadata.topic_config`, which names its broker synonym.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_broker.server.config.group_settings import GROUPS
from headrace_broker.server.config.setting import (
    Setting,
    flag_setting,
    int_setting,
    list_setting,
    long_setting,
    text_setting,
)
from headrace_broker.server.config.share_settings import SHARE_GROUPS
from headrace_broker.server.config.transaction_settings import TRANSACTION_SETTINGS

_IDENTITY = (
    int_setting("node.id", None, "This node's id, one of its own in the cluster.", required=True),
    list_setting(
        "process.roles",
        ["broker", "controller"],
        "What this process does.",
        allowed=("broker", "controller"),
    ),
    text_setting(
        "cluster.id", None, "The cluster's id; made at the first start where it is not set."
    ),
    text_setting("broker.rack", None, "The rack (zone) of this broker, for placement."),
    list_setting("log.dirs", None, "Directories that hold the partitions.", required=True),
    text_setting("log.dir", None, "One directory, where log.dirs is not set."),
    text_setting(
        "metadata.log.dir", None, "Where the metadata log lives; the first of log.dirs otherwise."
    ),
)

_NETWORK = (
    list_setting("listeners", ["PLAINTEXT://:9092"], "Addresses to bind, NAME://host:port."),
    list_setting(
        "advertised.listeners", None, "Addresses for clients; `listeners` where it is not set."
    ),
    list_setting(
        "config.providers",
        [],
        "With env, ${env:NAME} in a value of this file is the environment variable (KIP-887).",
    ),
    list_setting("controller.listener.names", ["CONTROLLER"], "Listeners of the metadata quorum."),
    list_setting(
        "controller.quorum.voters", [], "The voters of the metadata quorum, id@host:port."
    ),
    list_setting(
        "controller.quorum.bootstrap.servers", [], "Where to find the metadata quorum, host:port."
    ),
    text_setting(
        "inter.broker.listener.name", None, "The listener that brokers use among themselves."
    ),
    list_setting(
        "listener.security.protocol.map",
        ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", "INTERNAL:PLAINTEXT", "EXTERNAL:PLAINTEXT"],
        "The security protocol of each listener name; only PLAINTEXT is served yet.",
    ),
    int_setting("socket.request.max.bytes", 104857600, "The largest request frame.", low=1),
    int_setting(
        "socket.listen.backlog.size", 1024, "Connections that may wait to be accepted.", low=1
    ),
    # Kafka's default is unlimited; a finite one keeps a flood of connections from using up the file
    # descriptors that the log needs.
    int_setting("max.connections", 10000, "Connections at one time, over all listeners.", low=1),
    int_setting("max.connections.per.ip", 5000, "Connections at one time from one address.", low=1),
    long_setting(
        "connections.max.idle.ms", 600000, "A connection that is silent so long is closed.", low=1
    ),
    long_setting(
        "queued.max.request.bytes",
        536870912,
        "Bytes of unfinished requests and unsent responses, over all connections.",
        low=1048576,
    ),
    int_setting(
        "headrace.max.in.flight.requests.per.connection",
        100,
        "Requests of one connection that may wait for their response; reading stops above it.",
        low=1,
    ),
    int_setting(
        "headrace.connection.write.buffer.bytes",
        1048576,
        "Unsent response bytes of one connection; its next request waits above it.",
        low=65536,
    ),
    long_setting(
        "headrace.slow.reader.timeout.ms",
        60000,
        "A client that takes none of its response for so long is disconnected.",
        low=1000,
    ),
    int_setting(
        "headrace.busy.poll.rounds",
        250,
        "How often the event loop looks for the next request of a client that sends one small "
        "record at a time, or for the followers' word of it, before it sleeps: about 2 us each. "
        "0 never keeps a processor busy.",
        low=0,
        high=10000,
    ),
    text_setting(
        "headrace.http.listener",
        None,
        "host:port of health, metrics and the JSON API; off where not set.",
    ),
    int_setting(
        "headrace.metrics.partitions.max",
        2000,
        "Partitions of this broker with series of their own, at /metrics only.",
    ),
    int_setting(
        "headrace.metrics.topics.max", 5000, "Topics of this broker with series of their own."
    ),
    int_setting(
        "headrace.metrics.groups.max", 1000, "Groups of this broker with series of their own."
    ),
)

_TOPICS = (
    int_setting("num.partitions", 1, "Partitions of a topic made without a number.", low=1),
    int_setting(
        "default.replication.factor",
        1,
        "Replicas of a topic made without a number.",
        low=1,
        high=32767,
    ),
    flag_setting(
        "auto.create.topics.enable", "Make a topic when a client asks for it.", default=True
    ),
    flag_setting("delete.topic.enable", "Topics can be deleted.", default=True),
    int_setting(
        "headrace.max.partitions.per.topic", 10000, "The most partitions of one topic.", low=1
    ),
    int_setting("headrace.max.partitions", 100000, "The most partitions of the cluster.", low=1),
)

_FETCH = (
    int_setting("fetch.max.bytes", 57671680, "The most bytes that one fetch returns.", low=1024),
    int_setting(
        "max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions that are kept.", low=0
    ),
    int_setting(
        "headrace.fetch.session.max.partitions",
        100000,
        "Partitions of one fetch session, and of one share session.",
        low=1,
    ),
    long_setting(
        "headrace.fetch.max.wait.ms", 300000, "The longest that a fetch waits for data.", low=1
    ),
)

_LOG = (
    long_setting(
        "log.retention.check.interval.ms", 300000, "How often retention is applied.", low=1
    ),
    long_setting("log.cleaner.backoff.ms", 15000, "How often compaction looks for work.", low=1),
    flag_setting(
        "log.cleaner.enable", "Compact topics whose cleanup.policy says so.", default=True
    ),
    long_setting(
        "headrace.log.scrub.bytes.per.second",
        1048576,
        "How fast the scrub reads each log directory, to find what its disk has damaged; 0 is off.",
        low=0,
    ),
    long_setting(
        "headrace.log.scrub.interval.ms",
        86400000,
        "How long after a scrub of everything the next one begins; the first ten minutes after a "
        "start at the latest.",
        low=1,
    ),
    long_setting(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "How often recovery points and log starts are written.",
        low=1,
    ),
    long_setting(
        "replica.high.watermark.checkpoint.interval.ms", 5000, "How often they are written.", low=1
    ),
    int_setting(
        "num.replica.alter.log.dirs.threads",
        None,
        "How many replicas are copied between log directories at one time; as many as there are "
        "directories where it is not set.",
        low=1,
    ),
    long_setting(
        "producer.id.expiration.ms", 86400000, "How long a silent producer is remembered.", low=1
    ),
)

_REPLICATION = (
    # Kafka's lag is 30 seconds, and its backoff one second.
    long_setting(
        "replica.lag.time.max.ms",
        10000,
        "A follower that lacks records for so long is no longer in sync.",
        low=1,
    ),
    int_setting(
        "replica.fetch.wait.max.ms", 500, "How long a follower's fetch waits for records.", low=1
    ),
    int_setting(
        "replica.fetch.max.bytes", 1048576, "The most bytes of a partition in one fetch.", low=0
    ),
    int_setting(
        "replica.fetch.response.max.bytes",
        10485760,
        "The most bytes that a follower fetches at once.",
        low=0,
    ),
    int_setting(
        "replica.fetch.backoff.ms", 200, "The longest pause of a follower after an error.", low=1
    ),
    int_setting(
        "replica.socket.timeout.ms",
        5000,
        "How much longer than its wait a follower's fetch may take.",
        low=1,
    ),
    text_setting(
        "replica.selector.class",
        None,
        "org.apache.kafka.common.replica.RackAwareReplicaSelector lets consumers read from a "
        "follower in their rack.",
    ),
)

_TRANSACTIONS = (
    *(
        int_setting(each.name, each.default, each.doc, low=each.low)
        for each in TRANSACTION_SETTINGS
    ),
    flag_setting(
        "transaction.partition.verification.enable",
        "Ask the coordinator before the first record of a transaction (KIP-890).",
        default=True,
    ),
)

_CONTROLLER = (
    # Kafka's are 1000, 2000 and 1000: see docs/decisions on fast detection.
    int_setting(
        "controller.quorum.election.timeout.ms",
        500,
        "A voter that knows no leader of the metadata quorum for so long stands for election.",
        low=1,
    ),
    int_setting(
        "controller.quorum.fetch.timeout.ms",
        1000,
        "A voter that hears nothing from the leader of the metadata quorum for so long asks for "
        "an election.",
        low=1,
    ),
    int_setting(
        "controller.quorum.election.backoff.max.ms",
        500,
        "The longest wait after an election that nobody won.",
        low=1,
    ),
    int_setting(
        "controller.quorum.request.timeout.ms",
        1000,
        "How long a request among the voters may take.",
        low=1,
    ),
    int_setting(
        "controller.quorum.retry.backoff.ms",
        20,
        "The wait before a failed request among the voters is sent again.",
        low=0,
    ),
    flag_setting(
        "controller.quorum.auto.join.enable",
        "A controller that is no voter asks to become one, and with another disk than before takes "
        "its former vote away. Stop such a controller before its vote is removed.",
        default=False,
    ),
    int_setting(
        "headrace.kraft.version",
        1,
        "With 1, the voters of a new cluster are written into the metadata log and may change "
        "(KIP-853); with 0 they are always those of controller.quorum.voters.",
        low=0,
        high=1,
    ),
    long_setting(
        "metadata.log.max.record.bytes.between.snapshots",
        20971520,
        "Bytes of metadata log after which a snapshot is written.",
        low=1,
    ),
    int_setting(
        "metadata.log.segment.bytes", 1073741824, "Segment size of the metadata log.", low=12
    ),
    # Kafka's are 2000 and 9000: for that long nobody could write to the partitions of a stopped
    # broker. Besides the event loop's heartbeats, a thread sends its own, six per session.
    int_setting(
        "broker.heartbeat.interval.ms",
        500,
        "How often a broker tells the controller that it lives.",
        low=1,
    ),
    int_setting(
        "broker.session.timeout.ms",
        1200,
        "A broker that is silent for so long is fenced: its partitions get other leaders.",
        low=1,
    ),
    flag_setting(
        "auto.leader.rebalance.enable",
        "Give leadership back to preferred leaders now and then.",
        default=True,
    ),
    long_setting(
        "leader.imbalance.check.interval.seconds", 300, "How often that is looked after.", low=1
    ),
    int_setting(
        "headrace.leader.return.delay.ms",
        2000,
        "A broker that is back leads again after this, once in sync; each time longer if it comes "
        "back again and again.",
    ),
)

BROKER_SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for group in (
        _IDENTITY,
        _NETWORK,
        _TOPICS,
        _FETCH,
        _LOG,
        _REPLICATION,
        GROUPS,
        SHARE_GROUPS,
        _TRANSACTIONS,
        _CONTROLLER,
    )
    for setting in group
}
