"""The quorum's messages in this replica's terms: one topic, one partition.

Owns the checks that all of them share and the answers to requests that are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    begin_quorum_epoch,
    end_quorum_epoch,
    fetch,
    fetch_snapshot,
    vote,
)
from headrace_broker.protocol.types import NodeId

from .replica import Replica
from .types import METADATA_PARTITION, METADATA_TOPIC, METADATA_TOPIC_ID, Endpoint, ReplicaKey

NO_ID = -1


def sole_partition(topics: Sequence[Any]) -> Any | None:
    """Return the metadata partition's part of a message, if it has no other part."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, found = topics[0], topics[0].partitions[0]
    name = getattr(topic, "topic_name", None) or getattr(topic, "name", None)
    name = name or getattr(topic, "topic", None)
    is_metadata = name == METADATA_TOPIC or getattr(topic, "topic_id", None) == METADATA_TOPIC_ID
    index = getattr(found, "partition_index", None)
    for other in ("partition", "index"):
        index = getattr(found, other, None) if index is None else index
    return found if is_metadata and index == METADATA_PARTITION else None


def check_cluster(replica: Replica, cluster_id: str | None) -> ErrorCode:
    """Refuse a request from another cluster's node."""
    own = replica.config.cluster_id
    if own is not None and cluster_id is not None and cluster_id != own:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    return ErrorCode.NONE


def check_addressee(replica: Replica, voter_id: int, directory_id: Any) -> ErrorCode:
    """Refuse a request for another replica: an id that moved, or a disk that is gone."""
    if voter_id == NO_ID or replica.key.matches(ReplicaKey(NodeId(voter_id), directory_id)):
        return ErrorCode.NONE
    return ErrorCode.INVALID_VOTER_KEY


def endpoints_in(response: Any) -> Mapping[NodeId, Endpoint]:
    """Return the addresses of the nodes in a response."""
    return {NodeId(at.node_id): Endpoint(at.host, at.port) for at in response.node_endpoints}


def _leader(replica: Replica) -> tuple[int, int]:
    leader = replica.leader_id
    return (NO_ID if leader is None else leader), replica.epoch


def _endpoints(replica: Replica, cls: Any, *, is_known: bool) -> list[Any]:
    endpoint, leader = replica.leader_endpoint, replica.leader_id
    if endpoint is None or leader is None or not is_known:
        return []
    return [cls(node_id=leader, host=endpoint.host, port=endpoint.port)]


def vote_response(
    replica: Replica, api_version: int, error: ErrorCode, *, granted: bool = False
) -> vote.VoteResponse:
    """Answer Vote; a request that is malformed or of another cluster gets a top-level error."""
    if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
        return vote.VoteResponse(error_code=error)
    leader_id, epoch = _leader(replica)
    answer = vote.VoteResponsePartitionData(
        error_code=error, leader_id=leader_id, leader_epoch=epoch, vote_granted=granted
    )
    return vote.VoteResponse(
        topics=[vote.VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=[answer])],
        node_endpoints=_endpoints(replica, vote.NodeEndpoint, is_known=api_version >= 1),
    )


def begin_response(
    replica: Replica, api_version: int, error: ErrorCode
) -> begin_quorum_epoch.BeginQuorumEpochResponse:
    """Answer BeginQuorumEpoch."""
    m = begin_quorum_epoch
    if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
        return m.BeginQuorumEpochResponse(error_code=error)
    leader_id, epoch = _leader(replica)
    answer = m.BeginQuorumEpochResponsePartitionData(
        error_code=error, leader_id=leader_id, leader_epoch=epoch
    )
    topic = m.BeginQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[answer])
    endpoints = _endpoints(replica, m.NodeEndpoint, is_known=api_version >= 1)
    return m.BeginQuorumEpochResponse(topics=[topic], node_endpoints=endpoints)


def end_response(
    replica: Replica, api_version: int, error: ErrorCode
) -> end_quorum_epoch.EndQuorumEpochResponse:
    """Answer EndQuorumEpoch."""
    m = end_quorum_epoch
    if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
        return m.EndQuorumEpochResponse(error_code=error)
    leader_id, epoch = _leader(replica)
    answer = m.EndQuorumEpochResponsePartitionData(
        error_code=error, leader_id=leader_id, leader_epoch=epoch
    )
    topic = m.EndQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[answer])
    endpoints = _endpoints(replica, m.NodeEndpoint, is_known=api_version >= 1)
    return m.EndQuorumEpochResponse(topics=[topic], node_endpoints=endpoints)


def fetch_response(
    replica: Replica, api_version: int, error: ErrorCode = ErrorCode.NONE
) -> fetch.FetchResponse:
    """Answer Fetch: an error, or the frame that records, divergence or a snapshot id go into."""
    if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
        return fetch.FetchResponse(error_code=error)
    leader_id, epoch = _leader(replica)
    answer = fetch.PartitionData(
        error_code=error,
        high_watermark=NO_ID if error else replica.high_watermark,
        last_stable_offset=NO_ID if error else replica.high_watermark,
        log_start_offset=NO_ID if error else replica.log.start.offset,
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        aborted_transactions=None,
        records=b"",
    )
    topic = fetch.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[answer]
    )
    endpoints = _endpoints(replica, fetch.NodeEndpoint, is_known=api_version >= 16)  # noqa: PLR2004 - the schema's version
    return fetch.FetchResponse(responses=[topic], node_endpoints=endpoints)


def snapshot_response(
    replica: Replica, api_version: int, error: ErrorCode = ErrorCode.NONE
) -> fetch_snapshot.FetchSnapshotResponse:
    """Answer FetchSnapshot: an error, or the frame that a snapshot's part goes into."""
    m = fetch_snapshot
    if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST):
        return m.FetchSnapshotResponse(error_code=error)
    leader_id, epoch = _leader(replica)
    answer = m.FetchSnapshotResponsePartitionSnapshot(
        error_code=error,
        current_leader=m.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
    )
    topic = m.FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[answer])
    endpoints = _endpoints(replica, m.NodeEndpoint, is_known=api_version >= 1)
    return m.FetchSnapshotResponse(topics=[topic], node_endpoints=endpoints)
