"""The plan that the controller carries out, as the metadata log keeps it (decision 6).

A plan is dynamic configuration of the whole cluster. So any Kafka admin client can show, pause,
resume and cancel it, every controller has it, and snapshots contain it, without a separate record
type. Owns the names, the format of moves and their consistency;
`headrace_broker.balancer.execution` carries the plan out.

A move is `topic:index:1-2-3>2-3-4@BYTES`, moves are separated by `;`, and pieces of whole moves are
in `headrace.balance.moves.0`, `.1`, … because a string of the protocol has 32767 bytes at most.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.settings.broker_settings import (
    BALANCE_CONCURRENT_MOVES,
    BALANCE_CONCURRENT_MOVES_DEFAULT,
    BALANCE_MOVES_PREFIX,
    BALANCE_PLAN,
    BALANCE_STATE,
    BALANCE_THROTTLE,
    MOVES_THROTTLE,
)
from headrace_broker.metadata.settings.resources import broker_resource
from headrace_broker.protocol.types import NodeId, PartitionIndex

_MOVE = re.compile(
    r"([a-zA-Z0-9._-]{1,249}):([0-9]{1,9}):([0-9-]{1,200})>([0-9-]{1,200})@([0-9]{1,18})"
)
_PIECE_CHARACTERS_MAX: Final = 30_000
_PIECES_MAX: Final = 64
_PIECE_NAME = re.compile(re.escape(BALANCE_MOVES_PREFIX) + r"[0-9]{1,2}")
UNTHROTTLED: Final = 2**63 - 1


class PlanState(StrEnum):
    """The state of a plan."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """Replicas before and after, the preferred leader first; equal ones: elect the leader.

    `size_bytes` is the total to copy, as it was when the plan was made.
    """

    topic: str
    partition: PartitionIndex
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]
    size_bytes: int = 0

    @property
    def is_copy(self) -> bool:
        """Whether a broker gets a new replica."""
        return not set(self.after) <= set(self.before)

    @property
    def step(self) -> str:
        """The step without sizes, which change while a plan is reviewed."""
        before, after = "-".join(map(str, self.before)), "-".join(map(str, self.after))
        return f"{self.topic}:{self.partition}:{before}>{after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """The plan in the image."""

    hash: str
    state: PlanState
    moves: tuple[PlannedMove, ...]
    throttle_bytes_per_second: int = UNTHROTTLED
    concurrent_moves: int = BALANCE_CONCURRENT_MOVES_DEFAULT


def hash_of(moves: Sequence[PlannedMove]) -> str:
    """Return the hash that identifies a plan: equal steps have the same hash, in any order."""
    text = "\n".join(sorted(move.step for move in moves))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_piece(name: str) -> bool:
    """Whether a setting of this name holds moves."""
    return _PIECE_NAME.fullmatch(name) is not None


def plan_settings(moves: Sequence[PlannedMove]) -> dict[str, str]:
    """Return the settings that hold these moves and their hash. Raises ValueError if too many."""
    pieces: list[str] = []
    for move in moves:
        text = f"{move.step}@{move.size_bytes}"
        if pieces and len(pieces[-1]) + 1 + len(text) <= _PIECE_CHARACTERS_MAX:
            pieces[-1] += f";{text}"
        else:
            pieces.append(text)
    if len(pieces) > _PIECES_MAX:
        raise ValueError(f"a plan of {len(moves)} moves is too long: carry it out in parts")
    held = {f"{BALANCE_MOVES_PREFIX}{number}": piece for number, piece in enumerate(pieces)}
    return {**held, BALANCE_PLAN: hash_of(moves)}


def read_moves(texts: Mapping[str, str]) -> tuple[PlannedMove, ...]:
    """Return the moves of a plan's settings, in order; raises ValueError."""
    pieces = sorted(
        (int(name.removeprefix(BALANCE_MOVES_PREFIX)), text)
        for name, text in texts.items()
        if is_piece(name)
    )
    return tuple(_read_move(text) for _, piece in pieces for text in piece.split(";"))


def _read_move(text: str) -> PlannedMove:
    found = _MOVE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a move topic:index:1-2>2-3@bytes")
    topic, index, before, after, size = found.groups()
    return PlannedMove(
        topic=topic,
        partition=PartitionIndex(int(index)),
        before=_nodes(before),
        after=_nodes(after),
        size_bytes=int(size),
    )


def _nodes(text: str) -> tuple[NodeId, ...]:
    nodes = tuple(NodeId(int(node)) for node in text.split("-"))
    if len(set(nodes)) != len(nodes):
        raise ValueError(f"{text} names a broker twice")
    return nodes


def stored_plan(image: MetadataImage) -> StoredPlan | None:
    """Return the plan in progress or paused, if there is one."""
    texts = image.config(broker_resource(None))
    if BALANCE_PLAN not in texts:
        return None
    return StoredPlan(
        hash=texts[BALANCE_PLAN],
        state=PlanState(texts[BALANCE_STATE]),
        moves=read_moves(texts),
        throttle_bytes_per_second=int(texts.get(BALANCE_THROTTLE, UNTHROTTLED)),
        concurrent_moves=int(texts.get(BALANCE_CONCURRENT_MOVES, BALANCE_CONCURRENT_MOVES_DEFAULT)),
    )


def has_plan(image: MetadataImage) -> bool:
    """Whether a plan is in progress or paused."""
    return BALANCE_PLAN in image.config(broker_resource(None))


def balance_throttle(image: MetadataImage) -> int:
    """Return the bytes per second that a broker may copy: by the present plan, and by any."""
    texts = image.config(broker_resource(None))
    every = int(texts.get(MOVES_THROTTLE, UNTHROTTLED))
    planned = texts.get(BALANCE_THROTTLE, UNTHROTTLED) if BALANCE_PLAN in texts else UNTHROTTLED
    return min(every, int(planned))


def check_balance(
    image: MetadataImage, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    """Raise ValueError unless the cluster's settings hold a whole plan, or none, after a change.

    A new plan is accepted only if it matches the present cluster.
    """
    known = before.get(BALANCE_PLAN)
    wanted = after.get(BALANCE_PLAN)
    if wanted is None:
        left = sorted(name for name in after if name == BALANCE_STATE or is_piece(name))
        if left:
            raise ValueError(f"{left[0]} belongs to a plan, and there is none")
        return
    states = [state.value for state in PlanState]
    if after.get(BALANCE_STATE) not in states:
        raise ValueError(f"{BALANCE_STATE} must be one of {', '.join(states)}")
    moves = read_moves(after)
    if hash_of(moves) != wanted:
        raise ValueError(f"the moves are those of plan {hash_of(moves)}, not of {wanted}")
    if known is None:
        _check_fits(image, moves)
    elif known != wanted:
        raise ValueError(f"plan {known} is under way: cancel it, or wait until it is done")


def _check_fits(image: MetadataImage, moves: Sequence[PlannedMove]) -> None:
    if len({(move.topic, move.partition) for move in moves}) != len(moves):
        raise ValueError("a partition has two moves")
    for move in moves:
        partition = image.partition(move.topic, move.partition)
        if partition is None or partition.replicas != move.before:
            raise ValueError(
                f"{move.topic}-{move.partition} does not have the replicas "
                f"{list(move.before)} (any more): make a new plan"
            )
        unknown = [node for node in move.after if node not in image.brokers]
        if unknown:
            raise ValueError(f"broker {unknown[0]} is not registered")
