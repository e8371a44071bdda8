"""The parts of a node that monitoring reads; it never changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace_broker.log.log_directories import LogDirectories
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.fetch.fetch_sessions import FetchSessions
    from headrace_broker.server.groups.group_driver import GroupCoordinator
    from headrace_broker.server.monitoring.partition_changes import PartitionChanges
    from headrace_broker.server.network.api_entry import ApiEntry
    from headrace_broker.server.network.metrics import NetworkMetrics
    from headrace_broker.server.partitions.replica_manager import ReplicaManager
    from headrace_broker.server.peers.peers import PeerConnections
    from headrace_broker.server.quorum.controller import ControllerDriver
    from headrace_broker.server.shares.shares import Shares


class Node(Protocol):
    """One node. Before `is_composed`, only the settings, the clock and the counters exist."""

    config: BrokerConfig
    clock: Clock
    apis: Mapping[int, ApiEntry]
    network_metrics: NetworkMetrics
    changes: PartitionChanges
    fetch_sessions: FetchSessions
    directories: LogDirectories
    controller: ControllerDriver
    peers: PeerConnections
    replicas: ReplicaManager
    groups: GroupCoordinator
    shares: Shares

    @property
    def is_ready(self) -> bool:
        """Whether clients should be sent here."""

    @property
    def is_composed(self) -> bool:
        """Whether the quorum, the replicas and the groups exist yet."""

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""
