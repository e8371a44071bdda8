"""Observe, plan, apply for a local cluster, until nothing is left to do.

The backend owns brokers and applications; the brokers own topics and groups. This module combines
both observations, and passes each action to its executor. Processes other than `up` (`headrace
apply`) have no backend: they carry out the brokers' part and leave the rest to `up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace_operator.admin import BrokerAdmin
from headrace_operator.apply import ADMIN_ACTIONS, Failure
from headrace_operator.local.state import exclusive_lock, observed_of
from headrace_operator.observe import merge_observations
from headrace_operator.plan import (
    Action,
    Observed,
    Plan,
    ReconfigureBroker,
    ResetOffsets,
    StartBroker,
    StopBroker,
    plan,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import ClusterState
    from headrace_operator.plan import Application, Desired, Key
    from headrace_operator.resources import Resource

__all__ = ["Backend", "Outcome", "Reconciler", "StateBackend", "reconcile_lock"]

# Each round makes the next possible: brokers, then topics, then applications. More rounds are a
# loop.
ROUNDS_MAX = 20
BROKER_ACTIONS = (StartBroker, StopBroker, ReconfigureBroker)


class Backend(Protocol):
    """Owns the brokers and applications."""

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; empty before any broker was started."""

    def observe(self) -> Observed:
        """Brokers and applications."""

    async def perform(
        self, actions: Sequence[Action], applications: Mapping[Key, Application]
    ) -> None:
        """Carry out the actions for brokers and applications."""


class StateBackend:
    """A running cluster as another process sees it: through its state file. Carries out nothing."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    @property
    def bootstrap_servers(self) -> str:
        """See Backend."""
        return self._state.bootstrap_servers

    def observe(self) -> Observed:
        """See Backend."""
        return observed_of(self._state)

    async def perform(
        self, actions: Sequence[Action], applications: Mapping[Key, Application]
    ) -> None:
        """Leave it to `up`, which reads the same manifests."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a reconciliation."""

    #: The actions carried out here.
    performed: tuple[Action, ...]
    #: One line for each action that the brokers refused.
    failures: tuple[str, ...]
    #: What is left at the end: problems, pending waits, actions for another process.
    rest: Plan


class Reconciler:
    """Brings one local cluster to its desired state. One reconciliation at a time."""

    def __init__(
        self,
        backend: Backend,
        store: DesiredStore,
        *,
        on_action: Callable[[Action], None] = lambda _: None,
    ) -> None:
        """`on_action` gets each action before it is carried out."""
        self._backend = backend
        self._store = store
        self._on_action = on_action
        self._admin: BrokerAdmin | None = None

    async def start_brokers(self, desired: Desired) -> None:
        """Start the brokers and wait until they are ready; nothing else."""
        planned = plan(self._backend.observe(), desired)
        actions = [action for action in planned.actions if isinstance(action, BROKER_ACTIONS)]
        await self._backend.perform(actions, {})

    async def observe(self, desired: Desired) -> Observed:
        """Observe the backend and the brokers."""
        backend = self._backend.observe()
        if not self._backend.bootstrap_servers:
            return backend
        if self._admin is None or self._admin.bootstrap_servers != self._backend.bootstrap_servers:
            await self.close()
            self._admin = BrokerAdmin(self._backend.bootstrap_servers)
        now_ms = int(time.time() * 1000)
        return merge_observations(backend, await self._admin.observe(desired, now_ms=now_ms))

    async def reconcile(self, desired: Callable[[], Desired]) -> Outcome:
        """Carry out plans until one has nothing to do here. Hold `reconcile_lock` around it."""
        performed: list[Action] = []
        for _ in range(ROUNDS_MAX):
            wanted = desired()
            planned = plan(await self.observe(wanted), wanted)
            mine = self._mine(planned.actions)
            failures = await self._perform(mine, wanted)
            performed += mine
            if failures or not mine:
                self._record(wanted, planned)
                return Outcome(performed=tuple(performed), failures=failures, rest=planned)
        actions = "; ".join(action.describe() for action in performed[-3:])
        raise RuntimeError(f"not converged after {ROUNDS_MAX} rounds; the last: {actions}")

    async def close(self) -> None:
        """Close the connection to the brokers."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    def _mine(self, actions: Sequence[Action]) -> list[Action]:
        if isinstance(self._backend, StateBackend):
            return [action for action in actions if isinstance(action, ADMIN_ACTIONS)]
        return list(actions)

    async def _perform(self, actions: Sequence[Action], desired: Desired) -> tuple[str, ...]:
        if not actions:
            return ()
        for action in actions:
            self._on_action(action)
        failures: tuple[Failure, ...] = ()
        on_brokers = [action for action in actions if isinstance(action, ADMIN_ACTIONS)]
        if on_brokers and self._admin is not None:
            failures = await self._admin.apply(on_brokers)
        refused = {id(failure.action) for failure in failures}
        resets = [action for action in actions if isinstance(action, ResetOffsets)]
        for reset in resets:
            if id(reset) not in refused:
                self._store.record_reset(reset.resource, reset.request_id, reset.previous)
        applications = {each.key: each for each in desired.applications}
        await self._backend.perform(actions, applications)
        return tuple(failure.describe() for failure in failures)

    def _record(self, desired: Desired, planned: Plan) -> None:
        unfinished = {action.resource for action in planned.actions}
        unfinished |= {problem.resource for problem in planned.problems}
        unfinished |= {wait.resource for wait in planned.waiting}
        resources: list[Resource] = [*desired.topics, *desired.groups]
        gone = desired.deleted - unfinished
        self._store.record_observed(
            [resource for resource in resources if resource.key not in unfinished | gone]
        )
        self._store.remove(gone)


@contextlib.asynccontextmanager
async def reconcile_lock(layout: ClusterLayout) -> AsyncIterator[None]:
    """Keep other processes from reconciling the same cluster; waits for its turn."""
    with contextlib.ExitStack() as stack:
        lock = exclusive_lock(layout.reconcile_lock, wait=True)
        await asyncio.to_thread(stack.enter_context, lock)
        yield
