"""Merges several small Parquet files with the same schema into a larger one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_jobs.durable import sync
from headrace_jobs.sinks.files_log import COMPACTED_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["choose_small", "merge", "row_count"]


def _is_small(size: int) -> bool:
    """Whether a file of so many bytes is worth compacting."""
    return size < COMPACTED_BYTES_MAX // 2


def choose_small(root: Path, files: Mapping[str, int], files_min: int) -> list[str]:
    """Return the files to merge; none while fewer than `files_min` are small.

    `files` are paths below the root with their sizes. Only files of the most frequent schema are
    chosen: after a change of columns, the few remaining older files are left alone.
    """
    import pyarrow.parquet as pq

    small = [path for path, size in files.items() if _is_small(size)]
    if len(small) < files_min:
        return []
    alike: dict[bytes, list[str]] = {}
    for path in small:
        schema = pq.read_schema(root / path).serialize().to_pybytes()
        alike.setdefault(schema, []).append(path)
    chosen: list[str] = []
    total = 0
    for path in max(alike.values(), key=len):
        total += files[path]
        if total > COMPACTED_BYTES_MAX:
            break
        chosen.append(path)
    return chosen if len(chosen) > 1 else []


def merge(root: Path, chosen: Sequence[str], name: str) -> int:
    """Write the rows of files of one schema into a new one, durably; returns its bytes."""
    import pyarrow.parquet as pq

    schema = pq.read_schema(root / chosen[0])
    with pq.ParquetWriter(root / name, schema, compression="zstd") as writer:
        for path in chosen:
            for batch in pq.ParquetFile(root / path).iter_batches():
                writer.write_batch(batch)
    sync(root / name)
    sync((root / name).parent)
    return (root / name).stat().st_size


def row_count(path: Path) -> int:
    """Return how many rows a file has."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)
