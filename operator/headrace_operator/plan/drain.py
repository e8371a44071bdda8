"""Where the replicas of brokers that leave go. Pure; the same input gives the same moves.

A replica goes to the broker with the fewest, in a rack where its partition is not yet, and takes
the place that it had in the list: who is preferred as leader stays as even as it was.
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
    """New replicas of the partitions that must move, and why it may not be done."""

    moves: Mapping[TopicPartition, tuple[int, ...]]
    refusals: tuple[str, ...] = ()

    @property
    def refusal(self) -> str:
        """All refusals as one text; empty when the moves can be made."""
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

    Partitions that are `moving` already are left to finish: they have old and new replicas now.
    A partition gets no more replicas than brokers stay, unless `kept` says why its topic must not.
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
    """Yield the replicas with those that leave replaced, and count the new ones in `load`."""
    taken = {replica for replica in partition.replicas if replica not in leaving}
    for replica in partition.replicas:
        if replica not in leaving:
            yield replica
            continue
        if len(taken) == len(staying):
            # Every broker that stays has one.
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
