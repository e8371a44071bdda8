"""Brokers register, talk, fall silent, stop, and come back: what the controller makes of it."""

import uuid

import pytest

from headrace_broker.metadata.brokers.liveness import (
    decide_fence_broker,
    decide_heartbeat,
)
from headrace_broker.metadata.brokers.registration import (
    Registration,
    decide_register_broker,
    decide_unregister_broker,
)
from headrace_broker.metadata.brokers.sessions import BrokerSessions
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from support.metadata import POLICY, creatable, create, decide_unfence, image_with_brokers, replayed


class _Cluster:
    def __init__(self, image):
        self.image = image
        self.sessions = BrokerSessions(3000)
        self.now_ms = 0
        self.sessions.begin(image, 0)

    def do(self, decision):
        self.image = replayed(self.image, list(decision.records))
        return decision.response

    def register(self, node, incarnation, *, previous=-1):
        registration = Registration(
            node_id=NodeId(node),
            incarnation_id=uuid.UUID(int=incarnation),
            endpoints=[],
            rack=None,
            log_dirs=[],
            previous_broker_epoch=BrokerEpoch(previous),
        )
        is_alive = self.sessions.was_heard_from(node, self.now_ms)
        return self.do(decide_register_broker(self.image, registration, POLICY, is_alive=is_alive))

    def beat(self, node, *, offset=None, want_fence=False, want_shut_down=False, epoch=None):
        request = BrokerHeartbeatRequest(
            broker_id=node,
            broker_epoch=self.image.brokers[node].epoch if epoch is None else epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        return self.do(decide_heartbeat(self.image, request, self.sessions, POLICY, self.now_ms))

    def fence(self, node):
        return self.do(decide_fence_broker(self.image, node, POLICY))

    def wait(self, milliseconds):
        """Pass time with the check that the controller makes every 100 ms; return the expired."""
        gone = []
        for _ in range(milliseconds // 100):
            self.now_ms += 100
            gone += [item.node_id for item in self.sessions.expired(self.image, self.now_ms)]
        return sorted(set(gone))

    def partition(self, topic="t", index=0):
        return self.image.partition(topic, index)


def _three(*, min_isr="2", assignments=([1, 2, 3],)):
    image, _ = create(
        image_with_brokers(3),
        creatable("t", assignments=list(assignments), min_insync_replicas=min_isr),
    )
    return _Cluster(image)


def _state(partition):
    return partition.leader, partition.isr, partition.eligible_leader_replicas


def test_a_broker_is_fenced_until_it_has_read_its_own_registration():
    cluster = _Cluster(MetadataImage())
    epoch = cluster.register(5, 1)
    assert cluster.image.brokers[5].fenced
    assert epoch == cluster.image.offset
    early = cluster.beat(5, offset=epoch - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    unwilling = cluster.beat(5, want_fence=True)
    assert (unwilling.is_caught_up, unwilling.is_fenced) == (True, True)
    assert not cluster.beat(5).is_fenced
    assert not cluster.image.brokers[5].fenced


def test_the_same_process_may_register_twice_and_another_may_not_while_it_lives():
    cluster = _Cluster(MetadataImage())
    epoch = cluster.register(1, 1)
    assert cluster.register(1, 1) == epoch
    cluster.beat(1)
    with pytest.raises(ApiError) as raised:
        cluster.register(1, 2)
    assert raised.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.sessions.declare_dead(NodeId(1), epoch)
    assert cluster.register(1, 2) > epoch


def test_a_process_may_replace_a_silent_one():
    cluster = _Cluster(MetadataImage())
    epoch = cluster.register(1, 1)
    cluster.beat(1)
    cluster.now_ms += 3000
    assert cluster.register(1, 2) > epoch


def test_a_session_that_is_only_presumed_keeps_no_restarted_broker_out():
    cluster = _three()
    assert cluster.register(1, 11) > 1


def test_a_former_process_hears_that_its_epoch_is_stale():
    cluster = _Cluster(MetadataImage())
    epoch = cluster.register(1, 1)
    cluster.register(1, 2)
    for code, node, stale in [
        (ErrorCode.STALE_BROKER_EPOCH, 1, epoch),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, 9, 4),
    ]:
        request = BrokerHeartbeatRequest(broker_id=node, broker_epoch=stale)
        with pytest.raises(ApiError) as raised:
            decide_heartbeat(cluster.image, request, cluster.sessions, POLICY, 0)
        assert raised.value.code == code


def test_a_silent_broker_expires_and_one_that_talks_does_not():
    cluster = _three()
    assert cluster.wait(2900) == []
    cluster.beat(1)
    cluster.beat(3)
    assert cluster.wait(200) == [2]


def test_a_controller_that_was_held_up_fences_nobody_for_it():
    cluster = _three()
    cluster.wait(500)
    cluster.now_ms += 60_000
    assert cluster.sessions.expired(cluster.image, cluster.now_ms) == []
    assert cluster.wait(1700) == []
    assert cluster.wait(100) == [1, 2, 3]


@pytest.mark.parametrize("late_ms", [760, 1000, 5000])
def test_a_controller_that_is_always_late_still_fences_who_is_silent(late_ms):
    """Machines that are too busy for a check every 100 ms: 3 s are counted in four checks."""
    image, sessions = image_with_brokers(3), BrokerSessions(3000)
    sessions.begin(image, 0)
    checks = 0
    while not (gone := sessions.expired(image, checks * late_ms)):
        checks += 1
        for node in (2, 3):
            broker = image.brokers[node]
            sessions.touch(node, broker.epoch, image.offset, checks * late_ms)
        assert checks < 10
    assert [broker.node_id for broker in gone] == [1]
    assert checks == 4


def test_a_broker_that_was_declared_dead_expires_at_once_unless_it_speaks():
    cluster = _three()
    epoch = cluster.image.brokers[2].epoch
    cluster.sessions.declare_dead(2, epoch)
    assert cluster.wait(100) == [2]
    cluster.beat(2)
    assert cluster.wait(100) == []


def test_fencing_a_leader_elects_the_next_replica_in_sync():
    cluster = _three()
    assert cluster.fence(1)
    after = cluster.partition()
    assert _state(after) == (2, (2, 3), ())
    assert after.leader_epoch == 1
    assert not cluster.fence(1)


def test_below_the_minimum_who_leaves_stays_eligible_and_the_last_one_leads_again():
    cluster = _three()
    for node in (1, 2, 3):
        cluster.fence(node)
    # With 2 gone, 3 alone committed nothing: 2 has all that was committed, and 1 has not.
    assert _state(cluster.partition()) == (-1, (), (2, 3))
    assert cluster.partition().last_known_elr == (3,)
    cluster.do(decide_unfence(cluster.image, 1, cluster.image.brokers[1].epoch, POLICY))
    assert cluster.partition().leader == -1
    cluster.do(decide_unfence(cluster.image, 2, cluster.image.brokers[2].epoch, POLICY))
    assert _state(cluster.partition()) == (2, (2,), (3,))
    assert cluster.partition().leader_recovery_state == 0
    assert cluster.partition().last_known_elr == ()


def test_an_unclean_restart_costs_eligibility_and_a_clean_one_does_not():
    cluster = _three()
    for node in (1, 2, 3):
        cluster.fence(node)
    epoch = cluster.image.brokers[3].epoch
    cluster.register(3, 33, previous=epoch)
    assert _state(cluster.partition()) == (-1, (), (2, 3))
    cluster.register(2, 22)
    assert _state(cluster.partition()) == (-1, (), (3,))


def test_when_nobody_is_eligible_the_last_known_leader_leads_and_says_that_it_recovers():
    cluster = _three()
    for node in (1, 2, 3):
        cluster.register(node, 10 + node)
    after = cluster.partition()
    assert _state(after) == (-1, (), ())
    assert after.last_known_elr == (3,)
    for node in (1, 2):
        cluster.beat(node)
        assert cluster.partition().leader == -1
    cluster.beat(3)
    assert _state(cluster.partition()) == (3, (3,), ())
    assert cluster.partition().leader_recovery_state == 1


def test_a_topic_that_allows_it_gets_any_leader():
    image, _ = create(
        image_with_brokers(2),
        creatable("t", assignments=[[1, 2]], unclean_leader_election_enable="true"),
    )
    cluster = _Cluster(image)
    cluster.fence(2)
    cluster.fence(1)
    assert cluster.partition().leader == -1
    cluster.do(decide_unfence(cluster.image, 2, cluster.image.brokers[2].epoch, POLICY))
    assert _state(cluster.partition()) == (2, (2,), ())
    assert cluster.partition().leader_recovery_state == 1


def test_a_controlled_shutdown_moves_leaders_and_waits_until_all_know():
    cluster = _three()
    for node in (1, 2, 3):
        cluster.beat(node)
    asked = cluster.beat(1, want_shut_down=True)
    assert not asked.should_shut_down
    assert not asked.is_fenced
    assert _state(cluster.partition()) == (2, (2, 3), ())
    cluster.beat(2)
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    cluster.beat(3)
    told = cluster.beat(1, want_shut_down=True)
    assert told.should_shut_down
    assert cluster.image.brokers[1].fenced
    # Until it registers again it is not let in, and then at once, though its session is young.
    assert cluster.beat(1).is_fenced
    cluster.register(1, 11, previous=cluster.image.brokers[1].epoch)
    assert not cluster.beat(1).is_fenced


def test_a_broker_without_leaders_may_stop_at_once_and_leaves_the_isr():
    cluster = _three()
    assert cluster.beat(2, want_shut_down=True).should_shut_down
    assert _state(cluster.partition()) == (1, (1, 3), ())


def test_the_last_replica_may_stop_too():
    cluster = _three(min_isr="1", assignments=([1],))
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    assert _state(cluster.partition()) == (-1, (), (1,))
    before = cluster.image.offset
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    assert cluster.image.offset == before
    for node in (2, 3):
        cluster.beat(node)
    assert cluster.beat(1, want_shut_down=True).should_shut_down


def test_news_of_a_death_does_not_fence_the_successor():
    cluster = _three()
    former = cluster.image.brokers[1].epoch
    cluster.sessions.declare_dead(1, former)
    cluster.register(1, 11)
    cluster.beat(1)
    decision = decide_fence_broker(cluster.image, 1, POLICY, former)
    assert not decision.records
    assert not decision.response


def test_an_unregistered_broker_leaves_what_it_had():
    cluster = _three()
    cluster.do(decide_unregister_broker(cluster.image, 1, POLICY))
    assert 1 not in cluster.image.brokers
    assert _state(cluster.partition()) == (2, (2, 3), ())
    with pytest.raises(ApiError) as raised:
        decide_unregister_broker(cluster.image, 1, POLICY)
    assert raised.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_leaders_of_a_broker_that_dies_go_to_all_others_evenly():
    image, _ = create(image_with_brokers(4), creatable("t", 120, 3))
    cluster = _Cluster(image)
    cluster.fence(2)
    leads = dict.fromkeys([1, 3, 4], 0)
    for partition in cluster.image.topics["t"].partitions.values():
        leads[partition.leader] += 1
    assert max(leads.values()) - min(leads.values()) <= 2


def test_a_beat_of_the_thread_prolongs_a_session_and_changes_nothing_else():
    cluster = _three()
    for node in (1, 2, 3):
        cluster.beat(node)
    cluster.wait(2000)
    # Unfenced: it stays so.
    before = cluster.image
    assert not cluster.beat(1, offset=-1).is_fenced
    assert cluster.image is before or cluster.image.offset == before.offset
    assert cluster.wait(1500) == [2, 3]
    # What the event loop said of the metadata stays said.
    assert cluster.sessions.metadata_offset(NodeId(1)) >= 0
    # Fenced: it does not come back by it.
    cluster.fence(1)
    assert cluster.beat(1, offset=-1).is_fenced
    assert cluster.image.brokers[1].fenced
    # Taking its leave: that goes on.
    for node in (2, 3):
        cluster.beat(node)
    cluster.beat(2, want_shut_down=True)
    assert cluster.image.brokers[2].in_controlled_shutdown
    cluster.beat(2, offset=-1)
    assert cluster.image.brokers[2].in_controlled_shutdown
