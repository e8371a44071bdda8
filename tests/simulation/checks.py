"""Invariants of the servers, checked while they run and when everything is quiet."""

from pathlib import Path
from typing import Any
from uuid import UUID

from crc32c import crc32c

from headrace_broker.coordinator.partitioning import partition_for_group
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    parse_batch_header,
)
from simulation.cluster import OFFSETS_PARTITIONS, Cluster, Node
from simulation.history import History
from simulation.quorum_checks import QuorumChecks


class Checks:
    """Remembers what may never go back, and says where it did."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._quorum = QuorumChecks(cluster, history)
        self._watermarks: dict[Any, int] = {}
        self._leaders: dict[tuple[UUID, int, int], int] = {}
        self._epochs: dict[Any, int] = {}
        self._coordinators: dict[int, tuple[int, int]] = {}

    def check(self) -> None:
        """Check what must hold at any moment."""
        for node in self._cluster.nodes:
            if node.broker is not None:
                self._quorum.check(node)
            if node.is_ready:
                self._check_node(node)
        self._note_coordinators()

    def coordinator(self, group: str) -> tuple[int, tuple[str, int] | None]:
        """Return the newest leader epoch of a group's partition so far, and its leader's address.

        What brokers know is the only witness: neither a commit nor its answer names the epoch.
        """
        self._note_coordinators()
        index = partition_for_group(group, OFFSETS_PARTITIONS)
        epoch, leader = self._coordinators.get(index, (-1, -1))
        return epoch, self._cluster.nodes[leader - 1].address if leader > 0 else None

    def _note_coordinators(self) -> None:
        for node in self._cluster.nodes:
            broker: Any = node.broker
            if broker is None or not broker.is_composed:
                continue
            for index, partition in broker.replicas.partitions_of(GROUP_METADATA_TOPIC).items():
                term = partition.leader_epoch, partition.leader
                self._coordinators[index] = max(term, self._coordinators.get(index, term))

    def _check_node(self, node: Node) -> None:
        broker: Any = node.broker
        for partition in broker.replicas:
            self._check_watermark(node, partition)
            self._check_leader(node, partition)

    def _check_watermark(self, node: Node, partition: Any) -> None:
        # A replica that was moved away and comes back, and one that was restarted, begin anew.
        high_watermark = partition.high_watermark
        known = self._watermarks.get(partition, 0)
        if high_watermark < known:
            self._history.violate(
                "high-watermark-went-back",
                f"{_name(node, partition)}: from {known} to {high_watermark}",
            )
        if high_watermark > partition.log.log_end_offset:
            self._history.violate(
                "high-watermark-above-end",
                f"{_name(node, partition)}: {high_watermark} above {partition.log.log_end_offset}",
            )
        self._watermarks[partition] = high_watermark

    def _check_leader(self, node: Node, partition: Any) -> None:
        if not set(partition.in_sync_replicas) <= set(partition.replicas):
            self._history.violate(
                "isr",
                f"{_name(node, partition)}: {partition.in_sync_replicas} of {partition.replicas}",
            )
        epoch = partition.leader_epoch
        if epoch < self._epochs.get(partition, -1):
            self._history.violate("epoch-went-back", f"{_name(node, partition)}: to {epoch}")
        self._epochs[partition] = epoch
        if partition.leader != node.node_id:
            return
        term = (partition.topic_id, partition.index, epoch)
        leader = self._leaders.setdefault(term, node.node_id)
        if leader != node.node_id:
            self._history.violate(
                "two-leaders", f"{_name(node, partition)}: {leader} leads in epoch {epoch}, too"
            )

    def at_the_end(self, final: dict[tuple[str, int], dict[int, bytes]]) -> None:
        """Look at what the nodes hold when all is quiet: it is whole, and where two have it, equal.

        Compacted batches may differ: each replica compacts on its own, and consumers have compared.
        """
        for node in self._cluster.nodes:
            self._check_folders(node)
        for topic, index in final:
            seen: dict[int, tuple[int, int]] = {}
            for node in self._cluster.nodes:
                if not _has_replica(node, topic, index):
                    continue  # a folder that was moved away while its broker was down
                for base_offset, crc, is_whole in replica_batches(node, topic, index):
                    where = f"{topic}-{index} at {base_offset}"
                    if not is_whole:
                        self._history.violate("corrupt-batch", f"{where} on {node}")
                    known = seen.setdefault(base_offset, (crc, node.node_id))
                    if known[0] != crc and not self._history.may_have_holes:
                        self._history.violate(
                            "replicas-differ", f"{where}: {node} and node {known[1]} differ"
                        )

    def _check_folders(self, node: Node) -> None:
        """No folder has a partition's name that is not this broker's: strays are set aside."""
        for directory in node.broker.directories if node.broker is not None else ():
            for topic, index in directory.unopened():
                if directory.topic_id(topic, index) is not None:
                    self._history.violate("stray-folder", f"{topic}-{index} on {node}")


def _name(node: Node, partition: Any) -> str:
    return f"{partition.topic}-{partition.index} on {node}"


def _has_replica(node: Node, topic: str, index: int) -> bool:
    broker: Any = node.broker
    return broker is not None and index in broker.replicas.partitions_of(topic)


def replica_batches(node: Node, topic: str, index: int) -> list[tuple[int, int, bool]]:
    """Return base offset, checksum, and whether it holds, of all batches of a node's replica."""
    found = []
    for path in _log_files(node, topic, index):
        data, start = path.read_bytes(), 0
        while start + HEADER_SIZE <= len(data):
            header = parse_batch_header(data, start)
            checked = data[start + ATTRIBUTES_POSITION : start + header.size_bytes]
            found.append((int(header.base_offset), header.crc, crc32c(checked) == header.crc))
            start += header.size_bytes
    return found


def _log_files(node: Node, topic: str, index: int) -> list[Path]:
    return [
        path
        for directory in node.log_directories
        for path in (directory / f"{topic}-{index}").glob("*.log")
    ]
