"""DescribeQuorum: the voters, the observers, and their progress (KIP-595, KIP-836)."""

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from headrace_broker.protocol.schema import ZERO_UUID

from .events import ReceivedRequest
from .leading import progress_of
from .messages import sole_partition
from .replica import Replica
from .roles import Leader, Progress
from .types import METADATA_TOPIC, ReplicaKey

# From v2 on the response has nodes and directories (KIP-853).
_NODES_VERSION_MIN = 2


def handle_describe(
    replica: Replica, event: ReceivedRequest, request: DescribeQuorumRequest
) -> None:
    """Describe the quorum; only its leader can."""
    leader = replica.role
    answer = DescribeQuorumResponsePartitionData(error_message=None)
    if sole_partition(request.topics) is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        replica.reply(event.ticket, DescribeQuorumResponse(error_code=code, error_message=None))
        return
    response = DescribeQuorumResponse(
        error_message=None,
        topics=[DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[answer])],
    )
    if not isinstance(leader, Leader):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        replica.reply(event.ticket, response)
        return
    answer.leader_id = replica.key.node_id
    answer.leader_epoch = leader.epoch
    answer.high_watermark = replica.high_watermark
    answer.current_voters = [
        _state(replica, voter.key, progress_of(leader, voter.key)) for voter in replica.voters
    ]
    answer.observers = [
        _state(replica, key, progress)
        for key, progress in leader.progress.items()
        if not replica.voters.has(key)
    ]
    if event.api_version >= _NODES_VERSION_MIN:
        response.nodes = [
            Node(
                node_id=voter.key.node_id,
                listeners=[
                    Listener(name=at.name, host=at.host, port=at.port) for at in voter.endpoints
                ],
            )
            for voter in replica.voters
        ]
    else:
        for state in (*answer.current_voters, *answer.observers):
            state.replica_directory_id = ZERO_UUID  # these versions have no field for it
    replica.reply(event.ticket, response)


def _state(replica: Replica, key: ReplicaKey, progress: Progress | None) -> ReplicaState:
    unix = replica.unix_time_offset_ms
    state = ReplicaState(replica_id=key.node_id, replica_directory_id=key.directory_id)
    if key.matches(replica.key):
        state.log_end_offset = replica.log.end_offset
        state.last_fetch_timestamp = state.last_caught_up_timestamp = replica.now_ms + unix
        return state
    state.log_end_offset = progress.end_offset if progress else -1
    if progress and progress.last_fetch_ms is not None:
        state.last_fetch_timestamp = progress.last_fetch_ms + unix
    if progress and progress.last_caught_up_ms is not None:
        state.last_caught_up_timestamp = progress.last_caught_up_ms + unix
    return state
