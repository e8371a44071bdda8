"""What Java's client and librdkafka do for each error of a request, as their sources say.

Java: `Sender.canRetry`, `TransactionManager.canRetry`, and the exceptions of `Errors` that are
retriable. librdkafka: `rd_kafka_handle_Produce_error` and its table of actions.
"""

from headrace_broker.protocol.errors import ErrorCode

# The broker certainly did not apply the request. Everything else may have been applied: a leader
# says NOT_LEADER_OR_FOLLOWER, too, when it lost its role while a record waited for its commit.
NOT_APPLIED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
# Waiting and asking again is what Kafka's clients do.
RETRIABLE = NOT_APPLIED | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    # Of a fetch: Java's poll raises, librdkafka tells its caller; both go on when asked again.
    ErrorCode.CORRUPT_MESSAGE,
}
# Metadata may be old: ask for it before the next attempt.
REFRESH = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
# Java refreshes for every InvalidMetadataException, librdkafka for these of a Produce.
LIBRDKAFKA_REFRESH = REFRESH - {ErrorCode.OFFSET_NOT_AVAILABLE} | {ErrorCode.NETWORK_EXCEPTION}
