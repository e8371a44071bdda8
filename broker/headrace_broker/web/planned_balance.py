"""The interface of the balancer's plans for the HTTP side: the `server` layer implements it.

It is separate from `balance.py` because importing aiohttp takes longer than the rest of a broker's
start, and must not delay it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace_broker.balancer.execution import PlanProgress
from headrace_broker.balancer.model import BalancePlan
from headrace_broker.protocol.types import NodeId


class BrokerNotFoundError(Exception):
    """There is no registered broker with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBalance:
    """A plan, and how many partitions this node could not measure: then only numbers count."""

    plan: BalancePlan
    unmeasured_partitions: int


class Planner(Protocol):
    """Makes plans and knows the one in progress."""

    async def plan_balance(
        self, drain: NodeId | None, throttle_bytes_per_second: float | None
    ) -> PlannedBalance:
        """Plan a rebalance, or a drain. Raises BrokerNotFoundError."""
        ...

    def balance_progress(self) -> tuple[PlanProgress | None, str | None]:
        """Return the plan in progress, and the outcome of the last one."""
        ...
