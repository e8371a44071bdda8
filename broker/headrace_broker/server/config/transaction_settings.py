"""The settings of the transaction coordinator, under Kafka's names and with its defaults."""

from typing import Final, NamedTuple


class IntSetting(NamedTuple):
    """A setting that is an int32 of at least `low`."""

    name: str
    default: int
    low: int
    doc: str


TRANSACTION_SETTINGS: Final = (
    IntSetting("transaction.state.log.num.partitions", 50, 1, "Partitions of __transaction_state."),
    IntSetting(
        "transaction.state.log.replication.factor", 3, 1, "Replicas of __transaction_state."
    ),
    IntSetting(
        "transaction.state.log.min.isr",
        2,
        1,
        "The least in-sync replicas of __transaction_state that a transaction needs.",
    ),
    IntSetting(
        "transaction.state.log.segment.bytes",
        104857600,
        1048576,
        "Segment size of __transaction_state.",
    ),
    IntSetting(
        "transactional.id.expiration.ms",
        604800000,
        1,
        "A transactional id that nobody uses for so long is forgotten.",
    ),
    IntSetting(
        "transaction.max.timeout.ms",
        900000,
        1,
        "The longest that a producer may let its transactions take.",
    ),
    IntSetting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        1,
        "How often transactions are looked for that took too long.",
    ),
    IntSetting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        1,
        "How often unused transactional ids are looked for.",
    ),
    IntSetting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        0,
        "How long the coordinator lets a request wait for the end of the transaction before.",
    ),
    IntSetting(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        1,
        "How often a request that waits for that end looks again, if nothing tells it.",
    ),
    IntSetting(
        "transaction.state.log.load.buffer.size",
        5242880,
        1,
        "How many bytes a new coordinator reads at once of __transaction_state.",
    ),
    IntSetting(
        "headrace.max.transactional.ids", 100000, 1, "The most transactional ids of this broker."
    ),
)
