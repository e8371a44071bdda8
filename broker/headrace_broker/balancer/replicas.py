"""Moves replicas in a draft: into all racks, equal in number, equal in weight, or off a broker.

Each step is the cheapest that helps, and reduces a measure that never grows again, so the steps
end. Numbers come first, then weight (bytes and traffic) by exchanges, which do not change the
numbers.
"""

from bisect import bisect_left
from collections.abc import Iterator

from headrace_broker.balancer.layout import Layout
from headrace_broker.protocol.types import NodeId

#: A broker's load may exceed the mean by this much before replicas are exchanged.
WEIGHT_TOLERANCE = 0.10

# An exchange that gains less than this share of the mean is not worth its copying.
_GAIN_MIN = 0.02
_EXCHANGES_MAX = 2000
# How many of a broker's heaviest replicas are tried, and how many partners for each.
_HEAVIEST_TRIED, _PARTNERS_TRIED = 64, 8

# By giver and taker: moves that were impossible when last checked.
_Refused = dict[tuple[NodeId, NodeId], set[int]]


def spread_over_racks(layout: Layout) -> None:
    """Spread each partition over as many racks as possible."""
    racks = layout.spread(layout.takers)
    for place, nodes in enumerate(layout.replicas):
        while layout.is_settled(place) and layout.spread(nodes) < min(racks, len(nodes)):
            used = {layout.racks.get(node) for node in nodes}
            old = _crowded(layout, nodes)
            new = min(
                (node for node in layout.takers if layout.racks[node] not in used),
                key=lambda node: (layout.fill(node, 1), node),
                default=None,
            )
            if old is None or new is None:
                break
            layout.replace(place, old, new)


def _crowded(layout: Layout, nodes: list[NodeId]) -> NodeId | None:
    """Return the last replica that shares its rack with an earlier one."""
    for position in range(len(nodes) - 1, 0, -1):
        rack = layout.racks.get(nodes[position])
        if any(layout.racks.get(node) == rack for node in nodes[:position]):
            return nodes[position]
    return None


def even_out_numbers(layout: Layout) -> None:
    """Move replicas from the fullest brokers to the emptiest, while that helps."""
    order = {
        node: sorted(
            (place for place in layout.hosted[node] if layout.is_settled(place)),
            # Followers before leaders, small ones before big ones.
            key=lambda place: (
                layout.replicas[place][0] == node,
                layout.partitions[place].size_bytes,
                place,
            ),
        )
        for node in layout.takers
    }
    stuck: set[NodeId] = set()
    refused: _Refused = {}
    while len(stuck) < len(layout.takers):
        giver = max(
            (node for node in layout.takers if node not in stuck),
            key=lambda node: (layout.fill(node), -node),
        )
        step = _number_step(layout, giver, order[giver], refused)
        if step is None and refused:
            # Refused moves may be possible now: other moves have changed the partitions.
            refused = {}
            step = _number_step(layout, giver, order[giver], refused)
        if step is None:
            stuck.add(giver)
            continue
        place, taker = step
        layout.replace(place, giver, taker)
        order[giver].remove(place)
        # One copy per partition is enough: it is tried last, and only if nothing else can move.
        order[taker].append(place)
        stuck.clear()


def _number_step(
    layout: Layout, giver: NodeId, places: list[int], refused: _Refused
) -> tuple[int, NodeId] | None:
    for taker in sorted(layout.takers, key=lambda node: (layout.fill(node, 1), node)):
        if layout.fill(taker, 1) >= layout.fill(giver):
            return None
        known = refused.setdefault((giver, taker), set())
        for place in places:
            if place in known:
                continue
            if layout.may_replace(place, giver, taker):
                return place, taker
            known.add(place)
    return None


def even_out_weight(layout: Layout) -> bool:
    """Exchange heavy replicas for light ones until all brokers have about the same load.

    Return whether anything was exchanged, so that another pass may find more.
    """
    capacity = sum(layout.capacity(node) for node in layout.takers)
    if not layout.takers or capacity <= 0:
        return False
    mean = sum(layout.load[node] for node in layout.takers) / capacity
    for count in range(_EXCHANGES_MAX):
        step = next(_exchanges(layout, mean), None)
        if step is None:
            return count > 0
        heavy, light, given, taken = step
        layout.replace(given, heavy, light)
        layout.replace(taken, light, heavy)
    layout.reasons.append(
        f"stopped after {_EXCHANGES_MAX} exchanges: plan again when they are done"
    )
    return False


def _exchanges(layout: Layout, mean: float) -> Iterator[tuple[NodeId, NodeId, int, int]]:
    by_pressure = sorted(layout.takers, key=lambda node: (layout.pressure(node), node))
    weights = layout.weights
    for heavy in reversed(by_pressure):
        if layout.pressure(heavy) <= mean * (1 + WEIGHT_TOLERANCE):
            return
        givable = _movable(layout, heavy)[-_HEAVIEST_TRIED:]
        for light in by_pressure:
            gap = layout.pressure(heavy) - layout.pressure(light)
            if light == heavy or gap <= mean * _GAIN_MIN:
                break
            takable = _movable(layout, light)
            keys = [weights[place] for place in takable]
            scale = 1 / layout.capacity(heavy) + 1 / layout.capacity(light)
            for given in reversed(givable):
                for taken in _partners(takable, keys, weights[given] - gap / scale):
                    gain = (weights[given] - weights[taken]) * scale
                    is_gain = mean * _GAIN_MIN < gain < 2 * gap - mean * _GAIN_MIN
                    if (
                        is_gain
                        and layout.may_replace(given, heavy, light)
                        and layout.may_replace(taken, light, heavy)
                    ):
                        yield heavy, light, given, taken


def _movable(layout: Layout, node: NodeId) -> list[int]:
    places = (place for place in layout.hosted[node] if layout.is_settled(place))
    return sorted(places, key=lambda place: (layout.weights[place], place))


def _partners(takable: list[int], keys: list[float], wanted: float) -> list[int]:
    middle = bisect_left(keys, wanted)
    return takable[max(0, middle - _PARTNERS_TRIED // 2) : middle + _PARTNERS_TRIED // 2]


def empty_broker(layout: Layout, leaving: NodeId) -> None:
    """Move every replica of `leaving` to the emptiest broker that preserves the racks."""
    for place in sorted(layout.hosted.get(leaving, ())):
        nodes = layout.replicas[place]
        others = [node for node in nodes if node != leaving]
        taker = min(
            (node for node in layout.takers if node not in nodes and node != leaving),
            key=lambda node: (
                -layout.spread([*others, node]),
                layout.fill(node, 1),
                layout.pressure(node),
                node,
            ),
            default=None,
        )
        if taker is None:
            layout.reasons.append(
                f"{layout.partitions[place].name} stays on {leaving}: it has {len(nodes)} replicas "
                "and there is no other broker to take one"
            )
        else:
            layout.replace(place, leaving, taker)
