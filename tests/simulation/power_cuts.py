"""Power that fails right after something durable was written, or something removed.

What an order of two writes, or an fsync, is there for shows only then: a moment later a flush of
the same log covers what was forgotten.
"""

from typing import Any

from headrace_broker.log.compaction import Compaction
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from simulation.cluster import Cluster, Node
from simulation.faults import Faults
from simulation.history import History
from simulation.loop import CURRENT
from simulation.observing import observer
from simulation.workloads.workload import (
    COMMITTERS_SINCE,
    POWER_CUTS_SINCE,
    REPEATERS_SINCE,
    STRANGERS_SINCE,
)

LEFT_OUT = "a log start is left out of its checkpoint"
BEHIND = "the power fails where a segment begins behind what no fsync covers"
_SWAP_OPERATIONS = 16
"""About how many put one segment in the place of one other."""
SWAPPED = "the power fails while a compacted segment is put in place"
_CUTS_MAX = {
    LEFT_OUT: (2, 1.0),
    "checkpoints are written": (1, 0.03),
    "a log is truncated": (2, 0.2),
    "leader epochs are written": (1, 0.02),
    "a snapshot of producers is written": (1, 0.02),
    "segments are removed": (2, 0.2),
}
"""How many in one seed, and after which share of such moments."""
_YOUNGER_CUTS_MAX = {
    "a segment is begun": (2, 0.2),
    "an epoch begins": (2, 0.2),
    "checkpoints are written without fsync": (2, 0.1),
}
"""The same, in the seeds from `STRANGERS_SINCE` on."""
_YOUNGEST_CUTS_MAX = {BEHIND: (2, 0.7)}
"""The same, in the seeds from `COMMITTERS_SINCE` on."""
_COMPACTION_CUTS_MAX = {SWAPPED: (2, 0.3)}
"""The same, in the seeds from `REPEATERS_SINCE` on."""


class PowerCuts:
    """Cuts the power of a machine at most a few times in a seed."""

    def __init__(self, cluster: Cluster, faults: Faults, history: History) -> None:
        self._cluster = cluster
        self._faults = faults
        self._history = history
        self._rng = rng = cluster.fork("power-cuts")
        profile = cluster.profile
        takes_part = cluster.seed >= POWER_CUTS_SINCE and profile.loses_power and profile.has_fsyncs
        is_in = takes_part and rng.random() < 0.6
        self._cuts_max = dict(_CUTS_MAX)
        if cluster.seed >= STRANGERS_SINCE:
            self._cuts_max |= _YOUNGER_CUTS_MAX
        if cluster.seed >= COMMITTERS_SINCE:
            self._cuts_max |= _YOUNGEST_CUTS_MAX
        if cluster.seed >= REPEATERS_SINCE:
            self._cuts_max |= _COMPACTION_CUTS_MAX
        self._left = {what: most for what, (most, _) in self._cuts_max.items() if is_in}

    def wrote(self, what: str) -> None:
        """Cut the power of the machine that did so, at once or within its next operations."""
        rng, process = self._rng, CURRENT.get()
        if (
            not self._left.get(what)
            or self._faults.is_over
            or rng.random() >= self._cuts_max[what][1]
        ):
            return
        for node in self._cluster.nodes:
            if process is not None and node.process is process and node.disk.stop_at is None:
                self._left[what] -= 1
                if what in (BEHIND, SWAPPED):
                    self._history.reach(what)
                self._cut(node, range(1, _SWAP_OPERATIONS) if what == SWAPPED else None)

    def _cut(self, node: Node, operations: range | None) -> None:
        rng, process = self._rng, node.process

        def cut() -> None:
            node.cut_power()
            loop.call_in(loop.kernel, rng.choice((0.001, 0.1, 1.0)), node.start)

        def cut_later() -> None:
            if node.process is process and not self._faults.is_over:
                cut()

        loop = self._cluster.loop
        if operations is None and rng.random() < 0.5:
            loop.call_in(loop.kernel, rng.choice((0.0, 0.0, 0.0005, 0.01)), cut_later)
        else:
            node.on_disk_stopped = cut
            node.disk.stop_at = node.disk.operations + rng.choice(operations or (1, 1, 2, 3, 5))


@observer(LogDirectory, "checkpoint_log_start_offsets")
def _checkpoint_log_starts(history: History, original: Any, directory: LogDirectory) -> None:
    before = set(directory._log_starts)
    original(directory)
    if not before.issubset(directory._log_starts):
        history.reach(LEFT_OUT)
        history.on_written(LEFT_OUT)
    else:
        history.on_written("checkpoints are written")


@observer(PartitionLog, "truncate_to")
def _truncate_to(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    original(log, offset)
    history.on_written("a log is truncated")


@observer(LeaderEpochCache, "_write")
def _write_epochs(
    history: History, original: Any, cache: LeaderEpochCache, *, durable: bool
) -> None:
    original(cache, durable=durable)
    history.on_written("leader epochs are written")


@observer(PartitionLog, "_take_snapshot")
def _take_snapshot(history: History, original: Any, log: PartitionLog, *, durable: bool) -> None:
    original(log, durable=durable)
    history.on_written("a snapshot of producers is written")


@observer(PartitionLog, "apply_retention")
def _apply_retention(history: History, original: Any, log: PartitionLog, *arguments: Any) -> Any:
    found = original(log, *arguments)
    if found:
        history.on_written("segments are removed")
    return found


@observer(PartitionLog, "_add_segment")
def _add_segment(history: History, original: Any, log: PartitionLog, *arguments: Any) -> Any:
    found = original(log, *arguments)
    if len(log.segments) > 1:
        history.on_written("a segment is begun")
        if log.recovery_point < log.log_end_offset:
            history.on_written(BEHIND)
    return found


@observer(LeaderEpochCache, "assign")
def _assign(history: History, original: Any, cache: LeaderEpochCache, *arguments: Any) -> None:
    original(cache, *arguments)
    history.on_written("an epoch begins")


@observer(LogDirectory, "checkpoint_high_watermarks")
def _checkpoint_high_watermarks(history: History, original: Any, directory: LogDirectory) -> None:
    original(directory)
    history.on_written("checkpoints are written without fsync")


@observer(Compaction, "_replace")
def _replace(history: History, original: Any, cleaning: Compaction, *arguments: Any) -> None:
    history.on_written(SWAPPED)  # within the next operations: before it and in its middle
    original(cleaning, *arguments)
