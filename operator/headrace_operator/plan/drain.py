"""Plans where the replicas of leaving brokers go. Pure; equal input gives equal moves.

A replica goes to the broker with the fewest replicas, in a rack that its partition does not use
yet, and keeps its place in the list: so preferred leaders stay as balanced as before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace_operator.plan.model import ObservedPartition, TopicPartition

__all__ = ["Drain", "plan_drain"]

REFUSALS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Drain:
    """New replicas for the partitions that must move, and why that may be refused."""

    moves: Mapping[TopicPartition, tuple[int, ...]]
    refusals: tuple[str, ...] = ()

    @property
    def refusal(self) -> str:
        """All refusals as one text; empty if the moves can be made."""
        shown = list(self.refusals[:REFUSALS_SHOWN])
        if len(self.refusals) > REFUSALS_SHOWN:
            shown.append(f"and {len(self.refusals) - REFUSALS_SHOWN} partitions more")
        return "; ".join(shown)


def plan_drain(
    partitions: Mapping[TopicPartition, ObservedPartition],
    leaving: Collection[int],
    staying: Mapping[int, str | None],
    *,
    moving: Collection[TopicPartition] = (),
    kept: Mapping[str, str],
) -> Drain:
    """Plan moves of every replica on `leaving` to `staying` (racks by id).

    Partitions that are `moving` already are left to finish: they have old and new replicas now. A
    partition gets no more replicas than there are staying brokers, unless `kept` gives a reason why
    its topic must keep them.
    """
    load = Counter(
        replica
        for partition in partitions.values()
        for replica in partition.replicas
        if replica in staying
    )
    moves: dict[TopicPartition, tuple[int, ...]] = {}
    refusals: list[str] = []
    for (topic, index), partition in sorted(partitions.items()):
        if (topic, index) in moving or not set(partition.replicas) & set(leaving):
            continue
        reason = _refusal(partition, staying, kept.get(topic))
        if reason:
            refusals.append(f"{topic}-{index} {reason}")
            continue
        moves[topic, index] = tuple(_replaced(partition, leaving, staying, load))
    return Drain(moves=moves, refusals=tuple(refusals))


def _refusal(
    partition: ObservedPartition, staying: Mapping[int, str | None], kept: str | None
) -> str:
    if not staying:
        return "would be left without a broker"
    if len(partition.replicas) > len(staying) and kept is not None:
        count = f"has {len(partition.replicas)} replicas and {len(staying)} brokers would be left"
        return f"{count}, {kept}"
    if partition.leader < 0:
        return "has no leader to copy from"
    return ""


def _replaced(
    partition: ObservedPartition,
    leaving: Collection[int],
    staying: Mapping[int, str | None],
    load: Counter[int],
) -> Iterator[int]:
    """Yield the replicas with leaving brokers replaced; count the new ones in `load`."""
    taken = {replica for replica in partition.replicas if replica not in leaving}
    for replica in partition.replicas:
        if replica not in leaving:
            yield replica
            continue
        if len(taken) == len(staying):
            # Every staying broker has a replica.
            continue
        racks = {staying.get(each) for each in taken} - {None}
        chosen = min(
            (node_id for node_id in staying if node_id not in taken),
            key=lambda node_id, racks=racks: (  # type: ignore[misc]  # mypy cannot type defaults of a lambda
                staying[node_id] in racks,
                load[node_id],
                node_id,
            ),
        )
        taken.add(chosen)
        load[chosen] += 1
        yield chosen
