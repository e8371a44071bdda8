"""Writes `docs/apis.md`: each API of Kafka's broker, what is served of it, and who tested that.

What is served is the broker's own table. Who tested it is said here, with the test: a test of this
page looks whether the client is in that file. `python -m support.api_page` writes the page.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from headrace_broker.protocol.apis import API_TABLE, BROKER, ApiKey
from headrace_broker.server.api.dispatch import load_api_table, served_by
from headrace_broker.server.api.left_out import REFUSALS

PAGE: Final = Path(__file__).parents[2] / "docs" / "apis.md"

#: A client's name on the page, and how a test that uses it can be told.
CLIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Java": ("run_tool", "java_command", "start_tool"),
    "librdkafka": ("confluent_kafka", "librdkafka"),
    "kafka-python": ("from kafka", "import kafka", "run_headrace"),
    "aiokafka": ("aiokafka",),
    "franz-go": ("franz-go",),
}
_PRODUCE = {
    "Java": "conformance/test_produce_and_consume.py",
    "librdkafka": "conformance/test_produce_and_consume.py",
    "kafka-python": "conformance/test_produce_and_consume.py",
    "aiokafka": "conformance/test_produce_and_consume.py",
    "franz-go": "conformance/suites/kgo.py",
}
_GROUP = {
    "Java": "conformance/engines/test_streams.py",
    "librdkafka": "conformance/test_groups.py",
    "kafka-python": "conformance/test_groups.py",
    "franz-go": "conformance/suites/kgo.py",
}
_MODERN = {
    "Java": "conformance/test_consumer_protocol.py",
    "librdkafka": "conformance/test_consumer_protocol.py",
    "franz-go": "conformance/suites/kgo.py",
}
_TRANSACTION = {
    "Java": "conformance/test_java_transactions.py",
    "librdkafka": "conformance/test_transactions.py",
    "kafka-python": "conformance/test_transactions.py",
    "aiokafka": "conformance/test_transactions.py",
    "franz-go": "conformance/suites/kgo.py",
}
#: Clients that speak of partitions themselves, as before transaction.version 2.
_OLD_TRANSACTION = {client: _TRANSACTION[client] for client in ("librdkafka", "aiokafka")}
_TRANSACTION_TOOLS = {
    "Java": "conformance/test_transactions_command.py",
    "kafka-python": "conformance/test_transactions_command.py",
}
_ADMIN = dict.fromkeys(("Java", "librdkafka", "kafka-python"), "conformance/test_admin.py")
_JAVA_AND_LIBRDKAFKA = {client: _ADMIN[client] for client in ("Java", "librdkafka")}
_SHARE_MEMBER = {
    "Java": "conformance/test_share_groups.py",
    "librdkafka": "conformance/test_share_groups.py",
    "franz-go": "conformance/suites/kgo.py",
}
_SHARE_TOOL = {"Java": "conformance/test_share_groups.py"}
_REASSIGN = {
    "Java": "conformance/test_reassignments.py",
    "kafka-python": "conformance/test_reassignments.py",
}
_QUORUM = {"Java": "broker/server/test_voters_real.py", "kafka-python": "e2e/test_voters.py"}
_LOG_DIRECTORIES = {"Java": "faults/test_log_directories.py"}

#: By API: client to the file of a test, under tests/, in which it uses the API.
TESTED: Final[Mapping[ApiKey, Mapping[str, str]]] = {
    ApiKey.PRODUCE: _PRODUCE,
    ApiKey.FETCH: _PRODUCE,
    ApiKey.LIST_OFFSETS: _PRODUCE,
    ApiKey.METADATA: _PRODUCE,
    ApiKey.API_VERSIONS: _PRODUCE,
    ApiKey.FIND_COORDINATOR: _GROUP,
    ApiKey.OFFSET_COMMIT: _GROUP,
    ApiKey.OFFSET_FETCH: _GROUP,
    ApiKey.JOIN_GROUP: _GROUP,
    ApiKey.SYNC_GROUP: _GROUP,
    ApiKey.HEARTBEAT: _GROUP,
    ApiKey.LEAVE_GROUP: _GROUP,
    ApiKey.DESCRIBE_GROUPS: {"Java": _ADMIN["Java"]},
    ApiKey.LIST_GROUPS: _JAVA_AND_LIBRDKAFKA,
    ApiKey.DELETE_GROUPS: _JAVA_AND_LIBRDKAFKA,
    ApiKey.OFFSET_DELETE: {"kafka-python": _ADMIN["kafka-python"]},
    ApiKey.CREATE_TOPICS: _ADMIN,
    ApiKey.DELETE_TOPICS: _ADMIN,
    ApiKey.CREATE_PARTITIONS: _ADMIN,
    ApiKey.DELETE_RECORDS: {"librdkafka": _ADMIN["librdkafka"]},
    ApiKey.DESCRIBE_CONFIGS: _ADMIN,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _JAVA_AND_LIBRDKAFKA,
    ApiKey.DESCRIBE_CLUSTER: {key: _ADMIN[key] for key in ("librdkafka", "kafka-python")},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {key: _ADMIN[key] for key in ("Java", "kafka-python")},
    ApiKey.DESCRIBE_LOG_DIRS: _LOG_DIRECTORIES,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _REASSIGN,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _REASSIGN,
    ApiKey.UPDATE_FEATURES: {
        "Java": "broker/server/test_features_real.py",
        "kafka-python": "broker/server/test_features_real.py",
    },
    ApiKey.DESCRIBE_QUORUM: _QUORUM,
    ApiKey.ADD_RAFT_VOTER: {"Java": _QUORUM["Java"]},
    ApiKey.REMOVE_RAFT_VOTER: {"Java": _QUORUM["Java"]},
    ApiKey.INIT_PRODUCER_ID: _TRANSACTION,
    ApiKey.ADD_PARTITIONS_TO_TXN: _OLD_TRANSACTION,
    ApiKey.ADD_OFFSETS_TO_TXN: _OLD_TRANSACTION,
    ApiKey.TXN_OFFSET_COMMIT: {
        **_TRANSACTION,
        "Java": "conformance/engines/test_streams.py",
    },
    ApiKey.END_TXN: _TRANSACTION,
    ApiKey.WRITE_TXN_MARKERS: _TRANSACTION_TOOLS,
    ApiKey.DESCRIBE_PRODUCERS: _TRANSACTION_TOOLS,
    ApiKey.DESCRIBE_TRANSACTIONS: _TRANSACTION_TOOLS,
    ApiKey.LIST_TRANSACTIONS: _TRANSACTION_TOOLS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _MODERN,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _MODERN,
    ApiKey.SHARE_GROUP_HEARTBEAT: _SHARE_MEMBER,
    ApiKey.SHARE_GROUP_DESCRIBE: _SHARE_TOOL,
    ApiKey.SHARE_FETCH: _SHARE_MEMBER,
    ApiKey.SHARE_ACKNOWLEDGE: _SHARE_MEMBER,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _SHARE_TOOL,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _SHARE_TOOL,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _SHARE_TOOL,
}

_HEAD: Final = """# APIs

Each API that a broker of Apache Kafka 4.2 serves to clients, made from the broker's own table by
`make protocols`; a test keeps it so, and another holds versions and fields to Kafka's own classes.
What is not served is not advertised, so clients say themselves that the broker does not support it.
Whoever asks all the same is refused with the error named here, and told why where the answer has a
place for it; the connection goes on. A test asks for each of them in each version. An API that
Kafka does not have either ends the connection, as there.

*Tested by* names clients that we did not write and that use the API in the tests: Java (Kafka's own
client, its tools, Streams), librdkafka (by confluent-kafka), kafka-python, aiokafka, franz-go (its
own tests, `make conformance-suites`). Where nobody is named, only requests made by hand test it.

| key | API | Kafka 4.2 | here | tested by |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(f"{row}\n" for row in _rows())


def _rows() -> Iterator[str]:
    served = served_by(load_api_table(), BROKER)
    for key, known in sorted(API_TABLE.items()):
        if BROKER not in known.listeners:
            continue
        kafka = _versions(known.min_version, known.max_version)
        entry = served.get(key)
        name = "".join(word.capitalize() for word in known.name.split("_"))
        if entry is None:
            code, reason = REFUSALS[key]
            yield f"| {int(key)} | {name} | {kafka} | refused, {code.name}: {reason} | |"
            continue
        here = _versions(entry.min_version, entry.max_version)
        yield f"| {int(key)} | {name} | {kafka} | {here} | {', '.join(TESTED.get(key, ()))} |"


def left_out() -> list[ApiKey]:
    """Return the APIs of Kafka's broker that are not served."""
    served = served_by(load_api_table(), BROKER)
    return [
        key
        for key, known in sorted(API_TABLE.items())
        if BROKER in known.listeners and key not in served
    ]


def _versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


if __name__ == "__main__":
    PAGE.write_text(page())
