"""What a replica refuses, and what it keeps over a restart: by single steps of one node."""

import random
import uuid

import pytest

from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from headrace_broker.protocol.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartitionData,
    BeginQuorumEpochRequestTopicData,
)
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from headrace_broker.protocol.messages.vote import (
    VoteRequest,
    VoteRequestPartitionData,
    VoteRequestTopicData,
)
from headrace_broker.raft import effects as fx
from headrace_broker.raft import events as ev
from headrace_broker.raft.following import truncate
from headrace_broker.raft.node import RaftNode
from headrace_broker.raft.replica import InvariantError, Replica
from headrace_broker.raft.roles import LEGAL_MOVES, Follower, Leader, Role
from headrace_broker.raft.types import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    LogState,
    OffsetAndEpoch,
    QuorumState,
    ReplicaKey,
)
from support.raft_node import ask, elect, node_of, sent, vote_answer
from support.raft_process import config_of, directory_of, endpoint_of

ENDS_OF_LOG = LogState(end_offset=5, epochs=((1, 0), (3, 4)))


def vote_request(candidate: int, epoch: int, end: OffsetAndEpoch, **fields) -> VoteRequest:
    partition = VoteRequestPartitionData(
        replica_id=candidate,
        replica_directory_id=directory_of(candidate),
        replica_epoch=epoch,
        last_offset=end.offset,
        last_offset_epoch=end.epoch,
        **fields,
    )
    topic = VoteRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return VoteRequest(voter_id=1, topics=[topic])


def vote(node: RaftNode, *args, **fields):
    response, effects = ask(node, vote_request(*args, **fields), 2)
    return response.topics[0].partitions[0], effects


@pytest.mark.parametrize(
    ("end", "granted"),
    [((4, 3), False), ((5, 3), True), ((9, 2), False), ((1, 4), True), ((6, 3), True)],
)
def test_raft_5_4_1_a_vote_goes_to_a_log_that_is_at_least_as_up_to_date(end, granted):
    node = node_of(log=ENDS_OF_LOG)
    answer, _ = vote(node, 2, 5, OffsetAndEpoch(*end))
    assert answer.vote_granted is granted
    assert answer.leader_epoch == 5


def test_raft_5_2_a_vote_is_durable_before_it_is_sent_and_given_once_in_an_epoch():
    node = node_of()
    answer, effects = vote(node, 2, 1, OffsetAndEpoch(0, 0))
    kinds = [type(effect) for effect in effects]
    assert answer.vote_granted
    assert kinds.index(fx.PersistQuorumState) < kinds.index(fx.Reply)
    assert not vote(node, 3, 1, OffsetAndEpoch(9, 0))[0].vote_granted
    assert vote(node, 2, 1, OffsetAndEpoch(0, 0))[0].vote_granted, "the answer may have been lost"
    state = next(e.state for e in effects if isinstance(e, fx.PersistQuorumState))
    again = node_of(state=state)
    assert not vote(again, 3, 1, OffsetAndEpoch(9, 0))[0].vote_granted
    assert vote(again, 2, 1, OffsetAndEpoch(0, 0))[0].vote_granted


def test_kip_996_a_pre_vote_changes_nothing_that_is_durable():
    node = node_of()
    answer, effects = vote(node, 2, 0, OffsetAndEpoch(0, 0), pre_vote=True)
    assert answer.vote_granted
    assert not [e for e in effects if isinstance(e, fx.PersistQuorumState)]


def test_kip_853_a_vote_for_another_directory_of_this_node_is_refused():
    node = node_of()
    answer, _ = vote(node, 2, 1, OffsetAndEpoch(0, 0), voter_directory_id=uuid.UUID(int=77))
    assert answer.error_code == ErrorCode.INVALID_VOTER_KEY
    assert not answer.vote_granted


def test_a_vote_of_an_older_epoch_is_fenced_and_a_senseless_one_is_invalid():
    node = node_of(state=QuorumState(epoch=4))
    assert vote(node, 2, 3, OffsetAndEpoch(0, 0))[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    response, _ = ask(node, vote_request(2, 5, OffsetAndEpoch(3, 6)), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    response, _ = ask(node, VoteRequest(cluster_id="other"), 2)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def fetch(node: RaftNode, epoch: int, version: int = 17, offset: int = 0, now_ms: int = 1):
    partition = FetchPartition(
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=0,
        replica_directory_id=directory_of(2),
    )
    topic = FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    request = FetchRequest(replica_state=ReplicaState(replica_id=2), topics=[topic])
    return node.step(ev.ReceivedRequest(7, request, version), now_ms)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_kip_320_a_fetch_for_another_epoch_or_leader_is_refused(epoch, error):
    (reply,) = [
        e for e in fetch(node_of(state=QuorumState(epoch=3)), epoch) if hasattr(e, "ticket")
    ]
    assert reply.response.responses[0].partitions[0].error_code == error


def test_raft_5_3_a_log_that_parts_from_the_leaders_commits_nothing_however_long_it_is():
    node = node_of()
    _, now_ms = elect(node)
    node.step(ev.LogFlushed(1), now_ms)
    effects = fetch(node, node.epoch, offset=node.end_offset, now_ms=now_ms)
    (reply,) = [effect for effect in effects if isinstance(effect, fx.Reply)]
    diverging = reply.response.responses[0].partitions[0].diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (0, 0)
    assert node.high_watermark == 0


def test_a_fetch_is_sent_no_more_than_it_asks_for_in_all_and_of_the_partition():
    node = node_of(voters=1)
    node.step(ev.LogFlushed(1), 1)
    for all_max, partition_max in ((100, 1000), (1000, 100)):
        partition = FetchPartition(
            current_leader_epoch=1,
            last_fetched_epoch=0,
            partition_max_bytes=partition_max,
            replica_directory_id=directory_of(2),
        )
        topic = FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2), max_bytes=all_max, topics=[topic]
        )
        (sent_records,) = [
            effect
            for effect in node.step(ev.ReceivedRequest(7, request, 17), 2)
            if isinstance(effect, fx.ReplyWithRecords)
        ]
        assert sent_records.max_bytes == 100


def test_a_follower_never_follows_two_leaders_in_one_epoch():
    node = node_of()

    def begin(leader: int, epoch: int):
        partition = BeginQuorumEpochRequestPartitionData(leader_id=leader, leader_epoch=epoch)
        topic = BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        return ask(node, BeginQuorumEpochRequest(topics=[topic]), 1)[0]

    assert begin(2, 4).error_code == ErrorCode.NONE
    assert node.leader_id == 2
    assert begin(3, 4).error_code == ErrorCode.INVALID_REQUEST
    assert node.leader_id == 2
    answer = begin(3, 3).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (answer.leader_id, answer.leader_epoch) == (2, 4)


def test_kip_595_a_former_leader_comes_back_resigned_and_never_leads_its_epoch_again():
    own = ReplicaKey(1, directory_of(1))
    node = node_of(state=QuorumState(epoch=6, leader_id=1, voted=own))
    assert node.role is Role.RESIGNED
    effects = node.step(ev.Tick(), 5000)
    votes = [e.request for e in effects if isinstance(e, fx.Send)]
    assert {v.topics[0].partitions[0].pre_vote for v in votes} == {True}
    assert node.epoch == 6


def test_kip_595_a_leader_of_one_describes_itself_and_refuses_a_voter_that_does_not_follow():
    node = node_of(voters=1)
    node.step(ev.LogFlushed(1), 1)
    topic = DescribeQuorumRequestTopicData(
        topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
    )
    response, _ = ask(node, DescribeQuorumRequest(topics=[topic]), 2)
    found = response.topics[0].partitions[0]
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 1, 3)
    assert [voter.replica_id for voter in found.current_voters] == [1]
    assert [(n.node_id, n.listeners[0].port) for n in response.nodes] == [(1, endpoint_of(1).port)]
    request = AddRaftVoterRequest(
        cluster_id=None,
        voter_id=2,
        voter_directory_id=directory_of(2),
        listeners=[Listener(name="CONTROLLER", host="h", port=1)],
    )
    refused, _ = ask(node, request, 1)
    assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
    request.voter_id = 1
    assert ask(node, request, 1)[0].error_code == ErrorCode.DUPLICATE_VOTER


def test_a_voter_that_never_fetched_is_described_without_times():
    node = node_of()
    _, now_ms = elect(node)
    topic = DescribeQuorumRequestTopicData(
        topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
    )
    response, _ = ask(node, DescribeQuorumRequest(topics=[topic]), 2, now_ms)
    found = {item.replica_id: item for item in response.topics[0].partitions[0].current_voters}
    assert set(found) == {1, 2, 3}
    assert found[2].log_end_offset == found[2].last_fetch_timestamp == -1
    assert found[2].last_caught_up_timestamp == -1


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_description_can_be_encoded_in_every_version(version):
    node = node_of(voters=1)
    node.step(ev.LogFlushed(1), 1)
    topic = DescribeQuorumRequestTopicData(
        topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
    )
    response, _ = ask(node, DescribeQuorumRequest(topics=[topic]), version)
    assert encode_bytes(response, version)


def test_an_append_for_another_epoch_is_refused_and_changes_nothing():
    node = node_of(voters=1)
    end = node.end_offset
    effects = node.step(ev.Append((bytearray(),), 9), 1)
    assert effects == [fx.AppendRefused(9)]
    assert node.end_offset == end


def test_a_move_that_the_table_does_not_list_raises():
    replica = Replica(
        config_of(1, 3), random.Random(1), state=QuorumState(), log=LogState(), control=()
    )
    with pytest.raises(InvariantError, match="unattached may not become leader"):
        replica.enter(Leader(epoch=1, epoch_start_offset=0))
    assert Role.LEADER not in LEGAL_MOVES[Role.FOLLOWER]
    replica.become_follower(2, 3, None)
    assert isinstance(replica.role, Follower)
    with pytest.raises(InvariantError, match="SingleLeader"):
        replica.become_follower(2, 2, None)
    with pytest.raises(InvariantError, match="MonotonicEpoch"):
        replica.become_unattached(1)


def test_committed_records_are_never_truncated():
    replica = Replica(
        config_of(1, 3), random.Random(1), state=QuorumState(), log=ENDS_OF_LOG, control=()
    )
    replica.advance_high_watermark(5)
    with pytest.raises(InvariantError, match="MonotonicHighWatermark"):
        truncate(replica, OffsetAndEpoch(4, 1))


def test_raft_5_2_a_vote_split_with_a_dead_third_is_given_up_at_once():
    """Else both candidates wait for the dead one's answer until the election timeout."""
    node = node_of()
    now_ms = node.next_deadline_ms
    asked = sent(node.step(ev.Tick(), now_ms))
    node.step(ev.RequestFailed(asked[3].correlation_id), now_ms)
    granted = vote_answer(epoch=0, granted=True)
    effects = node.step(ev.ReceivedResponse(asked[2].correlation_id, granted), now_ms)
    assert node._replica.role.role is Role.CANDIDATE
    asked = sent(effects)
    rejected = vote_answer(epoch=1, granted=False)
    node.step(ev.ReceivedResponse(asked[2].correlation_id, rejected), now_ms)
    assert node._replica.role.deadline_ms - now_ms >= 500, "the third may yet grant"
    node.step(ev.RequestFailed(asked[3].correlation_id), now_ms)
    assert node._replica.role.deadline_ms - now_ms <= 50
