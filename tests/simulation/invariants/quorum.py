"""Invariants of the metadata quorum: those of Apache Kafka's own Raft simulation."""

from pathlib import Path
from typing import Any

from headrace_broker.protocol.batch_header import HEADER_SIZE, parse_batch_header
from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant


class Quorum(Invariant):
    """The invariants of Kafka's simulation, and the same committed data everywhere.

    SingleLeader, MonotonicEpoch, MonotonicHighWatermark, MajorityReachedHighWatermark,
    SnapshotAtLogStart, LeaderNeverLoadsSnapshot.

    A node's epoch may not go back over a restart either: it is what a vote was given in.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._leaders: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._watermarks: dict[tuple[int, int], int] = {}
        self._committed: dict[int, tuple[int, int, int]] = {}
        """Base offset -> (last offset, epoch, checksum) of every committed batch."""
        self._checked: dict[tuple[int, int, str], int] = {}
        self._replicas: dict[int, Any] = {}
        """Each node's replica as it is, or as its process left it."""

    def check_process(self, node: Node) -> None:
        """Check one node that runs."""
        quorum: Any = getattr(node.broker, "_metadata_quorum", None)
        if quorum is None:
            return
        if quorum.driver._is_ended:
            return  # an effect failed after the state had moved: the process is about to end
        raft = quorum.driver.node
        epoch, high_watermark = int(raft.epoch), int(raft.high_watermark)
        if epoch < self._epochs.get(node.node_id, 0):
            self.history.violate(
                "quorum-epoch-went-back",
                f"{node}: from {self._epochs[node.node_id]} to {epoch}",
            )
        self._epochs[node.node_id] = epoch
        replica = self._replicas[node.node_id] = raft._replica
        self._check_start(node, replica, quorum.log)
        if raft.is_leader:
            if replica.installing is not None:
                self.history.violate("leader-loads-snapshot", f"{node}: {replica.installing}")
            leader = self._leaders.setdefault(epoch, node.node_id)
            if leader != node.node_id:
                self.history.violate(
                    "two-controllers", f"epoch {epoch}: both {leader} and {node.node_id} lead"
                )
        life = (node.node_id, node.starts)
        known = self._watermarks.get(life, -1)
        if high_watermark < known:
            self.history.violate(
                "quorum-high-watermark-went-back", f"{node}: from {known} to {high_watermark}"
            )
        if high_watermark > known:
            if raft.is_leader:
                self._check_majority(node, replica, high_watermark)
            self._watermarks[life] = high_watermark
            self._compare(node, high_watermark)

    def _check_start(self, node: Node, replica: Any, log: Any) -> None:
        """A log that does not begin at 0 begins where a snapshot ends."""
        start = int(replica.log.start.offset)
        if start and start not in {int(kept.offset) for kept in log.snapshots.ids}:
            self.history.violate(
                "no-snapshot-at-log-start", f"{node}: {start} of {list(log.snapshots.ids)}"
            )

    def _check_majority(self, node: Node, leader: Any, high_watermark: int) -> None:
        """What is committed is durable in the logs of most voters."""
        if any(said.offset >= high_watermark for said in leader.history.since(high_watermark)):
            return  # voters are being changed: what is committed was counted with other ones
        voters = leader.voters.ids
        epoch = leader.log.epoch_before(high_watermark)
        holders = [
            voter
            for voter in voters
            if (replica := self._replicas.get(voter)) is not None
            and replica.log.flushed_end >= high_watermark
            and replica.log.epoch_before(high_watermark) == epoch
        ]
        if len(holders) <= len(voters) // 2:
            self.history.violate(
                "committed-by-a-minority",
                f"{node}: {high_watermark} is held by {holders} of {list(voters)}",
            )

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
                self.history.violate(
                    "committed-metadata-differs",
                    f"{node} has {found} at {header.base_offset}, another node had {known}",
                )
            start += header.size_bytes
        return position + start
