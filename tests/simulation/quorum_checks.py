"""Invariants of the metadata quorum: those of Apache Kafka's own Raft simulation."""

from pathlib import Path
from typing import Any

from headrace_broker.protocol.batch_header import HEADER_SIZE, parse_batch_header
from simulation.cluster import Cluster, Node
from simulation.history import History


class QuorumChecks:
    """SingleLeader, MonotonicEpoch, MonotonicHighWatermark, and the same committed data everywhere.

    A node's epoch may not go back over a restart either: it is what a vote was given in.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._leaders: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._watermarks: dict[tuple[int, int], int] = {}
        self._committed: dict[int, tuple[int, int, int]] = {}
        """Base offset -> (last offset, epoch, checksum) of every committed batch."""
        self._checked: dict[tuple[int, int, str], int] = {}

    def check(self, node: Node) -> None:
        """Check one node that runs."""
        quorum: Any = getattr(node.broker, "_metadata_quorum", None)
        if quorum is None:
            return
        if quorum.driver._is_ended:
            return  # an effect failed after the state had moved: the process is about to end
        raft = quorum.driver.node
        epoch, high_watermark = int(raft.epoch), int(raft.high_watermark)
        if epoch < self._epochs.get(node.node_id, 0):
            self._history.violate(
                "quorum-epoch-went-back",
                f"{node}: from {self._epochs[node.node_id]} to {epoch}",
            )
        self._epochs[node.node_id] = epoch
        if raft.is_leader:
            leader = self._leaders.setdefault(epoch, node.node_id)
            if leader != node.node_id:
                self._history.violate(
                    "two-controllers", f"epoch {epoch}: both {leader} and {node.node_id} lead"
                )
        life = (node.node_id, node.starts)
        known = self._watermarks.get(life, -1)
        if high_watermark < known:
            self._history.violate(
                "quorum-high-watermark-went-back", f"{node}: from {known} to {high_watermark}"
            )
        if high_watermark > known:
            self._watermarks[life] = high_watermark
            self._compare(node, high_watermark)

    def _compare(self, node: Node, high_watermark: int) -> None:
        """Hold what is newly committed here to what was committed elsewhere."""
        folder = node.disk.root / "__cluster_metadata-0"
        for path in sorted(folder.glob("*.log")):
            place = (node.node_id, node.starts, path.name)
            self._checked[place] = self._compare_file(
                node, path, self._checked.get(place, 0), high_watermark
            )

    def _compare_file(self, node: Node, path: Path, position: int, high_watermark: int) -> int:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
        start = 0
        while start + HEADER_SIZE <= len(data):
            header = parse_batch_header(data, start)
            last = header.base_offset + header.last_offset_delta
            if last >= high_watermark:
                break
            found = (last, int(header.partition_leader_epoch), header.crc)
            known = self._committed.setdefault(int(header.base_offset), found)
            if known != found:
                self._history.violate(
                    "committed-metadata-differs",
                    f"{node} has {found} at {header.base_offset}, another node had {known}",
                )
            start += header.size_bytes
        return position + start
