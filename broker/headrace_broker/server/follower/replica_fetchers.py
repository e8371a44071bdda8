"""The fetchers of this broker, one for each source broker, and who fetches which partition."""

from __future__ import annotations

from headrace_broker.protocol.types import NodeId
from headrace_broker.server.follower.fetch_topics import Key
from headrace_broker.server.follower.replica_fetcher import FetcherConfig, ReplicaFetcher
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from headrace_broker.server.peers.peers import PeerConnections


class ReplicaFetchers:
    """The fetchers of one broker."""

    def __init__(self, host: ReplicaHost, peers: PeerConnections, config: FetcherConfig) -> None:
        self._host = host
        self._peers = peers
        self._config = config
        self._fetchers: dict[NodeId, ReplicaFetcher] = {}
        self._sources: dict[Key, NodeId] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its leader, from its log end on; call again after each change."""
        key = Key(partition.topic_id.bytes, partition.index)
        source = partition.leader
        former = self._sources.get(key)
        if former is not None and former != source:
            self._fetchers[former].partitions.remove(key)
        self._sources[key] = source
        fetcher = self._fetchers.get(source)
        if fetcher is None:
            fetcher = ReplicaFetcher(source, self._host, self._peers, self._config)
            self._fetchers[source] = fetcher
        fetcher.follow(key, partition)

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        key = Key(partition.topic_id.bytes, partition.index)
        source = self._sources.pop(key, None)
        if source is not None:
            self._fetchers[source].partitions.remove(key)

    def silent_seconds(self, partition: Partition) -> float:
        """How long the leader of a followed partition has not answered a fetch."""
        source = self._sources.get(Key(partition.topic_id.bytes, partition.index))
        return 0.0 if source is None else self._fetchers[source].silent_seconds

    async def close(self) -> None:
        """Stop fetching."""
        for fetcher in self._fetchers.values():
            await fetcher.close()
