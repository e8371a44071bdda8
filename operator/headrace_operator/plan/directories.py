"""Which replicas should move between the log directories of their own broker.

There are two reasons: a directory is to be emptied because it goes away, or a new directory is to
get its share of the bytes. Each broker is planned by itself: nothing here moves between brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Directory", "DirectoryMove", "Replica", "plan_balance", "plan_leaving"]


@dataclass(frozen=True, kw_only=True, order=True)
class Replica:
    """A replica as its broker describes it."""

    topic: str
    partition: int
    bytes: int
    is_future: bool = False
    """Whether it is the copy of a replica that is moving into this directory."""


@dataclass(frozen=True, kw_only=True)
class Directory:
    """A log directory of one broker."""

    broker: int
    path: str
    is_online: bool = True
    free_bytes: int = -1
    """-1 if not known."""
    replicas: tuple[Replica, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of its replicas, including copies in progress."""
        return sum(each.bytes for each in self.replicas)


@dataclass(frozen=True, kw_only=True, order=True)
class DirectoryMove:
    """A replica that should move."""

    broker: int
    topic: str
    partition: int
    source: str
    target: str
    bytes: int


def plan_leaving(directories: Iterable[Directory], path: str) -> list[DirectoryMove]:
    """Return moves of all replicas off a path, each to the emptiest other directory.

    Raises ValueError if a broker with that path has no other directory, or not enough space: then
    nothing is moved.
    """
    moves: list[DirectoryMove] = []
    for broker, held in sorted(_by_broker(directories).items()):
        left = [each for each in held if each.path == path]
        if not left:
            continue
        others = [each for each in held if each.path != path and each.is_online]
        if not others:
            raise ValueError(f"broker {broker} has no other log directory in use than {path}")
        sizes = {each.path: each.bytes for each in others}
        room = {each.path: each.free_bytes for each in others}
        for replica in sorted(left[0].replicas, key=_largest_first):
            if replica.is_future:
                continue
            fitting = [each for each in sizes if room[each] < 0 or room[each] > replica.bytes]
            if not fitting:
                raise ValueError(
                    f"broker {broker} has no room for {replica.topic}-{replica.partition} "
                    f"({replica.bytes} bytes) outside {path}"
                )
            target = min(fitting, key=lambda each: (sizes[each], each))
            sizes[target] += replica.bytes
            room[target] -= replica.bytes if room[target] >= 0 else 0
            moves.append(_move(broker, replica, path, target))
    return moves


def plan_balance(directories: Iterable[Directory]) -> list[DirectoryMove]:
    """Return moves that balance each broker's bytes, and at equal bytes its replicas."""
    moves: list[DirectoryMove] = []
    for broker, held in sorted(_by_broker(directories).items()):
        usable = {each.path: each for each in held if each.is_online}
        placed = {path: list(each.replicas) for path, each in usable.items()}
        moves += _balance(broker, placed)
    return moves


def _balance(broker: int, placed: dict[str, list[Replica]]) -> list[DirectoryMove]:
    moves: list[DirectoryMove] = []
    has_moved: set[tuple[str, int]] = set()

    def size(path: str) -> tuple[int, int, str]:
        return sum(each.bytes for each in placed[path]), len(placed[path]), path

    while len(placed) > 1:
        source, target = max(placed, key=size), min(placed, key=size)
        gap, count = size(source)[0] - size(target)[0], size(source)[1] - size(target)[1]
        movable = [
            each
            for each in placed[source]
            if not each.is_future
            and (each.topic, each.partition) not in has_moved
            and (each.bytes < gap or (each.bytes == gap == 0 and count > 1))
        ]
        if not movable:
            return moves
        # The replica that comes nearest to halving the difference.
        chosen = min(movable, key=lambda each: (abs(gap - 2 * each.bytes), each))
        placed[source].remove(chosen)
        placed[target].append(replace(chosen))
        has_moved.add((chosen.topic, chosen.partition))
        moves.append(_move(broker, chosen, source, target))
    return moves


def _move(broker: int, replica: Replica, source: str, target: str) -> DirectoryMove:
    return DirectoryMove(
        broker=broker,
        topic=replica.topic,
        partition=replica.partition,
        source=source,
        target=target,
        bytes=replica.bytes,
    )


def _largest_first(replica: Replica) -> tuple[int, Replica]:
    return -replica.bytes, replica


def _by_broker(directories: Iterable[Directory]) -> dict[int, Sequence[Directory]]:
    found: dict[int, list[Directory]] = {}
    for each in directories:
        found.setdefault(each.broker, []).append(each)
    return dict(found)
