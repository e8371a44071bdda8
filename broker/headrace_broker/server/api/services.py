"""The parts of the node that handlers use, each as a separate Protocol.

A handler declares one of them, or a Protocol that combines several, and receives the whole node.
Only `broker.py` knows the node's complete type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from headrace_broker.server.network.api_entry import ApiEntry

if TYPE_CHECKING:
    from headrace_broker.log.log_directories import LogDirectories
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.fetch.fetch_sessions import FetchSessions
    from headrace_broker.server.groups.group_driver import GroupCoordinator
    from headrace_broker.server.membership.broker_lifecycle import BrokerLifecycle
    from headrace_broker.server.membership.departures import Departures
    from headrace_broker.server.network.budget import Budget
    from headrace_broker.server.partitions.replica_manager import ReplicaManager
    from headrace_broker.server.peers.peers import PeerConnections
    from headrace_broker.server.quorum.controller import ControllerDriver
    from headrace_broker.server.quorum.controller_tasks import ControllerTasks
    from headrace_broker.server.quorum.producer_ids import ProducerIds
    from headrace_broker.server.quorum.raft_driver import RaftDriver
    from headrace_broker.server.shares.shares import Shares
    from headrace_broker.server.transactions.coordinator import TransactionCoordinator
    from headrace_broker.server.transactions.verifier import Verifier


class WithApis(Protocol):
    """What each listener serves."""

    def apis_of(self, listener: str) -> Mapping[int, ApiEntry]:
        """Return what a listener serves, by API key."""


class WithClock(Protocol):
    """Tells the time."""

    @property
    def clock(self) -> Clock:
        """Tells the time."""


class WithClusterId(Protocol):
    """The cluster's id."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""


class WithConfig(Protocol):
    """The settings."""

    @property
    def config(self) -> BrokerConfig:
        """The settings."""


class WithBudget(Protocol):
    """The memory for requests and responses in flight."""

    @property
    def budget(self) -> Budget:
        """The memory for requests and responses in flight."""


class WithMetadata(Protocol):
    """The latest metadata image."""

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""


class WithRaft(Protocol):
    """This node's replica of the metadata quorum."""

    @property
    def raft(self) -> RaftDriver:
        """This node's replica of the metadata quorum."""


class WithController(Protocol):
    """Decides metadata changes, or forwards them to the active controller."""

    @property
    def controller(self) -> ControllerDriver:
        """Decides metadata changes, or forwards them to the active controller."""


class WithControllerTasks(Protocol):
    """The active controller's sessions and periodic work."""

    @property
    def controller_tasks(self) -> ControllerTasks:
        """The active controller's sessions and periodic work."""


class WithProducerIds(Protocol):
    """Gives producer ids."""

    @property
    def producer_ids(self) -> ProducerIds:
        """Gives producer ids."""


class WithPeers(Protocol):
    """The connections to the other nodes."""

    @property
    def peers(self) -> PeerConnections:
        """The connections to the other nodes."""


class WithLifecycle(Protocol):
    """This process's membership in the cluster."""

    @property
    def lifecycle(self) -> BrokerLifecycle:
        """This process's membership in the cluster."""


class WithDepartures(Protocol):
    """The brokers that were fenced a moment ago."""

    @property
    def departures(self) -> Departures:
        """The brokers that were fenced a moment ago."""


class WithDirectories(Protocol):
    """The log directories."""

    @property
    def directories(self) -> LogDirectories:
        """The log directories."""


class WithReplicas(Protocol):
    """This broker's replicas."""

    @property
    def replicas(self) -> ReplicaManager:
        """This broker's replicas."""


class WithFetchSessions(Protocol):
    """The fetch sessions (KIP-227)."""

    @property
    def fetch_sessions(self) -> FetchSessions:
        """The fetch sessions (KIP-227)."""


class WithTransactions(Protocol):
    """The coordinator of this broker's transactions."""

    @property
    def transactions(self) -> TransactionCoordinator:
        """The coordinator of this broker's transactions."""


class WithVerifier(Protocol):
    """Asks transaction coordinators for this broker's partitions."""

    @property
    def verifier(self) -> Verifier:
        """Asks transaction coordinators for this broker's partitions."""


class WithShares(Protocol):
    """This node's parts of share groups."""

    @property
    def shares(self) -> Shares:
        """This node's parts of share groups."""


class WithGroups(Protocol):
    """The coordinator of this broker's groups."""

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of this broker's groups."""
