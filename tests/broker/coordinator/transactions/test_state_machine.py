"""Random producers, retries, zombies, timeouts, refusals and failovers against the coordinator."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_broker.coordinator.transactions.records import read_record
from headrace_broker.coordinator.transactions.transaction import EPOCH_MAX, LAST_EPOCH, Identity
from headrace_broker.protocol.errors import ApiError, ErrorCode
from support.transactions import ID, TIMEOUT_MS, TV_0, TV_2, Coordinator, refusal

PARTITIONS = [("t", 0), ("t", 1), ("__consumer_offsets", 7)]
NAMES = st.sampled_from("abc")
LOST = st.booleans()


class Producer:
    """What one process remembers; `incarnation` counts its starts among all processes'."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.incarnation = 0
        self.has_added = False


class TransactionMachine(RuleBasedStateMachine):
    """Every process believes that the transactional id is its own."""

    version = TV_2

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(self.version)
        self.producers = {name: Producer() for name in "abc"}
        self.incarnations = 0
        self.newest = 0
        self.committed: set[tuple[int, int]] = set()
        self.markers: dict[tuple[int, int], set[bool]] = {}
        self.sent: list[tuple[Identity, bool]] = []

    # ---- clients

    @rule(name=NAMES, lost=LOST)
    def start(self, name: str, lost: bool) -> None:  # noqa: FBT001
        producer = self.producers[name]
        producer.identity = None
        try:
            given = self.coordinator.init()
        except ApiError as error:
            if error.code not in (
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ):
                raise
            return
        self.incarnations += 1
        self.newest = self.incarnations
        if not lost:
            producer.identity, producer.incarnation = given, self.incarnations
            producer.has_added = False

    @rule(name=NAMES, lost=LOST)
    def recover(self, name: str, lost: bool) -> None:  # noqa: FBT001
        producer = self.producers[name]
        if producer.identity is None:
            return
        try:
            given = self.coordinator.init(producer.identity)
        except ApiError as error:
            if error.code == ErrorCode.PRODUCER_FENCED:
                producer.identity = None
            return
        assert producer.incarnation == self.newest, "a zombie recovered"
        if not lost:
            producer.identity, producer.has_added = given, False

    @rule(name=NAMES, partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def add(self, name: str, partitions: set[tuple[str, int]]) -> None:
        producer = self.producers[name]
        if producer.identity is None:
            return
        code = refusal(
            lambda: self.coordinator.add(producer.identity, *partitions, version=self.version)
        )
        if code is ErrorCode.NONE:
            assert producer.incarnation == self.newest, "a zombie began to write"
            producer.has_added = True
        elif code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            producer.identity = None

    @rule(name=NAMES, commits=st.booleans(), lost=LOST)
    def end(self, name: str, commits: bool, lost: bool) -> None:  # noqa: FBT001
        producer = self.producers[name]
        if producer.identity is None:
            return
        commits = commits and producer.has_added
        self.sent.append((producer.identity, commits))
        self._end(producer, producer.identity, commits=commits, lost=lost)

    def _end(self, producer: Producer | None, who: Identity, *, commits: bool, lost: bool) -> None:
        before = len(self.coordinator.log)
        try:
            following = self.coordinator.end(who, commits=commits, version=self.version)
        except ApiError as error:
            if producer is not None and not error.code.is_retriable:
                producer.identity = None
            return
        if commits and len(self.coordinator.log) > before:
            assert producer is not None, "a delayed EndTxn committed what it does not know"
            assert producer.incarnation == self.newest, "a commit after a fence"
        if producer is not None and not lost:
            producer.has_added = False
            if self.version is TV_2:
                producer.identity = following

    @precondition(lambda self: self.sent and self.version is TV_2)
    @rule(data=st.data())
    def a_delayed_end_arrives(self, data: st.DataObject) -> None:
        who, commits = data.draw(st.sampled_from(self.sent))
        if any(producer.identity == who for producer in self.producers.values()):
            return
        self._end(None, who, commits=commits, lost=True)

    # ---- the cluster

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS)))
    def markers_are_written(self, partitions: set[tuple[str, int]]) -> None:
        self._mark(partitions)

    @rule()
    def all_markers_are_written(self) -> None:
        self._mark(set(PARTITIONS))

    def _mark(self, partitions: set[tuple[str, int]]) -> None:
        found = self.coordinator.shard.transactions.get(ID)
        if found is None or not found.status.is_prepared or self.coordinator.log_refuses:
            return
        self.coordinator.mark(partitions & self.coordinator.shard.unmarked[ID])

    @rule(ms=st.integers(1, TIMEOUT_MS))
    def time_passes(self, ms: int) -> None:
        self.coordinator.now_ms += ms
        refusal(self.coordinator.abort_timed_out)

    @rule()
    def the_log_refuses_the_next_record(self) -> None:
        self.coordinator.log_refuses = True

    @rule(name=NAMES)
    def takes_over_and_writes(self, name: str) -> None:
        """Take the short way to an open transaction, which random steps seldom find."""
        self.coordinator.log_refuses = False
        for _ in range(2):
            self.start(name, lost=False)
            self.all_markers_are_written()
        self.add(name, {("t", 0)})

    @rule()
    def the_coordinator_moves(self) -> None:
        self.coordinator.fail_over()

    @rule(epoch=st.sampled_from([LAST_EPOCH - 2, LAST_EPOCH - 1, LAST_EPOCH]))
    def epochs_run_out_soon(self, epoch: int) -> None:
        """Make many transactions of the newest producer at once, by their epochs alone."""
        found = self.coordinator.shard.transactions.get(ID)
        if found is None or not found.status.is_idle or found.epoch >= epoch:
            return
        jumped = object.__new__(type(found))
        for field in found.__slots__:
            object.__setattr__(jumped, field, getattr(found, field))
        object.__setattr__(jumped, "epoch", epoch)
        object.__setattr__(jumped, "last_epoch", -1)
        self.coordinator.shard.transactions[ID] = jumped
        for producer in self.producers.values():
            if producer.identity == found.identity:
                producer.identity = jumped.identity
        self.sent.clear()

    # ---- what holds

    @invariant()
    def one_outcome_for_each_transaction(self) -> None:
        """Once written, the outcome of a transaction is never another."""
        outcomes: dict[tuple[int, int, int, int], bool] = {}
        completed = 0
        for key, value in self.coordinator.log:
            found = read_record(key, value).transaction
            completed += found.status.name.startswith("COMPLETE_")
            if found.status.is_prepared:
                # With version 0 the next transaction may have the same epoch and millisecond.
                what = (found.producer_id, found.epoch, found.start_ms, completed)
                commits = found.status.name == "PREPARE_COMMIT"
                assert outcomes.setdefault(what, commits) == commits

    @invariant()
    def epochs_and_ids_only_grow(self) -> None:
        last = (-1, -1)
        for key, value in self.coordinator.log:
            found = read_record(key, value).transaction
            assert (found.producer_id, found.epoch) >= last
            assert found.epoch <= EPOCH_MAX
            last = (found.producer_id, found.epoch)

    @invariant()
    def nothing_is_left_pending(self) -> None:
        assert not self.coordinator.shard.pending

    @invariant()
    def markers_are_missing_of_decided_transactions_only(self) -> None:
        shard = self.coordinator.shard
        decided = {name for name, found in shard.transactions.items() if found.status.is_prepared}
        assert set(shard.unmarked) == decided

    def teardown(self) -> None:
        """Once faults stop, every transaction ends within its timeout."""
        coordinator = self.coordinator
        coordinator.log_refuses = False
        coordinator.now_ms += TIMEOUT_MS
        coordinator.abort_timed_out()
        coordinator.mark()
        if ID in coordinator.shard.transactions:
            assert coordinator.found.status.is_idle
            assert refusal(coordinator.init) is ErrorCode.NONE


class VersionZeroMachine(TransactionMachine):
    version = TV_0


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestVersionZero = VersionZeroMachine.TestCase
TestVersionZero.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
