"""Spreads leaders by the order of replicas, without moving any data.

Leadership moves along chains (A gives to B, B to C), so the result is the optimum for the present
replicas: no broker leads more than necessary (balanced orientation of a graph by augmenting paths).
"""

from collections import deque
from itertools import pairwise

from headrace_broker.balancer.layout import Layout
from headrace_broker.protocol.types import NodeId


def spread_leaders(layout: Layout) -> int:
    """Balance the first replicas by the brokers' capacity; return how many changed."""
    return _LeaderSpread(layout).run()


class _LeaderSpread:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._counts: dict[NodeId, int] = {
            node: 0 for node, broker in layout.brokers.items() if broker.is_alive
        }
        # From one broker to another: the partitions whose leadership could move that way.
        self._ways: dict[NodeId, dict[NodeId, set[int]]] = {node: {} for node in self._counts}
        for place, nodes in enumerate(layout.replicas):
            leader = nodes[0]
            if leader in self._counts and layout.can_lead(place, leader):
                self._counts[leader] += 1
                self._note(place, leader, is_way=True)

    def _note(self, place: int, leader: NodeId, *, is_way: bool) -> None:
        for node in self._layout.replicas[place]:
            if node != leader and self._layout.can_lead(place, node):
                ways = self._ways[leader].setdefault(node, set())
                if is_way:
                    ways.add(place)
                else:
                    ways.discard(place)

    def run(self) -> int:
        """Move leaderships, from the busiest broker first, while any chain improves the balance."""
        changed = 0
        stuck: set[NodeId] = set()
        while True:
            givers = [node for node in self._counts if node not in stuck]
            if not givers:
                return changed
            giver = max(givers, key=lambda node: (self._fill(node), -node))
            chain = self._chain(giver)
            if chain is None:
                stuck.add(giver)
                continue
            stuck.clear()
            for old, new in pairwise(chain):
                self._hand_over(old, new)
            changed += len(chain) - 1

    def _fill(self, node: NodeId, extra: int = 0) -> float:
        return (self._counts[node] + extra) / self._layout.capacity(node)

    def _chain(self, giver: NodeId) -> list[NodeId] | None:
        """Return the shortest chain to a broker that improves the balance, or None."""
        limit = self._fill(giver)
        came_from: dict[NodeId, NodeId] = {giver: giver}
        waiting = deque([giver])
        while waiting:
            node = waiting.popleft()
            if self._fill(node, 1) < limit and node != giver:
                chain = [node]
                while chain[-1] != giver:
                    chain.append(came_from[chain[-1]])
                return chain[::-1]
            for other, places in sorted(self._ways[node].items()):
                if places and other not in came_from:
                    came_from[other] = node
                    waiting.append(other)
        return None

    def _hand_over(self, old: NodeId, new: NodeId) -> None:
        place = min(
            self._ways[old][new],
            # Prefer the present leader: then nothing changes.
            key=lambda place: (self._layout.partitions[place].leader != new, place),
        )
        self._note(place, old, is_way=False)
        self._layout.lead(place, new)
        self._counts[old] -= 1
        self._counts[new] += 1
        self._note(place, new, is_way=True)
