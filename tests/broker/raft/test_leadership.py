"""How a leader begins, keeps and ends its epoch: by single steps of one node."""

import random
import uuid
from dataclasses import replace

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    Listener,
)
from headrace_broker.protocol.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartitionData,
    BeginQuorumEpochRequestTopicData,
    LeaderEndpoint,
)
from headrace_broker.protocol.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartitionData,
    EndQuorumEpochRequestTopicData,
)
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
    SnapshotId,
)
from headrace_broker.protocol.messages.fetch import FetchableTopicResponse as TopicResponse
from headrace_broker.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
    FetchSnapshotResponseSnapshotId,
    FetchSnapshotResponseTopicSnapshot,
)
from headrace_broker.protocol.messages.vote import (
    VoteRequest,
    VoteRequestPartitionData,
    VoteRequestTopicData,
)
from headrace_broker.raft import effects as fx
from headrace_broker.raft import events as ev
from headrace_broker.raft.control import build_control_batch, find_control, voters_record
from headrace_broker.raft.node import RaftNode
from headrace_broker.raft.roles import Role
from headrace_broker.raft.types import (
    KRAFT_VERSION_DYNAMIC,
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    Endpoint,
    LogState,
    OffsetAndEpoch,
    QuorumState,
    ReplicaKey,
    VoterSet,
)
from support.raft_node import ask, elect, node_of, sent
from support.raft_process import CLUSTER_ID, config_of, directory_of, endpoint_of

NOT_A_LEADER = -1


def begin_epoch(node: RaftNode, leader: int, epoch: int, *listeners: LeaderEndpoint, cluster=None):
    partition = BeginQuorumEpochRequestPartitionData(leader_id=leader, leader_epoch=epoch)
    topic = BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    request = BeginQuorumEpochRequest(
        cluster_id=cluster, topics=[topic], leader_endpoints=list(listeners)
    )
    response, effects = ask(node, request, 1)
    return response.error_code, effects


def end_epoch(node: RaftNode, leader: int, epoch: int, successors=(1,)):
    partition = EndQuorumEpochRequestPartitionData(
        leader_id=leader, leader_epoch=epoch, preferred_successors=list(successors)
    )
    topic = EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return ask(node, EndQuorumEpochRequest(topics=[topic]), 1)[0].error_code


def test_kip_595_a_leader_says_that_it_leads_when_that_is_durable():
    """Else it would come back as if it had only been a candidate, and let the others wait."""
    node = node_of()
    effects, _ = elect(node)
    (at,) = [i for i, e in enumerate(effects) if isinstance(e, fx.PersistQuorumState)]
    state = effects[at].state
    assert (state.epoch, state.leader_id, state.voted) == (1, 1, ReplicaKey(1, directory_of(1)))
    assert not sent(effects[:at])
    assert node_of(state=state).role is Role.RESIGNED


def test_kip_595_a_new_leader_makes_itself_known_and_again_to_who_does_not_fetch():
    node = node_of()
    effects, now_ms = elect(node)
    assert {type(e.request) for e in sent(effects).values()} == {BeginQuorumEpochRequest}
    assert set(sent(effects)) == {2, 3}
    again = sent(node.step(ev.Tick(), node.next_deadline_ms))
    assert node.next_deadline_ms - now_ms < config_of(1, 3).fetch_timeout_ms * 3 // 2
    assert {type(e.request) for e in again.values()} == {BeginQuorumEpochRequest}


def test_kip_595_who_leads_is_taken_from_the_leaders_own_word_and_from_no_other():
    node = node_of()
    assert begin_epoch(node, 2, 4, cluster="other")[0] == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert begin_epoch(node, NOT_A_LEADER, 4)[0] == ErrorCode.INVALID_REQUEST
    assert begin_epoch(node, 1, 4)[0] == ErrorCode.INVALID_REQUEST
    assert (node.epoch, node.leader_id, node.role) == (0, None, Role.UNATTACHED)
    assert begin_epoch(node, 2, 4, cluster=CLUSTER_ID)[0] == ErrorCode.NONE
    assert (node.epoch, node.leader_id, node.role) == (4, 2, Role.FOLLOWER)


def test_kip_853_a_leader_that_does_not_say_where_it_is_stays_where_it_was():
    node = node_of()
    assert begin_epoch(node, 2, 4)[0] == ErrorCode.NONE
    assert node.leader_endpoint == endpoint_of(2)
    assert (
        begin_epoch(node, 2, 4, LeaderEndpoint(name="C", host="moved", port=7))[0] == ErrorCode.NONE
    )
    assert node.leader_endpoint == Endpoint("moved", 7, "C")
    assert begin_epoch(node, 2, 4)[0] == ErrorCode.NONE
    assert node.leader_endpoint == Endpoint("moved", 7, "C")


def test_kip_595_the_first_in_line_stands_at_once_when_its_leader_resigns():
    node = node_of()
    begin_epoch(node, 2, 4)
    assert end_epoch(node, NOT_A_LEADER, 4) == ErrorCode.INVALID_REQUEST
    assert end_epoch(node, 1, 4) == ErrorCode.INVALID_REQUEST
    assert node.role is Role.FOLLOWER
    assert end_epoch(node, 2, 4) == ErrorCode.NONE
    assert node.role is Role.PROSPECTIVE


def test_kip_595_a_leader_that_resigns_tells_all_voters_in_the_same_step():
    node = node_of()
    _, now_ms = elect(node)
    told = sent(node.step(ev.Resign(), now_ms + 1))
    assert node.role is Role.RESIGNED
    assert {type(e.request) for e in told.values()} == {EndQuorumEpochRequest}
    assert set(told) == {2, 3}


@pytest.mark.parametrize(
    ("own", "said", "error"),
    [
        (CLUSTER_ID, CLUSTER_ID, ErrorCode.NONE),
        (CLUSTER_ID, None, ErrorCode.NONE),
        (CLUSTER_ID, "other", ErrorCode.INCONSISTENT_CLUSTER_ID),
        (None, "other", ErrorCode.NONE),
        (None, None, ErrorCode.NONE),
    ],
)
def test_only_what_names_another_cluster_is_refused(own, said, error):
    config = replace(config_of(1, 3), cluster_id=own)
    node = RaftNode(config, random.Random(1), state=QuorumState(), log=LogState())
    node.start(0)
    assert begin_epoch(node, 2, 4, cluster=said)[0] == error


def fetch(node, offset, last_epoch, now_ms, replica=4, directory=None) -> None:
    partition = FetchPartition(
        current_leader_epoch=node.epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        replica_directory_id=directory or directory_of(replica),
    )
    topic = FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica), topics=[topic], max_wait_ms=0
    )
    node.step(ev.ReceivedRequest(now_ms, request, 17), now_ms)


def test_raft_4_2_1_only_who_has_caught_up_becomes_a_voter():
    """Else the quorum could commit nothing until it has."""
    node = node_of(voters=1)
    node.step(ev.LogFlushed(1), 1)
    request = AddRaftVoterRequest(
        cluster_id=None,
        voter_id=4,
        voter_directory_id=directory_of(4),
        listeners=[Listener(name="CONTROLLER", host="h", port=1)],
        ack_when_committed=False,
    )
    assert ask(node, request, 1, 2)[0].error_code == ErrorCode.REQUEST_TIMED_OUT, "never fetched"
    fetch(node, 0, 0, 3)
    assert ask(node, request, 1, 4)[0].error_code == ErrorCode.REQUEST_TIMED_OUT, "is behind"
    fetch(node, node.end_offset, 1, 5)
    assert ask(node, request, 1, 6)[0].error_code == ErrorCode.NONE
    assert set(node.voters.voters.ids) == {1, 4}


def requests(effects, kind) -> list[fx.Send]:
    return [e for e in effects if isinstance(e, fx.Send) and isinstance(e.request, kind)]


def answer(node: RaftNode, effects, now_ms: int, **fields):
    """Answer the fetch that a step sent."""
    partition = PartitionData(partition_index=0, records=b"", **fields)
    topic = TopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    (asked,) = requests(effects, FetchRequest)
    response = FetchResponse(responses=[topic])
    return node.step(ev.ReceivedResponse(asked.correlation_id, response), now_ms)


def test_kip_630_a_snapshot_that_is_not_whole_is_fetched_again():
    node = node_of()
    wanted = OffsetAndEpoch(9, 3)
    fetched = answer(
        node,
        begin_epoch(node, 2, 4)[1],
        2,
        snapshot_id=SnapshotId(end_offset=9, epoch=3),
        high_watermark=9,
    )
    (asked,) = requests(fetched, FetchSnapshotRequest)
    part = FetchSnapshotResponsePartitionSnapshot(
        snapshot_id=FetchSnapshotResponseSnapshotId(end_offset=9, epoch=3),
        size=4,
        position=0,
        unaligned_records=b"torn",
    )
    topic = FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[part])
    effects = node.step(
        ev.ReceivedResponse(asked.correlation_id, FetchSnapshotResponse(topics=[topic])), 3
    )
    assert [e.snapshot_id for e in effects if isinstance(e, fx.InstallSnapshot)] == [wanted]
    (again,) = requests(node.step(ev.SnapshotRejected(wanted), 4), FetchRequest)
    assert again.request.topics[0].partitions[0].fetch_offset == 0


def test_kip_630_a_snapshot_that_the_leader_does_not_send_is_asked_for_after_a_pause():
    node = node_of()
    fetched = answer(
        node,
        begin_epoch(node, 2, 4)[1],
        2,
        snapshot_id=SnapshotId(end_offset=9, epoch=3),
        high_watermark=9,
    )
    (asked,) = requests(fetched, FetchSnapshotRequest)
    part = FetchSnapshotResponsePartitionSnapshot(error_code=ErrorCode.SNAPSHOT_NOT_FOUND)
    topic = FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[part])
    response = FetchSnapshotResponse(topics=[topic])
    assert not sent(node.step(ev.ReceivedResponse(asked.correlation_id, response), 3))
    due_ms = 3 + config_of(1, 3).retry_backoff_ms
    assert not sent(node.step(ev.Tick(), due_ms - 1))
    assert requests(node.step(ev.Tick(), due_ms), FetchRequest)


def test_kip_853_voters_that_a_truncation_took_away_do_not_count():
    """A change counts from its append on, and so until it is cut off again."""
    config = config_of(1, 3)
    former = VoterSet(list(config.voters))
    fewer = former.without(3)
    batch = build_control_batch([voters_record(fewer)], timestamp_ms=0)
    log = LogState(end_offset=1, epochs=((1, 0),))
    base = RaftNode(config, random.Random(1), state=QuorumState(), log=LogState()).voters
    control = list(find_control(batch, replace(base, kraft_version=KRAFT_VERSION_DYNAMIC)))
    node = RaftNode(config, random.Random(1), state=QuorumState(epoch=1), log=log, control=control)
    node.start(0)
    assert set(node.voters.voters.ids) == {1, 2}
    diverging = EpochEndOffset(epoch=0, end_offset=0)
    effects = answer(
        node, begin_epoch(node, 2, 4)[1], 2, diverging_epoch=diverging, high_watermark=0
    )
    assert [e.end_offset for e in effects if isinstance(e, fx.TruncateLog)] == [0]
    assert [set(e.voters.ids) for e in effects if isinstance(e, fx.VotersChanged)] == [{1, 2, 3}]
    assert set(node.voters.voters.ids) == {1, 2, 3}


def test_the_word_of_the_latest_fetch_counts_where_a_voters_directory_is_not_known():
    """Two disks of one voter, of which the former was behind."""
    node = node_of()
    _, now_ms = elect(node)
    end = node.end_offset
    node.step(ev.LogFlushed(1), now_ms)
    fetch(node, 0, 0, now_ms + 1, replica=2)
    fetch(node, end, 1, now_ms + 2, replica=2, directory=uuid.UUID(int=7))
    assert node.high_watermark == end


def test_kip_996_a_leader_that_announces_itself_again_is_not_gone():
    node = node_of()
    heard = answer(node, begin_epoch(node, 2, 4)[1], 1, high_watermark=0)
    answer(node, heard, 1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partition = VoteRequestPartitionData(replica_id=3, replica_epoch=4, pre_vote=True)
    topic = VoteRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    request = VoteRequest(voter_id=1, topics=[topic])
    assert ask(node, request, 2)[0].topics[0].partitions[0].vote_granted
    begin_epoch(node, 2, 4)
    assert not ask(node, request, 2)[0].topics[0].partitions[0].vote_granted


def test_kip_853_an_observer_that_was_refused_asks_again_in_the_step_that_it_waited_for():
    config = replace(config_of(4, 3), auto_join=True)
    batch = build_control_batch([voters_record(config.voters)], timestamp_ms=0)
    base = RaftNode(config, random.Random(1), state=QuorumState(), log=LogState()).voters
    control = list(find_control(batch, replace(base, kraft_version=KRAFT_VERSION_DYNAMIC)))
    log = LogState(end_offset=1, epochs=((1, 0),))
    node = RaftNode(config, random.Random(1), state=QuorumState(epoch=1), log=log, control=control)
    node.start(0)
    heard = answer(node, begin_epoch(node, 2, 4)[1], 2, high_watermark=1)
    (asked,) = requests(heard, AddRaftVoterRequest)
    refused = AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
    node.step(ev.ReceivedResponse(asked.correlation_id, refused), 3)
    due_ms = node._replica.role.update_voter_at_ms
    assert not requests(node.step(ev.Tick(), due_ms - 1), AddRaftVoterRequest)
    assert requests(node.step(ev.Tick(), due_ms), AddRaftVoterRequest)
