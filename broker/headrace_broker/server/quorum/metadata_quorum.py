"""A node's metadata side, put together: log, quorum replica, loader, controller."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from headrace_broker.metadata.brokers.liveness import decide_lost_broker
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.raft.types import Endpoint, RaftConfig, ReplicaKey, Voter, VoterSet
from headrace_broker.server.clock import Clock
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.peers.peers import Address, PeerConnections
from headrace_broker.server.quorum.controller import ControllerDriver
from headrace_broker.server.quorum.metadata_loader import MetadataLoader
from headrace_broker.server.quorum.raft_driver import RaftDriver
from headrace_broker.server.quorum.raft_log import MetadataLog
from headrace_broker.server.quorum.recovery import end_recovery, recover_if_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is in the quorum. `ports` are the bound ports by listener name."""

    directory_id: UUID
    cluster_id: str
    ports: Mapping[str, int]


class MetadataQuorum:
    """Everything on one node that deals with the metadata log."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        *,
        clock: Clock,
        rng: random.Random,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        values = config.values
        self._config = config
        self._on_failure = on_failure
        self.log = MetadataLog.open(
            config.metadata_log_directory,
            clock,
            segment_bytes=values["metadata.log.segment.bytes"],
        )
        key = ReplicaKey(config.node_id, identity.directory_id)
        #: Voters whose disks are lost, if an administrator told this node to go on alone.
        self.lost = recover_if_asked(config.metadata_log_directory, self.log, key, clock)
        if not config.is_broker:
            # A node that is only a controller has no replicas that could lead.
            end_recovery(config.metadata_log_directory)
        self.loader = MetadataLoader(self.log, self._loader_failed)
        self.driver = RaftDriver(
            raft_config(config, identity),
            self.log,
            self.loader,
            clock=clock,
            rng=rng,
            on_failure=on_failure,
        )
        self.controller = ControllerDriver(config, self.driver, self.loader, clock, rng)
        self._snapshot_bytes = values["metadata.log.max.record.bytes.between.snapshots"]
        self.loader.after_publication = self._published

    def _loader_failed(self, error: BaseException) -> None:
        self.controller.loader_failed()
        # Whatever failed, even one of several log directories: this node sees no more changes.
        failure = OSError(f"the metadata could not be applied: {error}")
        failure.__cause__ = error
        self._on_failure(failure)

    def _published(self) -> None:
        if self.loader.bytes_since_snapshot >= self._snapshot_bytes:
            self.loader.bytes_since_snapshot = 0
            self.driver.snapshot(self.loader.image)

    async def rejoin(self, previous: int) -> BrokerEpoch:
        """Return the registration epoch to rejoin with; `previous` comes from the last clean stop.

        If the quorum continues with this node alone, this node has the best records that are left.
        Although its process may have been killed, brokers with empty disks must not become leaders
        of its partitions.
        """
        if not self.lost:
            end_recovery(self._config.metadata_log_directory)
            return BrokerEpoch(previous)
        for node_id in self.lost:
            # Do it before this broker is briefly away: the others seem to have all its records.
            await self.controller.submit(
                partial(decide_lost_broker, node_id=node_id, policy=self.controller.policy)
            )
        end_recovery(self._config.metadata_log_directory)
        known = self.loader.image.brokers.get(self._config.node_id)
        return known.epoch if known is not None else BrokerEpoch(-1)

    def start(self, peers: PeerConnections | None = None) -> None:
        """Join the quorum; a single voter has a controller once the loader has read the log."""
        self.driver.start(peers)

    async def close(self) -> None:
        """Stop, and close the log."""
        await self.driver.resign()
        self.controller.close()
        await self.driver.close()


def raft_config(config: BrokerConfig, identity: Identity) -> RaftConfig:
    """Return the quorum's settings in the form that the consensus code takes."""
    values, quorum = config.values, config.quorum
    own = _own_endpoints(config, identity.ports)
    key = ReplicaKey(config.node_id, identity.directory_id)
    voters = [
        Voter(key=ReplicaKey(node_id), endpoints=(Endpoint(host, port),))
        for node_id, (host, port) in quorum.voters.items()
    ]
    if quorum.is_alone:
        voters = [Voter(key=key, endpoints=own)]
    return RaftConfig(
        key=key,
        cluster_id=identity.cluster_id,
        voters=VoterSet(voters),
        kraft_version=values["headrace.kraft.version"],
        bootstrap_servers=tuple(Endpoint(host, port) for host, port in quorum.bootstrap_servers),
        endpoints=own if config.is_controller else (),
        auto_join=config.is_controller and values["controller.quorum.auto.join.enable"],
        election_timeout_ms=values["controller.quorum.election.timeout.ms"],
        fetch_timeout_ms=values["controller.quorum.fetch.timeout.ms"],
        election_backoff_ms_max=values["controller.quorum.election.backoff.max.ms"],
        request_timeout_ms=values["controller.quorum.request.timeout.ms"],
        retry_backoff_ms=values["controller.quorum.retry.backoff.ms"],
    )


def _own_endpoints(config: BrokerConfig, ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
    """Return the addresses at which other nodes reach this controller.

    They come from the voters setting; else from advertised.listeners, because a controller that
    joins later is not among the voters; else from the bound listeners.
    """
    known = config.quorum.voters.get(config.node_id)
    advertised = {item.name: item for item in config.advertised_controllers}
    found: list[Endpoint] = []
    for listener in config.listeners:
        if listener.name in config.controller_listener_names:
            host = listener.host or "localhost"
            port = ports.get(listener.name, listener.port)
            if known is not None and not found:
                host, port = known
            elif listener.name in advertised:
                host, port = advertised[listener.name].host, advertised[listener.name].port
            found.append(Endpoint(host, port, listener.name))
    if not found:
        # A quorum of one that binds no port: its address is never used.
        found = [Endpoint(*(known or ("localhost", 0)))]
    return tuple(found)


class NodeAddresses:
    """The addresses of the other nodes: brokers from the image, controllers from the quorum."""

    def __init__(self, config: BrokerConfig, quorum: MetadataQuorum) -> None:
        self._config = config
        self._quorum = quorum

    def broker_address(self, node_id: NodeId) -> Address | None:
        """Return the address at which other brokers reach a broker."""
        broker = self._quorum.loader.image.brokers.get(node_id)
        if broker is None or not broker.endpoints:
            return None
        name = self._config.inter_broker_listener if self._config.is_broker else None
        endpoint = (broker.endpoint(name) if name else None) or broker.endpoints[0]
        return Address(endpoint.host, endpoint.port)

    def voter_address(self, node_id: NodeId) -> Address | None:
        """Return a controller's address."""
        node = self._quorum.driver.node
        if node.leader_id == node_id and node.leader_endpoint is not None:
            return Address(node.leader_endpoint.host, node.leader_endpoint.port)
        voter = node.voters.voters.get(node_id)
        if voter is not None and voter.endpoints:
            return Address(voter.endpoints[0].host, voter.endpoints[0].port)
        known = self._config.quorum.voters.get(node_id)
        return None if known is None else Address(*known)

    def active_controller(self) -> NodeId | None:
        """Return who leads the quorum, as far as this node knows."""
        return self._quorum.driver.leader_id
