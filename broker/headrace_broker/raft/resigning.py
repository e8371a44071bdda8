"""How a resigning leader tells the others, so that they need not wait (EndQuorumEpoch)."""

from headrace_broker.protocol.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartitionData,
    EndQuorumEpochRequestTopicData,
    EndQuorumEpochResponse,
    ReplicaInfo,
)
from headrace_broker.protocol.types import NodeId

from .messages import endpoints_in, sole_partition
from .replica import Replica
from .roles import Resigned
from .types import METADATA_TOPIC


def tell_resignation(replica: Replica, resigned: Resigned) -> None:
    """Send EndQuorumEpoch to the voters that have not answered it."""
    due = [node for node, at in resigned.tell_at_ms.items() if at <= replica.now_ms]
    for node_id in due:
        del resigned.tell_at_ms[node_id]
        destination = replica.destination_of(node_id)
        if destination is None:
            continue
        partition = EndQuorumEpochRequestPartitionData(
            leader_id=replica.key.node_id,
            leader_epoch=replica.epoch,
            preferred_successors=[key.node_id for key in resigned.successors],
            preferred_candidates=[
                ReplicaInfo(candidate_id=key.node_id, candidate_directory_id=key.directory_id)
                for key in resigned.successors
            ],
        )
        topic = EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        request = EndQuorumEpochRequest(cluster_id=replica.config.cluster_id, topics=[topic])
        replica.send(destination, request)


def handle_end_answer(
    replica: Replica, voter: NodeId, response: EndQuorumEpochResponse | None
) -> None:
    """Handle the answer: learn of a later epoch, or retry after a failure."""
    resigned = replica.role
    if not isinstance(resigned, Resigned):
        return
    partition = sole_partition(response.topics) if response else None
    if response is None or partition is None:
        resigned.tell_at_ms[voter] = replica.now_ms + replica.config.retry_backoff_ms
    else:
        replica.learn(partition.leader_epoch, partition.leader_id, endpoints_in(response))
