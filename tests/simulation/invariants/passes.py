"""Moves between directories, compaction's passes and metadata snapshots: the rules once more.

Each is a work of several steps, beside which its log goes on: what was true when it began may be so
no more when it ends.
"""

import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace_broker.log import cleaner, recovery
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.future_log import ARRIVING_NAME, FutureLog
from headrace_broker.log.segments.segment import LOG_SUFFIX
from headrace_broker.log.segments.swap import SWAP_SUFFIX
from headrace_broker.server.quorum.raft_snapshots import RaftSnapshots
from simulation.history import History
from simulation.observing import observer

# ---- moves between directories


@observer(FutureLog, "align")
def _align(history: History, original: Any, future: FutureLog) -> None:
    """A copy has nothing that its log has cut."""
    cut = future._cut
    if cut < future.log.log_end_offset:
        history.reach("a log that is being copied to another directory is truncated")
    original(future)
    if future.log.log_end_offset > max(cut, future.current.log_start_offset):
        history.violate(
            "copy-keeps-what-was-cut",
            f"{future.key} was cut at {cut}, its copy ends at {future.log.log_end_offset}",
        )


@observer(FutureLog, "prepare")
def _prepare(history: History, original: Any, future: FutureLog) -> Callable[[], None]:
    """The mark of the folder that counts is on disk before that of the one that does not."""
    run = original(future)

    def and_look() -> None:
        run()
        disk, mark = history.disk(), future.log.directory / ARRIVING_NAME
        if disk is not None and mark.exists() and disk.may_change(mark):
            history.violate("not-on-disk", f"{future.key}: {ARRIVING_NAME} is not durable")

    return and_look


# ---- compaction


@observer(recovery, "finish_swaps")
def _finish_swaps(history: History, original: Any, directory: Path) -> list[str]:
    """A compacted segment whose sources may be gone takes their place at the next start."""
    ending = LOG_SUFFIX + SWAP_SUFFIX
    # Looked at as by nobody: the broker's disk does not fail for it.
    found = contextvars.Context().run(lambda: sorted(directory.glob(f"*{ending}")))
    names: list[str] = original(directory)
    for path in found:
        if path.name.removesuffix(SWAP_SUFFIX) not in names or contextvars.Context().run(
            path.exists
        ):
            history.violate("swap-not-finished", f"{directory.name}: {path.name}, now {names}")
    return names


@observer(Compaction, "finish")
def _finish(
    history: History, original: Any, compaction: Compaction, *, is_everywhere: bool = True
) -> bool:
    """A pass ends for the log with which it began, and for the replicas (KIP-534)."""
    truncations = compaction.log.truncations
    is_other = truncations != compaction.truncations
    is_one_behind = compaction.rules.is_everywhere and not is_everywhere
    if is_other:
        history.reach("a truncation overtakes a pass of compaction")
    if is_one_behind:
        history.reach("a replica falls out while its log is compacted")
    is_done: bool = original(compaction, is_everywhere=is_everywhere)
    if is_done and (is_other or is_one_behind):
        history.violate(
            "compacted-another-log",
            f"{compaction.log.directory.name}: {truncations - compaction.truncations} truncations "
            f"ago, all in sync then and now: {compaction.rules.is_everywhere}, {is_everywhere}",
        )
    return is_done


@observer(cleaner, "_clean_marker")
def _clean_marker(history: History, original: Any, batch: Any, header: Any, rules: Any) -> Any:
    """A marker stays as it is while its transaction has batches before it (KAFKA-8351)."""
    is_needed = header.producer_id in rules.open_batches._seen
    kept = original(batch, header, rules)
    if is_needed and kept is not batch:
        history.violate("marker-without-need", f"{header.base_offset} of {header.producer_id}")
    return kept


# ---- metadata snapshots


@observer(RaftSnapshots, "_publish")
def _publish(history: History, original: Any, snapshots: RaftSnapshots, snapshot_id: Any) -> None:
    """A snapshot under its name is whole, whatever happens: logs are deleted for it (KIP-630)."""
    original(snapshots, snapshot_id)
    disk, path = history.disk(), snapshots.path(snapshot_id)
    if disk is not None and disk.may_change(path):
        history.violate("not-on-disk", f"{path.name} is published without fsync")
