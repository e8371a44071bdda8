"""What the reconciler asks of those who run brokers and applications on Kubernetes. Protocols only.

`BrokersOnKubernetes` (`brokers/backend.py`) and `SparkRunner` (`spark/applications.py`) are these.
Both are made once, with a `KubernetesClient` and the `Store`, and are called for every key. They
keep no state that a restart would lose: what must last is in Kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Action, Desired, Observed, Plan, Problem
    from headrace_operator.resources import Cluster

__all__ = ["ApplicationOutcome", "ApplicationRunner", "BrokerBackend"]


class BrokerBackend(Protocol):
    """Whoever has the brokers of a Cluster."""

    def bootstrap_servers(self, cluster: Cluster) -> str:
        """Where the operator itself reaches the brokers (host:port,…); empty before any exists."""

    async def effective(self, cluster: Cluster) -> tuple[Cluster, tuple[Problem, ...]]:
        """Return the Cluster as its brokers are to be now, and why that is not what its spec says.

        The Cluster itself and () but where its spec was tried and no broker came up with it, or
        where it says what volumes cannot become.
        """

    async def observe(self, cluster: Cluster) -> Observed:
        """Return `Observed(cluster=ObservedCluster(brokers=…))`: pods and settings, from the store.

        None as its cluster when nothing was created yet. The brokers themselves are not asked here:
        the reconciler merges what they say.
        """

    async def perform(
        self, actions: Sequence[Action], desired: Desired, observed: Observed
    ) -> tuple[Failure, ...]:
        """Perform those actions that are the backend's, and keep its objects as the spec says.

        Called once in every reconciliation of a Cluster, also with no action: here Services,
        PodDisruptionBudgets and the like are compared with the store and applied where they differ
        (converged input: no request). `observed` is merged with what the brokers say.
        """

    def status(self, cluster: Cluster, observed: Observed, plan: Plan) -> Mapping[str, Any]:
        """Return the Cluster's status fields that are the backend's (pools, listeners, plan …).

        Camel case, as in the CRD. They are written with the rest of the status, on change only.
        """

    async def delete(self, cluster: Cluster) -> str:
        """Go on with deleting what owner references do not (PVCs by policy); '' when all is gone.

        Otherwise what is waited for. Called for a Cluster that is being deleted,
        until it returns ''.
        """


@dataclass(frozen=True, kw_only=True)
class ApplicationOutcome:
    """What became of a SparkApplication. `look_again_seconds` None: at the next event only."""

    look_again_seconds: float | None = None
    status: Mapping[str, Any] = field(default_factory=dict)


class ApplicationRunner(Protocol):
    """Whoever runs SparkApplications (`--spark-runner`)."""

    async def reconcile(
        self, namespace: str, name: str, application: Object | None
    ) -> ApplicationOutcome:
        """Bring one SparkApplication to its spec; `application` None: it is gone.

        Level-triggered and idempotent: called for each event of the application and of pods and
        services it owns, once at the start, and at each resync. It writes its own status (on change
        only) and Events through the client.
        """
