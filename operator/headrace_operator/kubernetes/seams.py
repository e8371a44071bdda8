"""What the reconciler needs from the backends for brokers and applications. Protocols only.

`BrokersOnKubernetes` (`brokers/backend.py`) and `SparkRunner` (`spark/applications.py`) implement
them. Both are created once, with a `KubernetesClient` and the `Store`, and are called for every
key. They keep no state that a restart would lose: all lasting state is in Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Action, Desired, Observed, Plan, Problem, Waiting
    from headrace_operator.resources import Cluster

__all__ = ["ApplicationOutcome", "ApplicationRunner", "BrokerBackend"]


class BrokerBackend(Protocol):
    """Owns the brokers of Clusters."""

    def bootstrap_servers(self, cluster: Cluster) -> str:
        """The operator's own address of the brokers (host:port,…); empty before any exists."""

    async def effective(self, cluster: Cluster) -> tuple[Cluster, tuple[Problem | Waiting, ...]]:
        """Return the Cluster as its brokers should be now, and why that differs from its spec.

        This is the Cluster itself and (), unless no broker could start with its spec, or it asks
        for a change that volumes do not allow. While something is waited for, nothing is done.
        """

    async def observe(self, cluster: Cluster) -> Observed:
        """Return `Observed(cluster=ObservedCluster(brokers=…))`: pods and settings, from the store.

        Its cluster is None if nothing was created yet. The brokers themselves are not asked here:
        the reconciler merges their answers.
        """

    async def perform(
        self, actions: Sequence[Action], desired: Desired, observed: Observed
    ) -> tuple[Failure, ...]:
        """Carry out the actions on brokers, and keep the backend's objects as in the spec.

        Called once in every reconciliation of a Cluster, even without actions: it compares
        Services, PodDisruptionBudgets and the like with the store and applies those that differ
        (converged input: no request). `observed` includes the brokers' answers.
        """

    def status(self, cluster: Cluster, observed: Observed, plan: Plan) -> Mapping[str, Any]:
        """Return the backend's status fields of the Cluster (pools, listeners, plan …).

        Camel case, as in the CRD. They are written with the rest of the status, if it changed.
        """

    def forget(self, cluster: Cluster) -> None:
        """Drop what is remembered of a Cluster that is gone; another one may have its name."""


@dataclass(frozen=True, kw_only=True)
class ApplicationOutcome:
    """The result for a SparkApplication. `look_again_seconds` None: only at the next event."""

    look_again_seconds: float | None = None
    status: Mapping[str, Any] = field(default_factory=dict)


class ApplicationRunner(Protocol):
    """Runs SparkApplications (`--spark-runner`)."""

    async def reconcile(
        self, namespace: str, name: str, application: Object | None
    ) -> ApplicationOutcome:
        """Reconcile one SparkApplication; `application` None: it is gone.

        Level-triggered and idempotent: called for each event of the application and of the pods and
        services that it owns, once at the start, and at each resync. It writes the status (if it
        changed) and Events through the client.
        """
