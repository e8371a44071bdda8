"""The table of Kafka's APIs: which versions exist and which messages carry them.

Owns the facts in Apache Kafka 4.2's schemas; a test compares the table with the messages' own
annotations. Message classes are imported on first use, so that a broker loads only the APIs that it
serves.
"""

from dataclasses import dataclass
from enum import IntEnum, unique
from functools import cached_property
from importlib import import_module
from typing import Final, cast

from .schema import Message


@unique
class ApiKey(IntEnum):
    """The int16 that starts every request, under Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


# Roles whose listeners serve an API in Kafka.
BROKER: Final = "broker"
CONTROLLER: Final = "controller"


@dataclass(frozen=True)
class ApiMessages:
    """One API: its messages, the versions to advertise, and where flexible versions start."""

    name: str
    min_version: int
    max_version: int
    # None: no version of the API has tagged fields.
    flexible_from: int | None
    listeners: tuple[str, ...]

    @cached_property
    def request(self) -> type[Message]:
        """The request's class."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Message]:
        """The response's class."""
        return self._message("Response")

    def is_flexible(self, version: int) -> bool:
        """Whether a version uses compact lengths and tagged fields (KIP-482)."""
        return self.flexible_from is not None and version >= self.flexible_from

    def _message(self, kind: str) -> type[Message]:
        name = "".join(word.capitalize() for word in self.name.split("_")) + kind
        module = import_module(f"headrace_broker.protocol.messages.{self.name}")
        return cast("type[Message]", getattr(module, name))


# librdkafka up to 2.10 treats a broker whose Produce starts above version 0 as one that cannot take
# compressed batches, so Kafka 4 advertises 0 and still refuses versions 0 to 2 (KAFKA-18659).
PRODUCE_MIN_VERSION_ADVERTISED: Final = 0

API_TABLE: Final[dict[ApiKey, ApiMessages]] = {
    ApiKey.PRODUCE: ApiMessages("produce", 3, 13, 9, (BROKER,)),
    ApiKey.FETCH: ApiMessages("fetch", 4, 18, 12, (BROKER, CONTROLLER)),
    ApiKey.LIST_OFFSETS: ApiMessages("list_offsets", 1, 11, 6, (BROKER,)),
    ApiKey.METADATA: ApiMessages("metadata", 0, 13, 9, (BROKER,)),
    ApiKey.OFFSET_COMMIT: ApiMessages("offset_commit", 2, 10, 8, (BROKER,)),
    ApiKey.OFFSET_FETCH: ApiMessages("offset_fetch", 1, 10, 6, (BROKER,)),
    ApiKey.FIND_COORDINATOR: ApiMessages("find_coordinator", 0, 6, 3, (BROKER,)),
    ApiKey.JOIN_GROUP: ApiMessages("join_group", 0, 9, 6, (BROKER,)),
    ApiKey.HEARTBEAT: ApiMessages("heartbeat", 0, 4, 4, (BROKER,)),
    ApiKey.LEAVE_GROUP: ApiMessages("leave_group", 0, 5, 4, (BROKER,)),
    ApiKey.SYNC_GROUP: ApiMessages("sync_group", 0, 5, 4, (BROKER,)),
    ApiKey.DESCRIBE_GROUPS: ApiMessages("describe_groups", 0, 6, 5, (BROKER,)),
    ApiKey.LIST_GROUPS: ApiMessages("list_groups", 0, 5, 3, (BROKER,)),
    ApiKey.SASL_HANDSHAKE: ApiMessages("sasl_handshake", 0, 1, None, (BROKER, CONTROLLER)),
    ApiKey.API_VERSIONS: ApiMessages("api_versions", 0, 4, 3, (BROKER, CONTROLLER)),
    ApiKey.CREATE_TOPICS: ApiMessages("create_topics", 2, 7, 5, (BROKER, CONTROLLER)),
    ApiKey.DELETE_TOPICS: ApiMessages("delete_topics", 1, 6, 4, (BROKER, CONTROLLER)),
    ApiKey.DELETE_RECORDS: ApiMessages("delete_records", 0, 2, 2, (BROKER,)),
    ApiKey.INIT_PRODUCER_ID: ApiMessages("init_producer_id", 0, 5, 2, (BROKER,)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiMessages("offset_for_leader_epoch", 2, 4, 4, (BROKER,)),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiMessages("add_partitions_to_txn", 0, 5, 3, (BROKER,)),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiMessages("add_offsets_to_txn", 0, 4, 3, (BROKER,)),
    ApiKey.END_TXN: ApiMessages("end_txn", 0, 5, 3, (BROKER,)),
    ApiKey.WRITE_TXN_MARKERS: ApiMessages("write_txn_markers", 1, 2, 1, (BROKER,)),
    ApiKey.TXN_OFFSET_COMMIT: ApiMessages("txn_offset_commit", 0, 5, 3, (BROKER,)),
    ApiKey.DESCRIBE_ACLS: ApiMessages("describe_acls", 1, 3, 2, (BROKER, CONTROLLER)),
    ApiKey.CREATE_ACLS: ApiMessages("create_acls", 1, 3, 2, (BROKER, CONTROLLER)),
    ApiKey.DELETE_ACLS: ApiMessages("delete_acls", 1, 3, 2, (BROKER, CONTROLLER)),
    ApiKey.DESCRIBE_CONFIGS: ApiMessages("describe_configs", 1, 4, 4, (BROKER, CONTROLLER)),
    ApiKey.ALTER_CONFIGS: ApiMessages("alter_configs", 0, 2, 2, (BROKER, CONTROLLER)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiMessages("alter_replica_log_dirs", 1, 2, 2, (BROKER,)),
    ApiKey.DESCRIBE_LOG_DIRS: ApiMessages("describe_log_dirs", 1, 4, 2, (BROKER,)),
    ApiKey.SASL_AUTHENTICATE: ApiMessages("sasl_authenticate", 0, 2, 2, (BROKER, CONTROLLER)),
    ApiKey.CREATE_PARTITIONS: ApiMessages("create_partitions", 0, 3, 2, (BROKER, CONTROLLER)),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiMessages(
        "create_delegation_token", 1, 3, 2, (BROKER, CONTROLLER)
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: ApiMessages(
        "renew_delegation_token", 1, 2, 2, (BROKER, CONTROLLER)
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiMessages(
        "expire_delegation_token", 1, 2, 2, (BROKER, CONTROLLER)
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiMessages(
        "describe_delegation_token", 1, 3, 2, (BROKER, CONTROLLER)
    ),
    ApiKey.DELETE_GROUPS: ApiMessages("delete_groups", 0, 2, 2, (BROKER,)),
    ApiKey.ELECT_LEADERS: ApiMessages("elect_leaders", 0, 2, 2, (BROKER, CONTROLLER)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiMessages(
        "incremental_alter_configs", 0, 1, 1, (BROKER, CONTROLLER)
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiMessages(
        "alter_partition_reassignments", 0, 1, 0, (BROKER, CONTROLLER)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiMessages(
        "list_partition_reassignments", 0, 0, 0, (BROKER, CONTROLLER)
    ),
    ApiKey.OFFSET_DELETE: ApiMessages("offset_delete", 0, 0, None, (BROKER,)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiMessages("describe_client_quotas", 0, 1, 1, (BROKER,)),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiMessages("alter_client_quotas", 0, 1, 1, (BROKER, CONTROLLER)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiMessages(
        "describe_user_scram_credentials", 0, 0, 0, (BROKER, CONTROLLER)
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiMessages(
        "alter_user_scram_credentials", 0, 0, 0, (BROKER, CONTROLLER)
    ),
    ApiKey.VOTE: ApiMessages("vote", 0, 2, 0, (CONTROLLER,)),
    ApiKey.BEGIN_QUORUM_EPOCH: ApiMessages("begin_quorum_epoch", 0, 1, 1, (CONTROLLER,)),
    ApiKey.END_QUORUM_EPOCH: ApiMessages("end_quorum_epoch", 0, 1, 1, (CONTROLLER,)),
    ApiKey.DESCRIBE_QUORUM: ApiMessages("describe_quorum", 0, 2, 0, (BROKER, CONTROLLER)),
    ApiKey.ALTER_PARTITION: ApiMessages("alter_partition", 2, 3, 0, (CONTROLLER,)),
    ApiKey.UPDATE_FEATURES: ApiMessages("update_features", 0, 2, 0, (BROKER, CONTROLLER)),
    ApiKey.ENVELOPE: ApiMessages("envelope", 0, 0, 0, (CONTROLLER,)),
    ApiKey.FETCH_SNAPSHOT: ApiMessages("fetch_snapshot", 0, 1, 0, (CONTROLLER,)),
    ApiKey.DESCRIBE_CLUSTER: ApiMessages("describe_cluster", 0, 2, 0, (BROKER, CONTROLLER)),
    ApiKey.DESCRIBE_PRODUCERS: ApiMessages("describe_producers", 0, 0, 0, (BROKER,)),
    ApiKey.BROKER_REGISTRATION: ApiMessages("broker_registration", 0, 4, 0, (CONTROLLER,)),
    ApiKey.BROKER_HEARTBEAT: ApiMessages("broker_heartbeat", 0, 1, 0, (CONTROLLER,)),
    ApiKey.UNREGISTER_BROKER: ApiMessages("unregister_broker", 0, 0, 0, (BROKER, CONTROLLER)),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiMessages("describe_transactions", 0, 0, 0, (BROKER,)),
    ApiKey.LIST_TRANSACTIONS: ApiMessages("list_transactions", 0, 2, 0, (BROKER,)),
    ApiKey.ALLOCATE_PRODUCER_IDS: ApiMessages("allocate_producer_ids", 0, 0, 0, (CONTROLLER,)),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiMessages("consumer_group_heartbeat", 0, 1, 0, (BROKER,)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiMessages("consumer_group_describe", 0, 1, 0, (BROKER,)),
    ApiKey.CONTROLLER_REGISTRATION: ApiMessages("controller_registration", 0, 0, 0, (CONTROLLER,)),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiMessages(
        "get_telemetry_subscriptions", 0, 0, 0, (BROKER,)
    ),
    ApiKey.PUSH_TELEMETRY: ApiMessages("push_telemetry", 0, 0, 0, (BROKER,)),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: ApiMessages("assign_replicas_to_dirs", 0, 0, 0, (CONTROLLER,)),
    ApiKey.LIST_CONFIG_RESOURCES: ApiMessages("list_config_resources", 0, 1, 0, (BROKER,)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiMessages("describe_topic_partitions", 0, 0, 0, (BROKER,)),
    ApiKey.SHARE_GROUP_HEARTBEAT: ApiMessages("share_group_heartbeat", 1, 1, 0, (BROKER,)),
    ApiKey.SHARE_GROUP_DESCRIBE: ApiMessages("share_group_describe", 1, 1, 0, (BROKER,)),
    ApiKey.SHARE_FETCH: ApiMessages("share_fetch", 1, 2, 0, (BROKER,)),
    ApiKey.SHARE_ACKNOWLEDGE: ApiMessages("share_acknowledge", 1, 2, 0, (BROKER,)),
    ApiKey.ADD_RAFT_VOTER: ApiMessages("add_raft_voter", 0, 1, 0, (CONTROLLER, BROKER)),
    ApiKey.REMOVE_RAFT_VOTER: ApiMessages("remove_raft_voter", 0, 0, 0, (CONTROLLER, BROKER)),
    ApiKey.UPDATE_RAFT_VOTER: ApiMessages("update_raft_voter", 0, 0, 0, (CONTROLLER,)),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: ApiMessages(
        "initialize_share_group_state", 0, 0, 0, (BROKER,)
    ),
    ApiKey.READ_SHARE_GROUP_STATE: ApiMessages("read_share_group_state", 0, 0, 0, (BROKER,)),
    ApiKey.WRITE_SHARE_GROUP_STATE: ApiMessages("write_share_group_state", 0, 1, 0, (BROKER,)),
    ApiKey.DELETE_SHARE_GROUP_STATE: ApiMessages("delete_share_group_state", 0, 0, 0, (BROKER,)),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: ApiMessages(
        "read_share_group_state_summary", 0, 1, 0, (BROKER,)
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: ApiMessages("streams_group_heartbeat", 0, 0, 0, (BROKER,)),
    ApiKey.STREAMS_GROUP_DESCRIBE: ApiMessages("streams_group_describe", 0, 0, 0, (BROKER,)),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiMessages(
        "describe_share_group_offsets", 0, 1, 0, (BROKER,)
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ApiMessages("alter_share_group_offsets", 0, 0, 0, (BROKER,)),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiMessages(
        "delete_share_group_offsets", 0, 0, 0, (BROKER,)
    ),
}
