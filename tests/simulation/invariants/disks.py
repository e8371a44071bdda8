"""What the nodes' disks hold when all is quiet."""

from pathlib import Path
from typing import Any

from crc32c import crc32c

from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    parse_batch_header,
)
from simulation.cluster import Node
from simulation.invariants.invariant import Final, Invariant


class Disks(Invariant):
    """Replicas are whole, and where two have a batch it is the same; no folder is nobody's."""

    def at_the_end(self, final: Final) -> None:
        """Look at what the nodes hold when all is quiet: it is whole, and where two have it, equal.

        Compacted batches may differ: each replica compacts on its own, and consumers have compared.
        """
        for node in self.cluster.nodes:
            self._check_folders(node)
        for topic, index in final:
            seen: dict[int, tuple[int, int]] = {}
            for node in self.cluster.nodes:
                if not _has_replica(node, topic, index):
                    continue  # a folder that was moved away while its broker was down
                for base_offset, crc, is_whole in replica_batches(node, topic, index):
                    where = f"{topic}-{index} at {base_offset}"
                    if not is_whole:
                        self.history.violate("corrupt-batch", f"{where} on {node}")
                    known = seen.setdefault(base_offset, (crc, node.node_id))
                    if known[0] != crc and not self.history.may_have_holes:
                        self.history.violate(
                            "replicas-differ", f"{where}: {node} and node {known[1]} differ"
                        )

    def _check_folders(self, node: Node) -> None:
        """No folder has a partition's name that is not this broker's: strays are set aside."""
        for directory in node.broker.directories if node.broker is not None else ():
            for topic, index in directory.unopened():
                if directory.topic_id(topic, index) is not None:
                    self.history.violate("stray-folder", f"{topic}-{index} on {node}")


def _has_replica(node: Node, topic: str, index: int) -> bool:
    broker: Any = node.broker
    return broker is not None and index in broker.replicas.partitions_of(topic)


def replica_batches(node: Node, topic: str, index: int) -> list[tuple[int, int, bool]]:
    """Return base offset, checksum, and whether it holds, of all batches of a node's replica.

    What is damaged before the log's start is nobody's, and stays as it is until its segment goes.
    """
    found = []
    behind = _nobodys_damage(node, topic, index)
    for path in _log_files(node, topic, index):
        data, start = path.read_bytes(), 0
        while start + HEADER_SIZE <= len(data):
            if (path.name, start) in behind:
                start = behind[path.name, start]
                continue
            header = parse_batch_header(data, start)
            checked = data[start + ATTRIBUTES_POSITION : start + header.size_bytes]
            found.append((int(header.base_offset), header.crc, crc32c(checked) == header.crc))
            start += header.size_bytes
    return found


def _nobodys_damage(node: Node, topic: str, index: int) -> dict[tuple[str, int], int]:
    """Return where each damage before the log's start ends, by its file and position."""
    broker: Any = node.broker
    log = broker.replicas.partitions_of(topic)[index].log
    return {
        (segment.path.name, damage.start): damage.end
        for segment in log.segments
        for damage in segment.damages
        if damage.next_offset <= log.log_start_offset
    }


def _log_files(node: Node, topic: str, index: int) -> list[Path]:
    return [
        path
        for directory in node.log_directories
        for path in (directory / f"{topic}-{index}").glob("*.log")
    ]
