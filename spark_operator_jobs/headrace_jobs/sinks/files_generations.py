"""Generations of a job's table of files: side by side in one log, compared, swapped in one commit.

Readers see the files of one generation, the live one. The log also has the files of other
generations, hidden from readers. A swap is a commit like any other, and changes what both
generations' drivers compare before they commit: each reads the log again, finds its new folder, and
continues.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace_jobs.sinks.files_delta import DeltaLog
from headrace_jobs.sinks.files_log import ConflictError
from headrace_jobs.sinks.files_plain import PlainLog
from headrace_jobs.sinks.generations import (
    Difference,
    OutputGeneration,
    columns_of_one,
    generation_of,
    mixing,
    refuse_others,
    refuse_unwritten,
    row_digest,
    seen_by_readers,
)
from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_jobs.sinks.files_log import FileLog, Held
    from headrace_jobs.sinks.protocol import Run

__all__ = ["FileGenerations", "open_log", "refuse_mixing"]

_ATTEMPTS = 20
_T = TypeVar("_T")


def open_log(form: str, root: Path, job: str, generation: int) -> FileLog:
    """Open a table's log as one (job, generation) sees it. Raises `SinkError`."""
    return (DeltaLog if form == "delta" else PlainLog)(root, job, generation)


def refuse_mixing(log: FileLog, table: str, run: Run) -> None:
    """Refuse a new generation that would write among another one's rows. Raises `SinkError`."""
    live = _live(log.generations())
    if live is not None and live != run.generation and not run.is_shadow:
        raise mixing(table, "rows", live, run.generation)


def _live(found: dict[int, Held]) -> int | None:
    """Return the generation that readers see. Raises `SinkError` if there are several."""
    live = [
        number for number, each in found.items() if each.shadow is None and not each.is_discarded
    ]
    if len(live) > 1:
        raise SinkError(f"generations {', '.join(map(str, live))} are mixed in one table")
    return live[0] if live else None


@dataclass(frozen=True, kw_only=True)
class FileGenerations:
    """The generations of one job in one table of files."""

    path: str
    form: str
    job: str

    def all(self) -> list[OutputGeneration]:
        """Return every generation that has progress. Raises `SinkError`."""
        found = self._repeated(lambda: self._open(1).generations())
        return [
            OutputGeneration(
                generation=number,
                output=self.path if each.shadow is None else f"{self.path} (beside)",
                is_live=each.shadow is None,
                batch_id=each.progress.batch_id,
                offsets=each.progress.offsets,
                delivery="",
            )
            for number, each in found.items()
            if not each.is_discarded
        ]

    def diff(self, old: int, new: int, *, examples_max: int = 10) -> Difference:
        """Compare two generations: duplicate rows count. Raises `SinkError`."""
        files = self._repeated(lambda: [self._files(number) for number in (old, new)])
        columns = [self._columns(each) for each in files]
        columns_old, columns_new = columns_of_one(*columns)
        counts: Counter[bytes] = Counter()
        totals = [0, 0]
        for side, sign in enumerate((1, -1)):
            for row in self._rows(files[side], columns[side]):
                totals[side] += 1
                digest = row_digest(row)
                counts[digest] += sign
                if not counts[digest]:
                    del counts[digest]
        only_old = sum(count for count in counts.values() if count > 0)
        only_new = -sum(count for count in counts.values() if count < 0)
        examples: list[tuple[str | None, str | None]] = []
        for side, sign in enumerate((1, -1)):
            for row in self._rows(files[side], columns[side]) if counts else ():
                if len(examples) >= examples_max:
                    break
                if counts[digest := row_digest(row)] * sign > 0:
                    counts[digest] -= sign
                    examples.append((row, None) if sign > 0 else (None, row))
        return Difference(
            only_old=only_old,
            only_new=only_new,
            changed=0,
            same=totals[0] - only_old,
            examples=tuple(examples),
            columns_old=columns_old,
            columns_new=columns_new,
        )

    def swap(self, generation: int) -> None:
        """Make a generation the one that readers see. Raises `SinkError`."""

        def swap_once() -> None:
            log = self._open(generation)
            refuse_others(self.path, self.job, log.jobs())
            found = log.generations()
            new = self._of(found, generation)
            if new.shadow is not None:
                refuse_unwritten(self.path, generation, new.progress)
                log.swap(_live(found))

        self._repeated(swap_once)

    def discard(self, generation: int) -> None:
        """Discard a shadow, rows and progress; its driver is fenced. Raises `SinkError`."""

        def discard_once() -> None:
            log = self._open(generation)
            if self._of(log.generations(), generation).shadow is None:
                raise seen_by_readers(self.path, generation)
            log.discard()

        self._repeated(discard_once)

    def _open(self, generation: int) -> FileLog:
        log = open_log(self.form, Path(self.path), self.job, generation)
        log.load()
        return log

    def _files(self, generation: int) -> list[str]:
        log = self._open(generation)
        self._of(log.generations(), generation)
        return sorted(log.files())

    def _of(self, found: dict[int, Held], generation: int) -> Held:
        known = {number: each for number, each in found.items() if not each.is_discarded}
        return generation_of(known, generation, place=self.path, job=self.job)

    def _columns(self, files: list[str]) -> dict[str, None]:
        """Return the columns of files: a former program's may have fewer."""
        import pyarrow.parquet as pq

        schemas = (pq.read_schema(Path(self.path) / path) for path in files)
        return dict.fromkeys(name for schema in schemas for name in schema.names)

    def _rows(self, files: list[str], columns: dict[str, None]) -> Iterator[str]:
        """Yield the rows of files as JSON, their fields in order; what a file has not is null."""
        import pyarrow.parquet as pq

        for path in files:
            for batch in pq.ParquetFile(Path(self.path) / path).iter_batches():
                for row in batch.to_pylist():
                    yield json.dumps(columns | row, sort_keys=True, default=str, ensure_ascii=False)

    def _repeated(self, work: Callable[[], _T]) -> _T:
        """Retry an operation while drivers' commits conflict with it. Raises `SinkError`."""
        for _ in range(_ATTEMPTS):
            with suppress(ConflictError):
                return work()
        raise SinkError(f"{self.path} is busy: drivers were faster {_ATTEMPTS} times")
