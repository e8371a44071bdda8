"""Bit rot: bytes of one node's logs are damaged while its process is down.

One node of a seed, in some seeds, and only what a replica that is in sync has as well: what nobody
else has is lost with its disk. A bit
of a batch's records flips, or a page of them turns to zeros; what of a header may flip unseen is
`tests/broker/log/test_damage.py`'s to try.
"""

import asyncio
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace_broker.log.log_directory import RECOVERY_POINT_NAME
from headrace_broker.protocol.batch_header import HEADER_SIZE, parse_batch_header
from simulation.cluster import Cluster, Node

_SHARE = 0.35
_STRIKES = 3
_WAIT_SECONDS = 0.05
_LOOKS_MAX = 100
_PAGE = 4096


class Rot:
    """Damages what `Cluster.rotting` holds, and starts it again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.fork("rot")

        self.is_over = False

    def begin(self, seconds: float) -> None:
        """Strike a few times within the next seconds, where a disk rots at all."""
        loop = self._cluster.loop
        if self._cluster.rotting is not None:
            for _ in range(_STRIKES):
                delay = self._rng.uniform(0.2, 0.9) * seconds
                loop.call_in(loop.kernel, delay, self._strike, self._cluster.rotting, 100)

    async def strike_once_more(self) -> None:
        """Strike where nothing else does: the broker leads what it has damaged, and is read."""
        cluster = self._cluster
        cluster.network.heal()
        for each in cluster.nodes:
            each.pause(on=False)
            each.start()
        before = len(cluster.damaged)
        if cluster.rotting is not None:
            self._strike(cluster.rotting, 100)
        for _ in range(_LOOKS_MAX):
            await asyncio.sleep(_WAIT_SECONDS)
            if before < len(cluster.damaged) <= cluster.damage_read:
                return

    def _strike(self, node: Node, attempts: int) -> None:
        """End the process, by SIGTERM or SIGKILL, and damage its logs before it starts again."""
        if self.is_over:
            return
        if not node.is_ready:
            loop = self._cluster.loop
            if attempts:
                loop.call_in(loop.kernel, _WAIT_SECONDS, self._strike, node, attempts - 1)
            return
        if self._rng.random() < 0.7:
            node.stop()
        else:
            node.kill()
        self._later(node, node.starts, attempts=100)

    def _later(self, node: Node, starts: int, attempts: int) -> None:
        loop = self._cluster.loop
        loop.call_in(loop.kernel, _WAIT_SECONDS, self._damage, node, starts, attempts)

    def _damage(self, node: Node, starts: int, attempts: int) -> None:
        if node.starts != starts:
            return  # somebody else has started it
        if node.is_running:
            if attempts:
                self._later(node, starts, attempts - 1)
            return
        for topic, index in self._cluster.profile.places:
            others = self._cluster.in_sync_beside(node, topic, index)
            if others and self._rng.random() < 0.7:
                self._damage_one(node, topic, index, others)
        node.start()

    def _damage_one(self, node: Node, topic: str, index: int, others: Sequence[Node]) -> None:
        kept = {
            data[start - HEADER_SIZE : end]
            for other in others
            for _, data, _ in _logs_of(other, topic, index)
            for start, end, _ in _records_of(data)
        }
        batches = [
            (path, start, end, offset)
            for path, data, covered in _logs_of(node, topic, index)
            for start, end, offset in _records_of(data, covered)
            if data[start - HEADER_SIZE : end] in kept
        ]
        if not batches:
            return
        path, start, end, offset = self._rng.choice(batches)
        size = min(_PAGE, end - start) if self._rng.random() < 0.5 else 0
        position = start if size else self._rng.randrange(start, end)
        data = path.read_bytes()
        node.disk.rot(path, position, size)
        if path.read_bytes() != data:
            self._cluster.say(f"{path} of {node} is damaged at {position}, {size or 'a bit'}")
            self._cluster.damaged.append(((topic, index), offset))
            self._cluster.on_moment("bit rot", node)


def draw_rotting(cluster: Cluster, rng: random.Random) -> Node | None:
    """Return whose disk rots, None in most seeds.

    Not where replicas move, which may take the last good copy away, nor where machines lose what
    no fsync covers.
    """
    profile = cluster.profile
    is_possible = (
        len(profile.brokers) > 1
        and "reassign" not in profile.works
        and (profile.has_fsyncs or not profile.loses_power)
    )
    if not is_possible or rng.random() >= _SHARE:
        return None
    return cluster.nodes[rng.choice(profile.brokers) - 1]


def _recovery_point(directory: Path, topic: str, index: int) -> int:
    """Return the offset below which a node vouches for what fsyncs have covered."""
    path = directory / RECOVERY_POINT_NAME
    lines = path.read_text().splitlines() if path.exists() else []
    prefix = f"{topic} {index} "
    return next((int(line.split()[2]) for line in lines if line.startswith(prefix)), 0)


def _logs_of(node: Node, topic: str, index: int) -> Iterator[tuple[Path, bytes, int]]:
    """Yield a replica's segments with their data, and the recovery point of their directory."""
    for directory in node.log_directories:
        covered = _recovery_point(directory, topic, index)
        for path in sorted((directory / f"{topic}-{index}").glob("*.log")):
            yield path, path.read_bytes(), covered


def _records_of(data: bytes, recovery_point: float = math.inf) -> list[tuple[int, int, int]]:
    """Return of each batch below the recovery point where its records begin and end; its offset."""
    found: list[tuple[int, int, int]] = []
    start = 0
    while start + HEADER_SIZE <= len(data):
        header: Any = parse_batch_header(data, start)
        end = start + header.size_bytes
        is_covered = header.base_offset + header.last_offset_delta < recovery_point
        if end > len(data) or header.size_bytes < HEADER_SIZE or not is_covered:
            break
        if end > start + HEADER_SIZE:
            found.append((start + HEADER_SIZE, end, int(header.base_offset)))
        start = end
    return found
