"""A share group's records, held against an oracle that keeps one entry for each offset."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement
from headrace_broker.coordinator.share_partition.partition import (
    AcquireRequest,
    ReadBatch,
    ShareLimits,
    SharePartition,
)
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.coordinator.share_state.state import overlay
from headrace_broker.protocol.errors import ApiError, ErrorCode

LIMITS = ShareLimits(deliveries_max=3, locks_max=40, lock_ms=100)
ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    [AcknowledgeType.ACCEPT],
    [AcknowledgeType.RELEASE],
    [AcknowledgeType.REJECT],
    [AcknowledgeType.RENEW],
    [AcknowledgeType.GAP],
)


def fetch(partition, member="a", last=None, records_max=100, now_ms=0, limits=LIMITS, **more):
    begin = partition.fetch_offset(limits)
    if begin is None:
        return []
    last = begin + 9 if last is None else last
    request = AcquireRequest(member_id=member, records_max=records_max, **more)
    batches = [ReadBatch(first=begin, last=last)] if last >= begin else []
    return [
        (item.first, item.last, item.count)
        for item in partition.acquire(request, begin, batches, limits, now_ms)
    ]


def say(partition, first, last, types, member="a", now_ms=0):
    return partition.acknowledge(
        member, [Acknowledgement(first=first, last=last, types=types)], LIMITS, now_ms
    )


def settle(partition):
    write = partition.take_write()
    partition.committed(write)
    return write


def test_what_one_member_has_another_is_not_given():
    partition = SharePartition(0)
    assert fetch(partition, "a") == [(0, 9, 1)]
    assert fetch(partition, "b") == [(10, 19, 1)]
    with pytest.raises(ApiError) as error:
        say(partition, 0, 0, ACCEPT, "b")
    assert error.value.code is ErrorCode.INVALID_RECORD_STATE


def test_nothing_is_done_before_it_is_durable():
    partition = SharePartition(0)
    fetch(partition)
    assert say(partition, 0, 4, ACCEPT)
    assert partition.start_offset == 0
    write = partition.take_write()
    assert (write.start_offset, write.batches) == (5, [])
    partition.failed(write)
    assert partition.start_offset == 0
    assert say(partition, 0, 4, ACCEPT), "the member has them still"
    settle(partition)
    assert partition.start_offset == 5


def test_what_is_released_waits_for_the_log_and_comes_again_with_a_higher_count():
    partition = SharePartition(0)
    fetch(partition)
    say(partition, 2, 3, RELEASE)
    assert partition.fetch_offset(LIMITS) == 10, "not durable yet"
    settle(partition)
    assert fetch(partition, "b", last=9) == [(2, 3, 2)]
    assert partition.redelivered == 2


def test_a_record_is_delivered_as_often_as_the_limit_says_and_no_more():
    partition = SharePartition(0)
    for count in (1, 2, 3):
        assert fetch(partition, last=0) == [(0, 0, count)]
        say(partition, 0, 0, RELEASE)
        settle(partition)
    assert partition.start_offset == 1
    assert partition.undeliverable == 1


def test_records_that_fail_again_and_again_come_in_smaller_parts_and_at_last_alone():
    """Kafka's way: one record that nobody can process must not archive a whole batch."""
    limits = ShareLimits(deliveries_max=6, locks_max=100, lock_ms=100)
    partition = SharePartition(0)

    def deliver_all(now_ms):
        """Fetch until nothing is left, then let the locks run out; return what each fetch gave."""
        found = []
        request, batch = (
            AcquireRequest(member_id="a", records_max=100),
            [ReadBatch(first=0, last=15)],
        )
        while (begin := partition.fetch_offset(limits)) is not None and begin <= 15:
            got = partition.acquire(request, begin, batch, limits, now_ms)
            found.append([item.last - item.first + 1 for item in got])
        partition.expire(limits, now_ms + 100)
        return found

    whole, half, quarters, alone = [[16]], [[8], [8]], [[4]] * 4, [[1]] * 16
    sizes = [deliver_all(now_ms) for now_ms in range(0, 600, 100)]
    assert sizes == [whole, whole, whole, half, quarters, alone]
    assert deliver_all(600) == []


def test_records_that_fail_again_and_again_do_not_share_a_fetch_with_others():
    limits = ShareLimits(deliveries_max=4, locks_max=100, lock_ms=100)
    partition = SharePartition(0)
    for now_ms in (0, 100):
        fetch(partition, last=3, now_ms=now_ms, limits=limits)
        partition.expire(limits, now_ms + 100)
    request = AcquireRequest(member_id="a", records_max=100)
    batches = [ReadBatch(first=0, last=3), ReadBatch(first=4, last=9)]
    assert [
        [(item.first, item.last) for item in partition.acquire(request, 0, batches, limits, 200)]
        for _ in range(3)
    ] == [[(0, 1)], [(2, 3)], [(4, 9)]]


def test_a_delivery_that_is_under_way_is_not_counted_in_what_is_written():
    partition = SharePartition(0)
    fetch(partition, last=0)
    partition.expire(LIMITS, 100)
    fetch(partition, last=0)
    write = settle(partition)
    assert [(item.delivery_state, item.delivery_count) for item in write.batches] == [(0, 1)]
    successor = SharePartition(write.start_offset, write.batches)
    assert fetch(successor, last=0) == [(0, 0, 2)], "the next leader delivers it as this one did"


def test_a_lock_that_times_out_frees_the_records_and_a_renewed_one_does_not():
    partition = SharePartition(0)
    fetch(partition, now_ms=0)
    assert not say(partition, 5, 9, RENEW, now_ms=50), "nothing to write"
    assert partition.next_deadline_ms() == 100
    assert partition.expire(LIMITS, 100)
    assert fetch(partition, "b", last=9, now_ms=100) == [(0, 4, 2)]
    with pytest.raises(ApiError):
        say(partition, 0, 0, ACCEPT, now_ms=101)
    say(partition, 5, 9, ACCEPT, now_ms=101)


def test_a_member_that_leaves_gives_all_back_and_that_delivery_counts():
    partition = SharePartition(0)
    fetch(partition)
    assert partition.release("a", LIMITS)
    assert fetch(partition, "b", last=9) == [(0, 9, 2)]


def test_a_record_that_ends_every_member_is_delivered_as_often_as_it_may_be():
    partition = SharePartition(0)
    for number in range(LIMITS.deliveries_max):
        assert fetch(partition, f"member-{number}", last=0), "delivered again"
        partition.release(f"member-{number}", LIMITS)
    assert fetch(partition, "one more", last=0) == []
    assert partition.undeliverable == 1


def test_an_acknowledgement_below_a_start_that_is_not_durable_waits_for_it():
    """Its lock ran out for the last time. A new leader that reads no such start delivers it."""
    partition = SharePartition(0)
    for now_ms in range(0, 1000 * LIMITS.deliveries_max, 1000):
        fetch(partition, last=0, now_ms=now_ms)
        settle(partition)
        partition.expire(LIMITS, now_ms + 999)
    assert partition.start_offset == 1
    assert say(partition, 0, 0, ACCEPT), "there is something to write"
    write = partition.take_write()
    assert say(partition, 0, 0, ACCEPT), "it is on its way"
    partition.failed(write)
    assert say(partition, 0, 0, ACCEPT), "it did not arrive"
    settle(partition)
    assert not say(partition, 0, 0, ACCEPT)


def test_what_is_below_the_start_offset_may_be_acknowledged_again():
    partition = SharePartition(0)
    fetch(partition)
    say(partition, 0, 4, ACCEPT)
    settle(partition)
    assert partition.start_offset == 5
    assert not say(partition, 0, 4, ACCEPT), "nothing to write"
    assert not say(partition, 2, 3, ACCEPT)


def test_what_was_never_delivered_cannot_be_acknowledged():
    partition = SharePartition(0)
    fetch(partition)
    with pytest.raises(ApiError) as refused:
        say(partition, 5, 10, ACCEPT)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_one_record_that_is_not_held_voids_the_whole_request():
    partition = SharePartition(0)
    fetch(partition)
    with pytest.raises(ApiError):
        partition.acknowledge(
            "a",
            [
                Acknowledgement(first=0, last=3, types=ACCEPT),
                Acknowledgement(first=9, last=10, types=ACCEPT),
            ],
            LIMITS,
            0,
        )
    assert not partition.needs_write
    for types in ([9], [1, 1, 1], []):
        with pytest.raises(ApiError) as error:
            say(partition, 0, 1, types)
        assert error.value.code is ErrorCode.INVALID_REQUEST


def test_no_more_records_are_in_flight_than_the_limit():
    partition = SharePartition(0)
    assert fetch(partition, last=99) == [(0, 39, 1)]
    assert partition.fetch_offset(LIMITS) is None
    say(partition, 0, 9, ACCEPT)
    settle(partition)
    assert fetch(partition, last=99) == [(40, 49, 1)]


def test_a_strict_limit_holds_to_the_record_and_the_other_to_the_batch():
    partition = SharePartition(0)
    assert fetch(partition, records_max=3) == [(0, 9, 1)]
    assert fetch(partition, records_max=3, is_strict=True) == [(10, 12, 1)]
    assert fetch(partition, "b", last=19, records_max=3, is_strict=True) == [(13, 15, 1)]


def test_ranges_end_with_batches_once_they_are_as_large_as_asked_for():
    partition = SharePartition(0)
    batches = [ReadBatch(first=first, last=first + 4) for first in (0, 5, 10, 15)]
    request = AcquireRequest(member_id="a", records_max=100, batch_size=8)
    acquired = partition.acquire(request, 0, batches, LIMITS, 0)
    assert [(item.first, item.last) for item in acquired] == [(0, 9), (10, 19)]


def test_offsets_without_records_are_never_delivered():
    partition = SharePartition(0)
    batches = [
        ReadBatch(first=3, last=5),
        ReadBatch(first=6, last=6, can_be_delivered=False),
        ReadBatch(first=9, last=9),
    ]
    request = AcquireRequest(member_id="a", records_max=100)
    acquired = partition.acquire(request, 0, batches, LIMITS, 0)
    assert [(item.first, item.last) for item in acquired] == [(3, 5), (9, 9)]
    assert partition.start_offset == 3
    say(partition, 3, 5, ACCEPT)
    settle(partition)
    assert partition.start_offset == 9
    assert partition.written_start == 9


def test_what_was_deleted_from_the_log_is_passed_over():
    partition = SharePartition(0)
    fetch(partition)
    partition.move_log_start(5)
    assert say(partition, 0, 6, ACCEPT), "0 to 4 are gone, which is nobody's fault"
    settle(partition)
    assert partition.start_offset == 7


def test_what_is_done_with_above_the_start_offset_cannot_be_acknowledged_again():
    partition = SharePartition(0)
    fetch(partition)
    say(partition, 3, 4, ACCEPT)
    settle(partition)
    with pytest.raises(ApiError) as error:
        say(partition, 3, 4, ACCEPT)
    assert error.value.code is ErrorCode.INVALID_RECORD_STATE


@dataclass
class Oracle:
    """What every offset is, one by one."""

    state: dict[int, RecordState] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)
    holder: dict[int, str] = field(default_factory=dict)
    deadline: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class SharePartitionMachine(RuleBasedStateMachine):
    """Members that fetch, acknowledge and fall silent; writes that fail; leaders that change."""

    def __init__(self):
        super().__init__()
        self.partition = SharePartition(0)
        self.oracle = Oracle()
        self.now_ms = 0
        self.log_end = 0
        self.durable_start = 0
        self.durable = ()
        self.promised = set()
        self.waiting = {}  # offset -> kind, acknowledged but not written
        self.write = None
        self.writing = {}

    @rule(size=st.integers(1, 15))
    def append(self, size):
        self.log_end += size

    @rule(
        member=st.sampled_from("abc"),
        size=st.integers(1, 12),
        records_max=st.integers(1, 20),
        strict=st.booleans(),
    )
    def fetch(self, member, size, records_max, strict):
        begin = self.partition.fetch_offset(LIMITS)
        if begin is None or begin >= self.log_end:
            return
        ends = [*range(begin + size - 1, self.log_end - 1, size), self.log_end - 1]
        firsts = [begin] + [end + 1 for end in ends[:-1]]
        batches = [
            ReadBatch(first=first, last=last) for first, last in zip(firsts, ends, strict=True)
        ]
        request = AcquireRequest(member_id=member, records_max=records_max, is_strict=strict)
        got = 0
        for item in self.partition.acquire(request, begin, batches, LIMITS, self.now_ms):
            for offset in range(item.first, item.last + 1):
                oracle = self.oracle
                assert offset not in oracle.done, "acknowledged, and delivered again"
                state = oracle.state.get(offset, RecordState.AVAILABLE)
                assert state is RecordState.AVAILABLE, "acquired by two"
                oracle.count[offset] = oracle.count.get(offset, 0) + 1
                assert item.count == oracle.count[offset] <= LIMITS.deliveries_max
                oracle.state[offset] = RecordState.ACQUIRED
                oracle.holder[offset] = member
                oracle.deadline[offset] = self.now_ms + LIMITS.lock_ms
                got += 1
        assert not strict or got <= records_max

    @rule(
        member=st.sampled_from("abc"),
        begin=st.integers(0, 30),
        size=st.integers(1, 6),
        kinds=st.lists(st.sampled_from(AcknowledgeType), min_size=6, max_size=6),
    )
    def acknowledge(self, member, begin, size, kinds):
        first = self.partition.start_offset + begin
        last = first + size - 1
        held = all(
            self.oracle.holder.get(offset) == member and offset not in self.waiting
            for offset in range(first, last + 1)
        )
        said = [Acknowledgement(first=first, last=last, types=kinds[:size])]
        if not held:
            with pytest.raises(ApiError):
                self.partition.acknowledge(member, said, LIMITS, self.now_ms)
            return
        self.partition.acknowledge(member, said, LIMITS, self.now_ms)
        for offset, kind in zip(range(first, last + 1), kinds, strict=False):
            if kind is AcknowledgeType.RENEW:
                self.oracle.deadline[offset] = self.now_ms + LIMITS.lock_ms
            else:
                self.waiting[offset] = kind

    @precondition(lambda self: self.write is None)
    @rule()
    def begin_write(self):
        self.write = self.partition.take_write()
        self.writing = dict(self.waiting)

    @precondition(lambda self: self.write is not None)
    @rule(works=st.booleans())
    def end_write(self, works):
        write, self.write = self.write, None
        for offset in self.writing:
            kind = self.waiting.pop(offset)
            if works:
                self._settle(offset, kind)
                if offset in self.oracle.done:
                    self.promised.add(offset)
        if works:
            self.partition.committed(write)
            self.durable_start = write.start_offset
            self.durable = overlay(self.durable, write.batches, write.start_offset)
        else:
            self.partition.failed(write)
        self.writing = {}

    def _settle(self, offset, kind):
        oracle = self.oracle
        oracle.holder.pop(offset)
        if kind is AcknowledgeType.RELEASE and oracle.count[offset] < LIMITS.deliveries_max:
            oracle.state[offset] = RecordState.AVAILABLE
        else:
            oracle.state[offset] = RecordState.ARCHIVED
            oracle.done.add(offset)

    @rule(step=st.integers(1, 120))
    def time_goes_on(self, step):
        self.now_ms += step
        self.partition.expire(LIMITS, self.now_ms)
        for offset, holder in list(self.oracle.holder.items()):
            is_late = self.oracle.deadline[offset] <= self.now_ms
            if holder and is_late and offset not in self.waiting:
                self._settle(offset, AcknowledgeType.RELEASE)

    @rule(member=st.sampled_from("abc"))
    def leave(self, member):
        self.partition.release(member, LIMITS)
        for offset, holder in list(self.oracle.holder.items()):
            if holder == member and offset not in self.waiting:
                self._settle(offset, AcknowledgeType.RELEASE)

    @precondition(lambda self: self.write is None)
    @rule()
    def another_leader_takes_over(self):
        self.partition = SharePartition(self.durable_start, self.durable)
        self.waiting = {}
        written = {
            offset: batch
            for batch in self.durable
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        done = set(range(self.durable_start))
        oracle = Oracle()
        for offset, batch in written.items():
            state = RecordState(batch.delivery_state)
            oracle.count[offset] = batch.delivery_count
            oracle.state[offset] = state
            if state.is_final:
                done.add(offset)
        assert self.promised <= done, "acknowledged and durable, and yet forgotten"
        oracle.done = done
        self.oracle = oracle

    @invariant()
    def the_records_are_what_the_oracle_says(self):
        partition = self.partition
        covered = partition.start_offset
        for run in partition.runs.items:
            assert run.first == covered, "no gap, no overlap"
            covered = run.last + 1
            for offset in range(run.first, run.last + 1):
                state = self.oracle.state.get(offset, RecordState.AVAILABLE)
                assert state.is_final == run.state.is_final, offset
                assert run.state.is_final or run.state is state, offset
                assert run.state.is_final or run.count == self.oracle.count.get(offset, 0)
        for offset in range(partition.start_offset):
            assert offset in self.oracle.done, f"{offset} is lost"
        assert partition.end_offset - partition.start_offset <= LIMITS.locks_max
        assert partition.in_flight == len(self.oracle.holder)
        assert self.durable_start <= partition.start_offset


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_was_rejected_is_distinguished_from_what_was_delivered_too_often():
    partition = SharePartition(0)
    fetch(partition)
    say(partition, 0, 1, REJECT)
    settle(partition)
    # What comes back again and again comes in smaller parts.
    for _ in range(20):
        partition.expire(LIMITS, 1_000_000)
        fetch(partition, last=9, now_ms=0)
    partition.expire(LIMITS, 1_000_000)
    assert partition.rejected == 2
    assert partition.undeliverable == 8
