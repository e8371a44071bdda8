"""What the HTTP side needs for the balancer's plans: the `server` layer implements it.

Apart from `balance.py`, because aiohttp takes longer to import than all the rest of a broker and
must not hold up its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace_broker.balancer.execution import PlanProgress
from headrace_broker.balancer.model import BalancePlan
from headrace_broker.protocol.types import NodeId


class BrokerNotFoundError(Exception):
    """No broker of this id is registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBalance:
    """A plan, and how many partitions this node could not measure: then only counts decide."""

    plan: BalancePlan
    unmeasured_partitions: int


class Planner(Protocol):
    """Makes the plans and knows the one under way."""

    async def plan_balance(
        self, drain: NodeId | None, throttle_bytes_per_second: float | None
    ) -> PlannedBalance:
        """Plan a rebalance, or a drain. Raises BrokerNotFoundError."""
        ...

    def balance_progress(self) -> tuple[PlanProgress | None, str | None]:
        """Return the plan under way, and what became of the last one."""
        ...
