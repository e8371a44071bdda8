"""Which follower a consumer should read, where it is nearer than the leader (KIP-392)."""

from collections.abc import Mapping

from headrace_broker.protocol.types import NodeId, Offset


def read_replica(nearby: Mapping[NodeId, Offset], fetch_offset: int) -> NodeId | None:
    """Return the one of the consumer's rack that has come furthest; None for the leader.

    `nearby` are the in-sync followers of the consumer's rack, each with its end. One that lacks the
    record asked for cannot serve it.
    """
    able = {node_id: end for node_id, end in nearby.items() if end >= fetch_offset}
    if not able:
        return None
    return max(able, key=lambda node_id: (able[node_id], -node_id))
