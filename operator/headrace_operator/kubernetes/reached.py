"""Brokers that run elsewhere and are only connected to: for an operator outside, and tests.

They are assumed to match the Cluster's pools; nothing about them is started or changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.plan import Observed, ObservedBroker, ObservedCluster
from headrace_operator.plan.brokers import config_texts
from headrace_operator.plan.pools import FIRST_NODE_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.seams import BrokerBackend
    from headrace_operator.plan import Action, Desired, Plan, Problem, Waiting
    from headrace_operator.resources import Cluster

__all__ = ["ReachedBrokers", "ReachedOrOwn"]


class ReachedBrokers:
    """A `BrokerBackend` for brokers that run elsewhere."""

    def __init__(self, addresses: Mapping[tuple[str, str], str]) -> None:
        """Bootstrap servers by the Cluster's namespace and name."""
        self._addresses = addresses

    def bootstrap_servers(self, cluster: Cluster) -> str:
        """See BrokerBackend."""
        return self._addresses.get((cluster.metadata.namespace, cluster.metadata.name), "")

    async def effective(self, cluster: Cluster) -> tuple[Cluster, tuple[Problem | Waiting, ...]]:
        """See BrokerBackend."""
        return cluster, ()

    async def observe(self, cluster: Cluster) -> Observed:
        """See BrokerBackend."""
        servers = self.bootstrap_servers(cluster)
        config = config_texts(cluster)
        names = [
            (pool.name, pool.roles) for pool in cluster.spec.pools for _ in range(pool.replicas)
        ]
        brokers = tuple(
            ObservedBroker(
                node_id=node_id, pool=pool, roles=roles, config=config, is_running=bool(servers)
            )
            for node_id, (pool, roles) in enumerate(names, FIRST_NODE_ID)
        )
        return Observed(cluster=ObservedCluster(brokers=brokers, bootstrap_servers=servers))

    async def perform(
        self,
        actions: Sequence[Action],  # noqa: ARG002 - a protocol's
        desired: Desired,  # noqa: ARG002
        observed: Observed,  # noqa: ARG002
    ) -> tuple[Failure, ...]:
        """See BrokerBackend; there is nothing to do."""
        return ()

    def status(
        self,
        cluster: Cluster,  # noqa: ARG002
        observed: Observed,  # noqa: ARG002
        plan: Plan,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """See BrokerBackend; there is nothing to add."""
        return {}

    def forget(self, cluster: Cluster) -> None:
        """See BrokerBackend; nothing is remembered."""


class ReachedOrOwn:
    """A `BrokerBackend` that delegates reached Clusters to one backend, others to another."""

    def __init__(self, reached: ReachedBrokers, own: BrokerBackend) -> None:
        """The addresses given at the start decide which Clusters are reached."""
        self._reached = reached
        self._own = own

    def bootstrap_servers(self, cluster: Cluster) -> str:
        """See BrokerBackend."""
        return self._of(cluster).bootstrap_servers(cluster)

    async def effective(self, cluster: Cluster) -> tuple[Cluster, tuple[Problem | Waiting, ...]]:
        """See BrokerBackend."""
        return await self._of(cluster).effective(cluster)

    async def observe(self, cluster: Cluster) -> Observed:
        """See BrokerBackend."""
        return await self._of(cluster).observe(cluster)

    async def perform(
        self, actions: Sequence[Action], desired: Desired, observed: Observed
    ) -> tuple[Failure, ...]:
        """See BrokerBackend."""
        if desired.cluster is None:
            return ()
        return await self._of(desired.cluster).perform(actions, desired, observed)

    def status(self, cluster: Cluster, observed: Observed, plan: Plan) -> Mapping[str, Any]:
        """See BrokerBackend."""
        return self._of(cluster).status(cluster, observed, plan)

    def forget(self, cluster: Cluster) -> None:
        """See BrokerBackend."""
        self._of(cluster).forget(cluster)

    def _of(self, cluster: Cluster) -> BrokerBackend:
        return self._reached if self._reached.bootstrap_servers(cluster) else self._own
