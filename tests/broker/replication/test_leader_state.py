"""The leader's view of its followers: high watermark, in-sync set, candidates."""

from typing import Any

import pytest

from headrace_broker.protocol.types import BrokerEpoch, LeaderEpoch, NodeId, Offset
from headrace_broker.replication.leader import LeaderState

LAG_MS = 10_000
EPOCHS = {2: BrokerEpoch(20), 3: BrokerEpoch(30)}


def state(*, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2, start: int = 0) -> LeaderState:
    made = LeaderState(NodeId(1), LeaderEpoch(5), Offset(start))
    made.configure([NodeId(1), NodeId(2), NodeId(3)], min_isr, 0)
    made.commit_isr(tuple(NodeId(node) for node in isr), 7)
    return made


def fetch(
    made: LeaderState, node: int, offset: int, end: int, now_ms: int = 0, **more: Any
) -> bool:
    epoch = more.get("epoch", EPOCHS[node])
    return made.record_fetch(NodeId(node), BrokerEpoch(epoch), Offset(offset), Offset(end), now_ms)


def anyone(*_: object) -> bool:
    return True


def nobody(*_: object) -> bool:
    return False


def test_a_new_leader_commits_nothing_before_each_in_sync_replica_has_fetched_in_its_epoch():
    made = state(start=10)
    assert made.committed_end(Offset(10)) == -1
    fetch(made, 2, 10, 10)
    assert made.committed_end(Offset(10)) == -1
    fetch(made, 3, 8, 10)
    assert made.committed_end(Offset(10)) == 8


def test_a_leader_alone_commits_what_it_writes():
    made = state(isr=(1,), min_isr=1)
    assert made.is_alone
    assert made.committed_end(Offset(42)) == 42


def test_below_min_insync_replicas_nothing_is_committed_whatever_acks_say():
    made = state(isr=(1,), min_isr=2)
    assert made.is_under_min_isr
    assert made.committed_end(Offset(42)) == -1


def test_min_insync_replicas_above_the_replicas_means_all_of_them():
    made = state(min_isr=9)
    assert made.min_in_sync_replicas == 3


def test_a_shrink_holds_the_high_watermark_until_the_controller_has_answered():
    made = state()
    fetch(made, 2, 100, 100)
    fetch(made, 3, 50, 100)
    made.propose([NodeId(2)], BrokerEpoch(10))
    assert made.committed_end(Offset(100)) == 50
    made.commit_isr((NodeId(1), NodeId(2)), 8)
    assert made.committed_end(Offset(100)) == 100


def test_an_expansion_counts_before_the_controller_has_answered():
    made = state(isr=(1, 2))
    fetch(made, 2, 100, 100)
    fetch(made, 3, 90, 100)
    assert made.committed_end(Offset(100)) == 100
    update = made.propose([NodeId(2), NodeId(3)], BrokerEpoch(10))
    assert made.committed_end(Offset(100)) == 90
    assert update.members == ((1, 10), (2, 20), (3, 30))
    made.withdraw(update)
    assert made.committed_end(Offset(100)) == 100


def test_only_one_change_of_the_in_sync_set_is_asked_for_at_a_time():
    made = state()
    made.propose([NodeId(2)], BrokerEpoch(10))
    assert not made.may_join(NodeId(3), 0, anyone)
    with pytest.raises(RuntimeError, match="under way"):
        made.propose([NodeId(3)], BrokerEpoch(10))


def test_an_older_partition_epoch_changes_nothing():
    made = state()
    assert not made.commit_isr((NodeId(1),), 7)
    assert made.isr == (1, 2, 3)


@pytest.mark.parametrize(("offset", "joins"), [(9, False), (14, False), (15, True), (20, True)])
def test_a_follower_joins_with_all_that_is_committed_and_from_the_epochs_start(offset, joins):
    made = state(isr=(1, 2), start=15)
    fetch(made, 3, offset, 20)
    assert made.may_join(NodeId(3), 10, anyone) is joins
    assert not made.may_join(NodeId(3), 10, nobody)


def test_the_high_watermark_waits_for_a_candidate_that_keeps_up():
    made = state(isr=(1,), min_isr=1)
    fetch(made, 2, 90, 90, now_ms=50)
    made.note_candidate(NodeId(2), Offset(100), 60, LAG_MS, nobody)
    assert made.committed_end(Offset(100)) == 100
    made.note_candidate(NodeId(2), Offset(100), 60, LAG_MS, anyone)
    assert made.joining == {2}
    assert made.committed_end(Offset(100)) == 90
    made.lagging(100, 50 + LAG_MS + 1, LAG_MS)
    assert made.committed_end(Offset(100)) == 100


def test_the_high_watermark_waits_for_no_candidate_that_holds_no_replica_any_more():
    made = state(isr=(1,), min_isr=1)
    fetch(made, 2, 90, 90, now_ms=50)
    made.note_candidate(NodeId(2), Offset(100), 60, LAG_MS, anyone)
    assert made.committed_end(Offset(100)) == 90
    made.configure([NodeId(1), NodeId(3)], 1, 70)
    assert made.joining == frozenset()
    assert made.committed_end(Offset(100)) == 100


def test_a_follower_that_has_everything_is_in_sync_however_long_it_is_silent():
    made = state()
    fetch(made, 2, 100, 100, now_ms=0)
    fetch(made, 3, 100, 100, now_ms=0)
    assert made.lagging(100, 10 * LAG_MS, LAG_MS) == frozenset()


def test_a_follower_is_late_only_from_the_first_append_that_it_lacks():
    made = state()
    fetch(made, 2, 100, 100, now_ms=0)
    fetch(made, 3, 100, 100, now_ms=0)
    made.note_append(100, 5 * LAG_MS)
    fetch(made, 2, 101, 101, now_ms=5 * LAG_MS + 1)
    assert made.lagging(101, 6 * LAG_MS, LAG_MS) == frozenset()
    assert made.lagging(101, 6 * LAG_MS + 1, LAG_MS) == {3}


def test_a_follower_that_keeps_up_with_a_busy_leader_stays_in_sync():
    made = state()
    fetch(made, 3, 0, 0)
    end = 0
    for now_ms in range(0, 10 * LAG_MS, 100):
        fetch(made, 2, end, end + 10, now_ms)
        end += 10
    assert made.lagging(end + 10, 10 * LAG_MS, LAG_MS) == {3}


def test_a_former_process_of_a_follower_no_longer_counts():
    made = state()
    assert fetch(made, 2, 10, 100, epoch=21)
    assert not fetch(made, 2, 100, 100, epoch=20)
    assert made.followers[NodeId(2)].fetch_offset == 10


def test_a_follower_has_what_it_says_also_where_that_is_less_than_it_had():
    """Its machine has lost power, or it has cut off what was damaged."""
    made = state()
    for node in (2, 3):
        fetch(made, node, 100, 100)
    fetch(made, 2, 60, 100, epoch=21)
    assert made.committed_end(Offset(110)) == 60
    made.commit_isr((NodeId(1), NodeId(3)), 8)
    assert not made.may_join(NodeId(2), 100, anyone)
