"""What the transaction coordinator answers, rule by rule (KIP-98, KIP-360, KIP-890)."""

from dataclasses import replace

import pytest

from headrace_broker.coordinator.transactions.admin import (
    TransactionFilter,
    describe_transaction,
    list_transactions,
)
from headrace_broker.coordinator.transactions.config import TransactionConfig
from headrace_broker.coordinator.transactions.init_producer import decide_init
from headrace_broker.coordinator.transactions.partitions import verify
from headrace_broker.coordinator.transactions.records import read_record, write_record
from headrace_broker.coordinator.transactions.shard import record_of
from headrace_broker.coordinator.transactions.states import (
    TRANSITIONS,
    IllegalTransitionError,
    TransactionStatus,
    check_transition,
)
from headrace_broker.coordinator.transactions.transaction import Identity
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import ProducerEpoch
from support.transactions import ID, TIMEOUT_MS, TV_0, TV_2, Coordinator, identity, refusal

P0, P1, P2 = ("t", 0), ("t", 1), ("u", 0)


def at_epoch(coordinator: Coordinator, epoch: int) -> Identity:
    """Move the id's producer to an epoch without thousands of transactions."""
    coordinator.init()
    moved = replace(coordinator.found, epoch=ProducerEpoch(epoch))
    coordinator.log.append(write_record(record_of(moved), coordinator.version))
    coordinator.fail_over()
    return moved.identity


def test_a_transaction_goes_from_begin_to_commit():
    coordinator = Coordinator()
    first = coordinator.init()
    assert first.epoch == 0
    coordinator.add(first, P0)
    coordinator.add(first, P1, P2)
    following = coordinator.end(first, commits=True)
    assert following == identity(first.producer_id, 1)
    assert coordinator.found.status is TransactionStatus.PREPARE_COMMIT
    coordinator.mark([P0])
    assert coordinator.found.status is TransactionStatus.PREPARE_COMMIT
    coordinator.mark()
    assert coordinator.found.status is TransactionStatus.COMPLETE_COMMIT
    assert coordinator.found.identity == following
    coordinator.add(following, P0)


def test_partitions_that_are_known_cost_no_record():
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0, P1)
    before = len(coordinator.log)
    coordinator.add(producer, P1)
    assert len(coordinator.log) == before


def test_a_second_producer_fences_the_first():
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init()
    assert second == identity(first.producer_id, 1)
    assert refusal(lambda: coordinator.add(first, P0)) == ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: coordinator.end(first, commits=True)) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_a_second_producer_aborts_what_the_first_left_open(version):
    coordinator = Coordinator(version)
    first = coordinator.init()
    coordinator.add(first, P0, version=version)
    assert refusal(coordinator.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.found.status is TransactionStatus.PREPARE_ABORT
    assert coordinator.found.epoch == 1, "one bump, no more (KAFKA-19367)"
    assert refusal(coordinator.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert coordinator.found.epoch == 1
    late = refusal(lambda: coordinator.end(first, commits=True, version=version))
    assert late in (ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.mark()
    late = refusal(lambda: coordinator.end(first, commits=True, version=version))
    assert late in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
    assert coordinator.init().epoch == 2, "the fencing epoch is never handed out"


def test_a_refused_fence_leaves_nothing_behind():
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, P0)
    for _ in range(3):
        coordinator.log_refuses = True
        assert refusal(coordinator.init) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.found.epoch == 0
    assert not coordinator.shard.pending
    coordinator.end(first, commits=True)


def test_nothing_else_happens_to_an_id_while_its_record_is_on_its_way():
    coordinator = Coordinator()
    first = coordinator.init()
    decided = coordinator.decide(
        lambda now: decide_init(coordinator.shard, ID, TIMEOUT_MS, Identity(), now)
    )
    coordinator.shard.reserve(decided.record)
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(coordinator.init) == busy
    # The new producer's epoch is not known yet: it must not hear that it is fenced.
    assert refusal(lambda: coordinator.add(decided.response, P0)) == busy
    assert refusal(lambda: coordinator.add(first, P0)) == busy
    assert refusal(lambda: coordinator.end(first, commits=True)) == busy
    coordinator.shard.apply(decided.record)
    coordinator.add(decided.response, P0)


# ---- KIP-360


def test_a_producer_that_recovers_bumps_its_epoch_once():
    coordinator = Coordinator()
    first = coordinator.init()
    second = coordinator.init(first)
    assert second.epoch == 1
    assert coordinator.init(first) == second, "the answer was lost: the same again"
    third = coordinator.init(second)
    assert third.epoch == 2
    assert refusal(lambda: coordinator.init(first)) == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_fenced_cannot_recover():
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.init()
    assert refusal(lambda: coordinator.init(first)) == ErrorCode.PRODUCER_FENCED
    foreign = identity(first.producer_id + 7, 0)
    assert refusal(lambda: coordinator.init(foreign)) == ErrorCode.PRODUCER_FENCED


def test_another_producers_id_cannot_recover_with_the_epoch_that_was_left():
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.init(first)
    foreign = identity(first.producer_id + 7, first.epoch)
    assert refusal(lambda: coordinator.init(foreign)) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_exhausted_epochs_give_another_producer_id(version):
    coordinator = Coordinator(version)
    last = at_epoch(coordinator, 32766)
    following = coordinator.init(last)
    assert following.epoch == 0
    assert following.producer_id != last.producer_id
    assert coordinator.init(last) == following, "the answer was lost: the same again"


def test_another_producers_last_epoch_recovers_no_id_that_has_changed():
    coordinator = Coordinator()
    last = at_epoch(coordinator, 32766)
    coordinator.init(last)
    foreign = identity(last.producer_id + 7, 32766)
    assert refusal(lambda: coordinator.init(foreign)) == ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_can_still_be_fenced():
    for version in (TV_0, TV_2):
        coordinator = Coordinator(version)
        last = at_epoch(coordinator, 32766)
        coordinator.add(last, P0, version=version)
        assert refusal(coordinator.init) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert coordinator.found.epoch == 32767
        coordinator.fail_over()
        coordinator.mark()
        following = coordinator.init()
        assert following.producer_id != last.producer_id
        assert following.epoch <= 1


def test_the_last_epoch_can_still_commit():
    coordinator = Coordinator()
    last = at_epoch(coordinator, 32766)
    coordinator.add(last, P0)
    following = coordinator.end(last, commits=True)
    assert following.epoch == 0
    assert following.producer_id != last.producer_id
    assert coordinator.found.identity == identity(last.producer_id, 32767), "for the markers"
    again = lambda: coordinator.end(last, commits=True)  # noqa: E731
    assert refusal(again) == ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.mark()
    assert again() == following, "a retry across the change of ids succeeds (FLINK-40689)"
    coordinator.fail_over()
    assert again() == following
    coordinator.add(following, P0)
    assert refusal(again) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# ---- EndTxn: the tables


def ended(commits: bool, version=TV_2) -> tuple[Coordinator, Identity, Identity]:  # noqa: FBT001
    coordinator = Coordinator(version)
    first = coordinator.init()
    coordinator.add(first, P0, version=version)
    following = coordinator.end(first, commits=commits, version=version)
    coordinator.mark()
    return coordinator, first, following


@pytest.mark.parametrize("was_commit", [True, False])
def test_a_repeated_end_is_answered_by_what_was_done(was_commit):
    coordinator, first, following = ended(was_commit)
    assert coordinator.end(first, commits=was_commit) == following
    other = refusal(lambda: coordinator.end(first, commits=not was_commit))
    assert other == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("was_commit", [True, False])
def test_a_delayed_end_never_ends_the_next_transaction(was_commit):
    coordinator, first, following = ended(was_commit)
    coordinator.add(following, P1)
    for commits in (True, False):
        late = refusal(lambda each=commits: coordinator.end(first, commits=each))
        assert late == ErrorCode.PRODUCER_FENCED
    assert coordinator.found.status is TransactionStatus.ONGOING


@pytest.mark.parametrize("status", ["prepared", "complete"])
@pytest.mark.parametrize("was_commit", [True, False])
def test_an_older_successors_end_is_no_answer_to_a_fenced_producer(was_commit, status):
    """Its end moves no epoch, so the one before is a former producer's, not that of a retry."""
    coordinator = Coordinator()
    zombie = coordinator.init()
    successor = coordinator.init()
    coordinator.add(successor, P0, version=TV_0)
    coordinator.end(successor, commits=was_commit, version=TV_0)
    if status == "complete":
        coordinator.mark()
    for commits in (True, False):
        late = refusal(lambda each=commits: coordinator.end(zombie, commits=each))
        assert late == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("was_commit", [True, False])
def test_an_end_has_to_wait_for_markers(was_commit):
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first, P0)
    following = coordinator.end(first, commits=was_commit)
    same = refusal(lambda: coordinator.end(first, commits=was_commit))
    assert same == ErrorCode.CONCURRENT_TRANSACTIONS
    other = refusal(lambda: coordinator.end(first, commits=not was_commit))
    assert other == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: coordinator.add(following, P0)) == ErrorCode.CONCURRENT_TRANSACTIONS
    # The client has the next epoch since the outcome was decided, and may end with it already.
    for commits in (True, False):
        early = refusal(lambda each=commits: coordinator.end(following, commits=each))
        assert early == ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.mark()
    other = refusal(lambda: coordinator.end(first, commits=not was_commit))
    assert other == ErrorCode.INVALID_TXN_STATE
    assert coordinator.end(following, commits=False).epoch == following.epoch + 1


def test_an_abort_of_nothing_bumps_and_a_commit_of_nothing_is_refused():
    coordinator = Coordinator()
    first = coordinator.init()
    nothing = refusal(lambda: coordinator.end(first, commits=True))
    assert nothing == ErrorCode.INVALID_TXN_STATE
    following = coordinator.end(first, commits=False)
    assert following.epoch == 1
    coordinator.mark()
    assert coordinator.found.status is TransactionStatus.COMPLETE_ABORT
    assert coordinator.end(following, commits=False).epoch == 2


def test_version_one_takes_the_same_outcome_again_and_nothing_of_nothing():
    for was_commit in (True, False):
        coordinator, first, _ = ended(was_commit, TV_0)
        assert coordinator.found.identity == first, "no bump"
        coordinator.end(first, commits=was_commit, version=TV_0)
        with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
            coordinator.end(first, commits=not was_commit, version=TV_0)
    empty = Coordinator(TV_0)
    first = empty.init()
    for commits in (True, False):
        nothing = refusal(lambda each=commits: empty.end(first, commits=each, version=TV_0))
        assert nothing == ErrorCode.INVALID_TXN_STATE


def test_another_producers_id_is_distinguished_from_an_old_epoch():
    coordinator = Coordinator()
    first = coordinator.init()
    foreign = identity(first.producer_id + 1, 0)
    wrong = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal(lambda: coordinator.add(foreign, P0)) == wrong
    assert refusal(lambda: coordinator.end(foreign, commits=True)) == wrong
    assert refusal(lambda: coordinator.add(first, P0, name="nobody")) == wrong
    future = identity(first.producer_id, 9)
    assert refusal(lambda: coordinator.add(future, P0)) == ErrorCode.PRODUCER_FENCED
    assert refusal(lambda: coordinator.end(future, commits=True)) == ErrorCode.PRODUCER_FENCED


# ---- verification, time, limits


def test_a_leader_learns_whether_a_partition_belongs_to_the_open_transaction():
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0, version=TV_0)
    assert verify(coordinator.shard, ID, producer, [P0, P1]) == {
        P0: ErrorCode.NONE,
        P1: ErrorCode.TRANSACTION_ABORTABLE,
    }
    old = identity(producer.producer_id, -1)
    assert refusal(lambda: verify(coordinator.shard, ID, old, [P0])) == ErrorCode.PRODUCER_FENCED
    coordinator.end(producer, commits=True, version=TV_0)
    waiting = refusal(lambda: verify(coordinator.shard, ID, producer, [P0]))
    assert waiting == ErrorCode.CONCURRENT_TRANSACTIONS
    coordinator.mark()
    assert verify(coordinator.shard, ID, producer, [P0])[P0] == ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_a_transaction_that_takes_too_long_is_aborted_once(version):
    coordinator = Coordinator(version)
    producer = coordinator.init()
    coordinator.add(producer, P0, version=version)
    coordinator.now_ms += TIMEOUT_MS - 1
    coordinator.add(producer, P1, version=version)
    assert coordinator.abort_timed_out() == [], "not yet"
    coordinator.now_ms += 1
    assert coordinator.abort_timed_out() == [ID], "counted from its begin"
    assert coordinator.abort_timed_out() == []
    assert coordinator.found.epoch == 1
    late = refusal(lambda: coordinator.end(producer, commits=True, version=version))
    assert late in (ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS)
    coordinator.mark()
    late = refusal(lambda: coordinator.end(producer, commits=True, version=version))
    assert late in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
    assert coordinator.found.status is TransactionStatus.COMPLETE_ABORT


def test_idle_ids_expire_and_open_ones_never():
    config = TransactionConfig(id_expiration_ms=100_000)
    coordinator = Coordinator(config=config)
    coordinator.init(name="idle")
    coordinator.add(coordinator.init(name="open"), P0, name="open")
    prepared = coordinator.init(name="prepared")
    coordinator.add(prepared, P0, name="prepared")
    coordinator.end(prepared, commits=True, name="prepared")
    coordinator.now_ms += 99_999
    coordinator.expire()
    assert set(coordinator.shard.transactions) == {"idle", "open", "prepared"}
    coordinator.now_ms += 1
    coordinator.expire()
    assert set(coordinator.shard.transactions) == {"open", "prepared"}
    assert coordinator.replayed().transactions.keys() == {"open", "prepared"}


def test_timeouts_and_numbers_of_ids_have_limits():
    coordinator = Coordinator()
    shard = coordinator.shard

    def ask(timeout_ms, name=ID, expected=None, **changes):
        now = coordinator.circumstances(fresh_producer_id=1, **changes)
        return refusal(lambda: decide_init(shard, name, timeout_ms, expected or Identity(), now))

    assert ask(0) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert ask(-1) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert ask(15 * 60_000 + 1) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert ask(15 * 60_000) == ErrorCode.NONE
    assert ask(1, name="") == ErrorCode.INVALID_REQUEST
    assert ask(1, expected=identity(-1, 3)) == ErrorCode.INVALID_REQUEST
    assert ask(1, room_for_an_id=False) == ErrorCode.POLICY_VIOLATION


def test_a_successor_writes_the_markers_that_are_not_known_to_be_written():
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0, P1)
    coordinator.end(producer, commits=True)
    coordinator.mark([P0])
    coordinator.fail_over()
    assert coordinator.shard.unmarked == {ID: {P0, P1}}
    assert [each.transactional_id for each in coordinator.shard.prepared()] == [ID]
    coordinator.mark()
    assert coordinator.found.status is TransactionStatus.COMPLETE_COMMIT


# ---- administrators


def test_transactions_are_listed_by_state_producer_and_age():
    coordinator = Coordinator()
    one = coordinator.init(name="one")
    two = coordinator.init(name="two")
    coordinator.add(two, P0, name="two")
    coordinator.now_ms += 5_000

    def listed(**wanted):
        now_ms = coordinator.now_ms
        found = list_transactions(coordinator.shard, TransactionFilter(**wanted), now_ms)
        return [each.transactional_id for each in found]

    assert listed() == ["one", "two"]
    assert listed(statuses=frozenset({TransactionStatus.ONGOING})) == ["two"]
    assert listed(producer_ids=frozenset({one.producer_id})) == ["one"]
    ongoing = frozenset({TransactionStatus.ONGOING})
    assert listed(duration_ms=4_999, statuses=ongoing) == ["two"]
    assert listed(duration_ms=5_000, statuses=ongoing) == []
    assert listed(duration_ms=5_000) == ["one"], "no start is longer ago than any, as in Kafka"
    assert listed(matches=lambda name: name.startswith("o")) == ["one"]


def test_a_transaction_is_described():
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, P1, P0, P2)
    described = describe_transaction(coordinator.shard, ID)
    assert described.transaction_state == "Ongoing"
    assert [(each.topic, each.partitions) for each in described.topics] == [
        ("t", [0, 1]),
        ("u", [0]),
    ]
    unknown = refusal(lambda: describe_transaction(coordinator.shard, "nobody"))
    assert unknown == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# ---- the table, the records


def test_the_table_has_kafkas_edges_and_no_others():
    named = {
        before.label: sorted(after.label for after in edges)
        for before, edges in TRANSITIONS.items()
    }
    idle = ["Dead", "Empty", "Ongoing", "PrepareAbort"]
    assert named == {
        "Empty": idle,
        "Ongoing": ["Ongoing", "PrepareAbort", "PrepareCommit", "PrepareEpochFence"],
        "PrepareCommit": ["CompleteCommit"],
        "PrepareAbort": ["CompleteAbort"],
        "CompleteCommit": idle,
        "CompleteAbort": idle,
        "Dead": [],
        "PrepareEpochFence": ["PrepareAbort"],
    }
    with pytest.raises(IllegalTransitionError):
        check_transition(TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_ABORT)


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_records_are_read_as_they_were_written(version):
    coordinator = Coordinator(version)
    producer = coordinator.init()
    coordinator.add(producer, P0, P2, version=version)
    written = coordinator.found
    found = read_record(*write_record(record_of(written), version)).transaction
    if version is TV_0:
        found = replace(found, previous_producer_id=written.previous_producer_id)
    assert found == written


def test_a_lowered_version_does_not_forget_how_a_transaction_ends():
    coordinator = Coordinator(TV_2)
    coordinator.add(coordinator.init(), P0)
    coordinator.version = TV_0
    begun = coordinator.found
    following = coordinator.end(begun.identity, commits=True)
    coordinator.fail_over()
    assert coordinator.found.client_version is TV_2, "its marker has the next epoch"
    coordinator.mark()
    assert coordinator.found.identity == following


def test_records_are_kafkas_bytes():
    """As Apache Kafka's TransactionLog lays them out: version, then the fields (and tags)."""
    coordinator = Coordinator(TV_0)
    producer = coordinator.init()
    key, value = coordinator.log[0]
    assert key == b"\0\0" + b"\0\x05app-1"
    assert value.hex() == (
        "0000" "0000000000000065" "0000" "0000ea60" "00" "ffffffff"
        "00000000000003e8" "ffffffffffffffff"
    )  # fmt: skip
    coordinator.version = TV_2
    coordinator.add(producer, P0)
    assert coordinator.log[1][1].hex() == (
        "0001" "0000000000000065" "0000" "0000ea60" "01"
        "02" "0274" "0200000000" "00"
        "00000000000003e8" "00000000000003e8"
        "02" "00080000000000000065" "02020002"
    )  # fmt: skip
