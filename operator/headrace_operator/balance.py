"""The balancer's plans and cordons, for an administrator or an operator.

Blocking. A plan is requested from a broker's HTTP side, shown, and approved by its hash. The
approval consists of dynamic settings of the cluster; from then on the controller carries the plan
out. Pausing, resuming and cancelling are settings, too.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "CORDONED_LOG_DIRS",
    "BalanceError",
    "BalancePlan",
    "BalanceProgress",
    "LeaderMove",
    "Move",
    "alter_broker_configs",
    "approve",
    "change_state",
    "cordoned_brokers",
    "fetch_plan",
    "fetch_progress",
    "set_cordons",
]

TIMEOUT_SECONDS = 10.0
BROKER_RESOURCE = 4
SET, DELETE = 0, 1
#: KIP-1066; `*` means all log directories of the broker.
CORDONED_LOG_DIRS = "cordoned.log.dirs"
EVERY_LOG_DIR = "*"

_T = TypeVar("_T")


class BalanceError(Exception):
    """There is no plan, or it was refused; the message says why.

    `code` is the brokers' error; 0: they did not refuse.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        """See the class."""
        super().__init__(message)
        self.code = code


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """New replicas for a partition. `state` if the plan is in progress."""

    topic: str
    partition: int
    from_: tuple[int, ...] = msgspec.field(name="from")
    to: tuple[int, ...]
    bytes: int
    state: str = ""


class LeaderMove(msgspec.Struct, frozen=True, kw_only=True):
    """A new leader for a partition: its replicas in this order, then an election."""

    topic: str
    partition: int
    from_: int = msgspec.field(name="from")
    to: int
    replicas: tuple[int, ...]


class BalancePlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The balancer's proposal. `settings`: those that approve it."""

    hash: str
    moves: tuple[Move, ...] = ()
    leader_moves: tuple[LeaderMove, ...] = ()
    bytes_total: int = 0
    estimated_seconds: float = 0.0
    reasons: tuple[str, ...] = ()
    unmeasured_partitions: int = 0
    settings: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.moves and not self.leader_moves


class RunningPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The plan that the controller is carrying out."""

    hash: str
    state: str
    moves: tuple[Move, ...] = ()
    throttle_bytes_per_second: int | None = None
    concurrent_moves: int = 0
    bytes_total: int = 0
    bytes_left: int = 0
    estimated_seconds_left: float = 0.0

    def count(self, *states: str) -> int:
        """Return how many moves are in this state."""
        return sum(move.state in states for move in self.moves)


class BalanceProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The plan in progress, or None, and the outcome of the last one."""

    plan: RunningPlan | None
    last: str | None = None


def fetch_plan(
    addresses: Sequence[str], drain: int | None = None, throttle: int | None = None
) -> BalancePlan:
    """Ask the first broker that answers. Raises BalanceError."""
    query = [f"drain={drain}"] if drain is not None else []
    query += [f"throttle={throttle}"] if throttle is not None else []
    return _fetch(addresses, "/api/v1/balance" + "?" * bool(query) + "&".join(query), BalancePlan)


def fetch_progress(addresses: Sequence[str]) -> BalanceProgress:
    """Ask the first broker that answers. Raises BalanceError."""
    return _fetch(addresses, "/api/v1/balance/progress", BalanceProgress)


def _fetch(addresses: Sequence[str], path: str, kind: type[_T]) -> _T:
    reason = "no broker's HTTP address is known"
    for address in addresses:
        try:
            with urllib.request.urlopen(  # noqa: S310 - a broker's own address
                address + path, timeout=TIMEOUT_SECONDS
            ) as response:
                return msgspec.json.decode(response.read(), type=kind)
        except urllib.error.HTTPError as error:
            with error:
                raise BalanceError(_message_of(error.read()) or str(error)) from error
        except (OSError, msgspec.DecodeError) as error:
            reason = f"{address}: {error}"
    raise BalanceError(f"no plan: {reason}")


def approve(
    admin: Any, plan: BalancePlan, *, throttle: int | None = None, concurrent: int | None = None
) -> None:
    """Have the controller carry out a plan. Raises BalanceError if it refuses."""
    if not plan.settings:
        raise BalanceError("the plan cannot be carried out: " + "; ".join(plan.reasons))
    entries: dict[str, str | None] = {**plan.settings, "headrace.balance.state": "running"}
    entries["headrace.balance.throttle"] = None if throttle is None else str(throttle)
    entries["headrace.balance.concurrent.moves"] = None if concurrent is None else str(concurrent)
    alter_broker_configs(admin, None, entries)


def change_state(
    admin: Any, state: str, *, throttle: int | None = None, concurrent: int | None = None
) -> None:
    """Pause, resume (`running`) or cancel the plan in progress. Raises BalanceError."""
    entries: dict[str, str | None] = {"headrace.balance.state": state}
    if throttle is not None:
        entries["headrace.balance.throttle"] = str(throttle)
    if concurrent is not None:
        entries["headrace.balance.concurrent.moves"] = str(concurrent)
    alter_broker_configs(admin, None, entries)


def set_cordons(admin: Any, node_ids: Iterable[int], *, cordoned: bool) -> None:
    """Cordon or uncordon brokers: whether they get new replicas. Raises BalanceError."""
    for node_id in node_ids:
        value = EVERY_LOG_DIR if cordoned else None
        alter_broker_configs(admin, node_id, {CORDONED_LOG_DIRS: value})


def alter_broker_configs(
    admin: Any, node_id: int | None, entries: Mapping[str, str | None]
) -> None:
    """Set (or with None delete) dynamic settings of a broker; with None as broker, of all brokers.

    Raises BalanceError with the brokers' message.
    """
    from kafka.errors import for_code
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    changes = [
        (name, DELETE if value is None else SET, value) for name, value in sorted(entries.items())
    ]
    name = "" if node_id is None else str(node_id)
    request = IncrementalAlterConfigsRequest(
        resources=[(BROKER_RESOURCE, name, changes)], validate_only=False
    )
    # The client's own call requires a resource name, and asks a broker that may be down.
    manager = admin._manager  # noqa: SLF001

    async def send() -> Any:
        return await manager.send(request)

    for result in manager.run(send).responses:
        if result.error_code:
            code = result.error_code
            text = for_code(code).__name__.removesuffix("Error")
            raise BalanceError(f"{text} ({code}): {result.error_message}", code)


def cordoned_brokers(admin: Any, node_ids: Iterable[int]) -> frozenset[int]:
    """Return which of these live brokers are cordoned."""
    from kafka.admin import ConfigResource, ConfigResourceType

    resources = [
        ConfigResource(ConfigResourceType.BROKER, str(node_id), configs={CORDONED_LOG_DIRS: None})
        for node_id in node_ids
    ]
    if not resources:
        return frozenset()
    found = admin.describe_configs(resources, config_filter="all").get("broker", {})
    return frozenset(
        int(name)
        for name, settings in found.items()
        if settings.get(CORDONED_LOG_DIRS, {}).get("value") == EVERY_LOG_DIR
    )


def _message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
