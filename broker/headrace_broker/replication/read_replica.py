"""Which follower a consumer should read if it is nearer than the leader (KIP-392)."""

from collections.abc import Mapping

from headrace_broker.protocol.types import NodeId, Offset


def read_replica(nearby: Mapping[NodeId, Offset], fetch_offset: int) -> NodeId | None:
    """Return the most advanced follower in the consumer's rack; None for the leader.

    `nearby` are the in-sync followers in that rack with their log ends. A follower without the
    requested record cannot serve it.
    """
    able = {node_id: end for node_id, end in nearby.items() if end >= fetch_offset}
    if not able:
        return None
    return max(able, key=lambda node_id: (able[node_id], -node_id))
