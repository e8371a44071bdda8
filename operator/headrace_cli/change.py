"""A command's change of a cluster's manifests: stored, and applied to the brokers.

Starting and stopping processes is left to the running `up`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.reconcile import Outcome
    from headrace_operator.local.state import ClusterState
    from headrace_operator.resources import Resource

__all__ = ["change_running", "protections"]


def change_running(
    layout: ClusterLayout, state: ClusterState, change: Callable[[DesiredStore], None]
) -> Outcome:
    """Change the stored manifests of a running cluster, and reconcile the brokers' part."""
    return asyncio.run(_change(layout, state, change))


async def _change(
    layout: ClusterLayout, state: ClusterState, change: Callable[[DesiredStore], None]
) -> Outcome:
    from headrace_operator.local.desired import DesiredStore, desired_of
    from headrace_operator.local.reconcile import Reconciler, StateBackend, reconcile_lock

    store = DesiredStore(layout)
    reconciler = Reconciler(StateBackend(state), store)
    try:
        # Locked before it is stored: otherwise `up` would see the manifests first and reconcile
        # them.
        async with reconcile_lock(layout):
            change(store)
            return await reconciler.reconcile(lambda: desired_of(store.load(), state.cluster))
    finally:
        await reconciler.close()


def protections(resources: Iterable[Resource]) -> list[str]:
    """Report which of these resources must not be deleted, and what to do about it."""
    from headrace_operator.resources import Cluster, ConsumerGroup, Topic

    return [
        f"{resource.kind.lower()}/{resource.metadata.name} is protected (deletionPolicy: Protect):"
        " apply it with deletionPolicy: Delete or Retain first"
        for resource in resources
        if isinstance(resource, Cluster | Topic | ConsumerGroup)
        and resource.spec.deletion_policy == "Protect"
    ]
