"""The pure transaction coordinator with a log that may refuse, and clients that call it."""

from collections.abc import Callable, Iterable

from headrace_broker.coordinator.transactions.config import TransactionConfig
from headrace_broker.coordinator.transactions.end import decide_complete, decide_end
from headrace_broker.coordinator.transactions.expiry import (
    decide_expiry,
    decide_timeout,
    timed_out,
)
from headrace_broker.coordinator.transactions.init_producer import decide_init
from headrace_broker.coordinator.transactions.partitions import decide_add
from headrace_broker.coordinator.transactions.records import (
    TransactionRecord,
    read_record,
    write_record,
)
from headrace_broker.coordinator.transactions.shard import (
    Circumstances,
    ProducerIdRequiredError,
    TransactionDecision,
    TransactionShard,
    replay,
)
from headrace_broker.coordinator.transactions.transaction import (
    Identity,
    TopicPartition,
    Transaction,
    TransactionVersion,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import PartitionIndex, ProducerEpoch, ProducerId, TimestampMs

TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2
ID = "app-1"
TIMEOUT_MS = 60_000


def identity(producer_id: int, epoch: int) -> Identity:
    return Identity(producer_id=ProducerId(producer_id), epoch=ProducerEpoch(epoch))


class Coordinator:
    """Decides and appends at once; `log` is what a successor would read."""

    def __init__(
        self, version: TransactionVersion = TV_2, config: TransactionConfig | None = None
    ) -> None:
        self.version = version
        self.config = config or TransactionConfig()
        self.now_ms = 1_000
        self.producer_id_next = 100
        self.log: list[tuple[bytes, bytes | None]] = []
        self.log_refuses = False
        self.shard = TransactionShard(partition=PartitionIndex(0))

    def circumstances(self, **changes: object) -> Circumstances:
        options = {"config": self.config, "now_ms": TimestampMs(self.now_ms)}
        return Circumstances(**options, version=self.version, **changes)

    def decide(
        self, decision: Callable[[Circumstances], TransactionDecision | None]
    ) -> TransactionDecision | None:
        try:
            return decision(self.circumstances())
        except ProducerIdRequiredError:
            self.producer_id_next += 1
            fresh = ProducerId(self.producer_id_next)
            return decision(self.circumstances(fresh_producer_id=fresh))

    def carry_out(self, decision: Callable[[Circumstances], TransactionDecision | None]) -> object:
        decided = self.decide(decision)
        if decided is None:
            return None
        if decided.record is not None:
            self.shard.reserve(decided.record)
            self.settle(decided.record)
        if decided.error is not ErrorCode.NONE:
            raise ApiError(decided.error)
        return decided.response

    def settle(self, record: TransactionRecord) -> None:
        if self.log_refuses:
            self.log_refuses = False
            self.shard.abandon(record)
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.log.append(write_record(record, self.version))
        self.shard.apply(record)

    # ---- what clients, brokers and time do

    def init(self, expected: Identity | None = None, name: str = ID) -> Identity:
        had = expected or Identity()
        return self.carry_out(lambda now: decide_init(self.shard, name, TIMEOUT_MS, had, now))

    def add(
        self,
        producer: Identity,
        *partitions: TopicPartition,
        version: TransactionVersion = TV_2,
        name: str = ID,
    ) -> None:
        self.carry_out(lambda now: decide_add(self.shard, name, producer, partitions, now, version))

    def end(
        self,
        producer: Identity,
        *,
        commits: bool,
        version: TransactionVersion = TV_2,
        name: str = ID,
    ) -> Identity:
        return self.carry_out(
            lambda now: decide_end(self.shard, name, producer, now, version, commits=commits)
        )

    def mark(self, partitions: Iterable[TopicPartition] | None = None, name: str = ID) -> None:
        """Markers are written: all that are wanted, or some; the last one completes."""
        wanted = set(self.shard.unmarked.get(name, ()))
        if self.shard.note_marked(name, wanted if partitions is None else set(partitions)):
            self.carry_out(lambda now: decide_complete(self.shard, name, now))

    def abort_timed_out(self) -> list[str]:
        names = timed_out(self.shard, TimestampMs(self.now_ms))
        for name in names:
            self.carry_out(lambda now, each=name: decide_timeout(self.shard, each, now))
        return names

    def expire(self) -> None:
        for record in decide_expiry(self.shard, self.circumstances()):
            self.shard.reserve(record)
            self.settle(record)

    def fail_over(self) -> None:
        self.shard = self.replayed()

    def replayed(self) -> TransactionShard:
        shard = TransactionShard(partition=PartitionIndex(0))
        for key, value in self.log:
            record = read_record(key, value)
            assert record is not None
            replay(shard, record)
        return shard

    @property
    def found(self) -> Transaction:
        return self.shard.transactions[ID]


def refusal(call: Callable[[], object]) -> ErrorCode:
    """Return the code with which a call is refused, NONE if it is not."""
    try:
        call()
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
