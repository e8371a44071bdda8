"""A broker's replication: fetchers, in-sync sets and the lease, connected to replicas and peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_broker.server.follower.replica_fetcher import FetcherConfig
from headrace_broker.server.follower.replica_fetchers import ReplicaFetchers
from headrace_broker.server.partitions.isr_updates import IsrUpdates
from headrace_broker.server.partitions.leader_lease import (
    LeaderLease,
    Membership,
    lease_seconds,
)
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from headrace_broker.server.peers.peers import PeerConnections

_RACK_AWARE = "RackAwareReplicaSelector"


def selects_by_rack(values: Mapping[str, Any]) -> bool:
    """Whether the settings let consumers read from a follower in their rack (KIP-392)."""
    return str(values["replica.selector.class"] or "").rpartition(".")[2] == _RACK_AWARE


class Replication:
    """Starts and stops the replication of this broker's replicas."""

    def __init__(
        self,
        replicas: ReplicaManager,
        peers: PeerConnections,
        values: Mapping[str, Any],
        membership: Membership,
    ) -> None:
        config = FetcherConfig(
            wait_max_ms=values["replica.fetch.wait.max.ms"],
            max_bytes=values["replica.fetch.max.bytes"],
            response_max_bytes=values["replica.fetch.response.max.bytes"],
            backoff_ms=values["replica.fetch.backoff.ms"],
            timeout_ms=values["replica.socket.timeout.ms"],
        )
        self._fetchers = ReplicaFetchers(replicas.host, peers, config)
        self._isr_updates = IsrUpdates(replicas, peers)
        seconds = lease_seconds(
            values["broker.session.timeout.ms"], values["controller.quorum.fetch.timeout.ms"]
        )
        self._lease = LeaderLease(replicas, membership, seconds)
        self._replicas = replicas

    def start(self) -> None:
        """Begin to follow and lead."""
        self._replicas.host.request_isr_update = self._isr_updates.request
        self._replicas.start_following(self._fetchers)
        self._isr_updates.start()
        self._lease.start()

    async def stop(self) -> None:
        """Stop; the replicas stay as they are."""
        self._lease.close()
        self._replicas.followers = None
        await self._fetchers.close()
        await self._isr_updates.close()
