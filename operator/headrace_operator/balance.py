"""The balancer's plans: asked from a broker's HTTP side, carried out with Kafka's own requests.

Blocking. A plan is data that is shown and approved first; its hash says whether it is still the
same. Brokers copy in the background, and go on where whoever asked for it is gone.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.plan import TopicPartition

__all__ = ["BalanceError", "BalancePlan", "LeaderMove", "Move", "elect", "fetch_plan", "reassign"]

TIMEOUT_SECONDS = 10.0
PREFERRED_ELECTION = 0


class BalanceError(Exception):
    """No plan, or one that was refused; the message says why."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Other replicas for a partition."""

    topic: str
    partition: int
    from_: tuple[int, ...] = msgspec.field(name="from")
    to: tuple[int, ...]
    bytes: int


class LeaderMove(msgspec.Struct, frozen=True, kw_only=True):
    """Another leader for a partition: its replicas in this order, then an election."""

    topic: str
    partition: int
    from_: int = msgspec.field(name="from")
    to: int
    replicas: tuple[int, ...]


class BalancePlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the balancer would do."""

    hash: str
    moves: tuple[Move, ...] = ()
    leader_moves: tuple[LeaderMove, ...] = ()
    bytes_total: int = 0
    estimated_seconds: float = 0.0
    reasons: tuple[str, ...] = ()
    unmeasured_partitions: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.moves and not self.leader_moves

    @property
    def assignments(self) -> Mapping[TopicPartition, tuple[int, ...]]:
        """New replicas by partition, those whose order only changes among them."""
        reordered = {(move.topic, move.partition): move.replicas for move in self.leader_moves}
        return reordered | {(move.topic, move.partition): move.to for move in self.moves}


def fetch_plan(addresses: Sequence[str], drain: int | None = None) -> BalancePlan:
    """Ask the first broker that answers. Raises BalanceError."""
    reason = "no broker's HTTP address is known"
    for address in addresses:
        url = f"{address}/api/v1/balance" + ("" if drain is None else f"?drain={drain}")
        try:
            with urllib.request.urlopen(  # noqa: S310 - a broker's own address
                url, timeout=TIMEOUT_SECONDS
            ) as response:
                return msgspec.json.decode(response.read(), type=BalancePlan)
        except urllib.error.HTTPError as error:
            with error:
                raise BalanceError(_message_of(error.read()) or str(error)) from error
        except (OSError, msgspec.DecodeError) as error:
            reason = f"{address}: {error}"
    raise BalanceError(f"no plan: {reason}")


def reassign(admin: Any, assignments: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Ask for new replicas. Raises BalanceError with what was refused; the rest is on its way."""
    from kafka import TopicPartition as ClientPartition

    if not assignments:
        return
    results = admin.alter_partition_reassignments(
        {ClientPartition(*key): list(replicas) for key, replicas in assignments.items()}
    )
    refused = [
        f"{partition.topic}-{partition.partition}: {error.__name__.removesuffix('Error')}"
        for partition, error in sorted(results.items())
        if error is not None
    ]
    if refused:
        raise BalanceError("refused: " + ", ".join(refused))


def elect(admin: Any, partitions: Sequence[TopicPartition]) -> None:
    """Let preferred leaders lead. Raises BalanceError with those that could not."""
    from kafka.errors import ElectionNotNeededError, for_code

    if not partitions:
        return
    wanted: dict[str, list[int]] = {}
    for topic, index in partitions:
        wanted.setdefault(topic, []).append(index)
    response = admin.elect_leaders(PREFERRED_ELECTION, wanted, raise_errors=False)
    refused = [
        f"{result.topic}-{each.partition_id}: {for_code(each.error_code).__name__}"
        for result in response.replica_election_results
        for each in result.partition_result
        if each.error_code not in (0, ElectionNotNeededError.errno)
    ]
    if refused:
        raise BalanceError("no election: " + ", ".join(refused))


def _message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
