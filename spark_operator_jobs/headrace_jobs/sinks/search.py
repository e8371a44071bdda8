"""Writes results to an OpenSearch index, exactly once by versions: the marker document comes last.

A bulk request is not atomic, but each of its items is. So a document's id is its key, its version
grows with the batch, and the batch's marker (the job's progress) is written when the whole batch is
durable. A half-written batch is written again, over itself; one whose marker exists is skipped. The
marker is written by compare-and-set, so a driver that was replaced cannot move it, and whatever it
still writes has a lower version than its successor's.

Readers see a batch arrive document by document; other sinks offer whole batches. A deletion's
version is forgotten after `index.gc_deletes` (60 s by default): a zombie that writes a deleted
document later than that brings it back, until its key's next change. Set it to longer than a driver
can hang.

A correction of late records is newer than all that the job has marked, and older than the batch
that the job writes next: that one knows more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from headrace_jobs import outages
from headrace_jobs.delivery import Delivery
from headrace_jobs.progress.stored import FencedError, StoredProgress, Verdict, judge
from headrace_jobs.sinks.protocol import SinkError
from headrace_jobs.sinks.search_generations import SearchGenerations, place_of
from headrace_jobs.sinks.search_marker import Marker, MarkerConflictError
from headrace_jobs.sinks.search_task import Documents, index_rows, unfit_version
from headrace_jobs.sinks.unfit import first_reason, no_json_number, no_utf8

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.stored import Batch
    from headrace_jobs.sinks.protocol import Run

__all__ = ["SearchIndex", "SearchWriter"]

#: The environment variable with the servers, if the declaration has none.
HOSTS_VARIABLE = "OPENSEARCH_URL"
# A version consists of the number of the batch and the epoch of its driver: a replay overwrites
# what an earlier driver wrote for the same batch, even if the batch was partitioned otherwise.
_EPOCH_BITS = 24
# The highest of these is set for corrections; a marker has no such epoch.
_CORRECTION = 1 << (_EPOCH_BITS - 1)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class SearchIndex:
    """An index; its mapping is yours or the server's default.

    A missing index is created as an alias of this name, for `NAME_g<generation>`: each generation's
    documents are in a separate index until it is swapped in.

    `hosts`: URLs, with user and password if needed, separated by commas; by default from the
    environment (`OPENSEARCH_URL`). `version`: a column (an integer, or a timestamp as milliseconds)
    whose greater value wins, null as 0. Without it the later batch wins, and of one batch the last
    row of a partition; rows of one key in several partitions have no order and fail the batch.
    `deleted`: a boolean column; true deletes the document.
    """

    index: str
    key: tuple[str, ...]
    hosts: str = ""
    version: str | None = None
    deleted: str | None = None

    def describe(self) -> str:
        """Return `search index NAME`."""
        return f"search index {self.index}"

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:  # noqa: ARG002 - every delivery holds
        """Return why the combination cannot hold."""
        if not self.key:
            return "a document that is written again replaces itself by its id: name the key"
        return None

    def output_generations(self, job: str) -> SearchGenerations:
        """Return the job's generations in this index."""
        return SearchGenerations(hosts=self.servers(), job=job, name=self.index)

    def servers(self) -> tuple[str, ...]:
        """Return the URLs. Raises `SinkError` if none are configured."""
        hosts = self.hosts or os.environ.get(HOSTS_VARIABLE, "")
        if not hosts:
            raise SinkError(f"{self.describe()}: say where, with hosts or {HOSTS_VARIABLE}")
        return tuple(hosts.split(","))

    def open(self, run: Run) -> SearchWriter:
        """Connect and take the next epoch. Raises `SinkError`."""
        return SearchWriter(self, run)


class SearchWriter:
    """An index that is open for one driver."""

    keeps_progress = True
    can_rewind = True

    def __init__(self, sink: SearchIndex, run: Run) -> None:
        self._sink = sink
        self._run = run
        self._hosts = sink.servers()
        self._marker = Marker(self._hosts, run.job, run.generation, sink.index)
        if run.delivery is not Delivery.AT_MOST_ONCE:
            self._marker.require_durable(sink.index)
        self._generations = sink.output_generations(run.corrects or run.job)
        #: The marker of the generation that is corrected.
        self._live = self._generations.live() if run.corrects else None
        self._marker.claim(
            lambda client, epoch: (
                (self._live.index, self._live.alias)
                if self._live is not None
                else place_of(client, sink.index, run, epoch)
            ),
            is_moving=self._live is not None,
        )
        if run.delivery is not Delivery.AT_MOST_ONCE:
            self._marker.require_durable(self._marker.index)
        self._epoch = self._marker.stored.epoch
        self._outage_seconds_max = outages.OUTAGE_SECONDS_MAX
        for marker in (self._marker, self._live):
            if marker is not None:
                marker.wait_for_server(self._outage_seconds_max)

    @property
    def stored(self) -> StoredProgress:
        """The progress in the marker when it was last read."""
        return self._marker.stored

    def describe(self) -> str:
        """Return what it is, for messages."""
        return self._sink.describe()

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch must start. Raises `FencedError`, `SinkError`."""
        from opensearchpy.exceptions import OpenSearchException

        try:
            self._marker.put(progress)
        except MarkerConflictError as error:
            raise FencedError(f"another driver opened {self.describe()}") from error
        except OpenSearchException as error:
            raise SinkError(f"the search server refuses: {error}") from error

    def unfit(self, frame: DataFrame) -> Column | None:
        """Return why the index can never take a row."""
        version = unfit_version(frame, self._sink.version)
        return first_reason([*no_utf8(frame), *no_json_number(frame), *version])

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write a batch. Raises `FencedError`, `GapError`, `SinkError`, `AwayError`."""
        self._marker.load()
        if not self._marker.index:
            raise FencedError(f"generation {self._run.generation} was thrown away")
        if judge(self._marker.stored, self._epoch, batch) is Verdict.SKIP:
            return
        self._marker.require_index()
        if self._live is not None:
            self._correct(frame, self._live)
            self._mark(batch)
            return
        if self._run.delivery is Delivery.AT_MOST_ONCE:
            if self._mark(batch) is Verdict.APPLY:
                self._index(frame, self._marker.sequence << _EPOCH_BITS)
            return
        self._index(frame, (self._marker.sequence + 1) << _EPOCH_BITS)
        self._mark(batch)

    def close(self) -> None:
        """Close the connections."""
        self._marker.close()
        if self._live is not None:
            self._live.close()

    def _correct(self, frame: DataFrame, live: Marker) -> None:
        """Replace documents as the job has them now. Raises `SinkError` after a swap."""
        live.load()
        newer = self._index(frame, live.sequence << _EPOCH_BITS | _CORRECTION)
        if newer:
            _log.warning(
                "the job wrote newer documents than their corrections meanwhile, and these stay",
                sink=self.describe(),
                documents=newer,
            )
        seen = self._generations.live()
        seen.close()
        if seen.index != live.index:
            raise SinkError(
                f"{self.describe()} was swapped meanwhile, from {live.index} to {seen.index}:"
                " replay again, so that readers see the corrections"
            )

    def _index(self, frame: DataFrame, version: int) -> int:
        """Index the rows; return how many were older than what the index has."""
        version |= self._epoch & (_CORRECTION - 1)
        what = Documents(
            index=self._marker.alias or self._marker.index,
            is_alias=bool(self._marker.alias),
            key=self._sink.key,
            version=self._sink.version,
            deleted=self._sink.deleted,
            is_correction=self._live is not None,
            outage_seconds_max=self._outage_seconds_max,
        )
        return index_rows(frame, self._hosts, what, version)

    def _mark(self, batch: Batch) -> Verdict:
        """Write the marker. After a lost answer it is read: its own conflict shows the outcome."""
        while True:
            verdict = judge(self._marker.stored, self._epoch, batch)
            if verdict is Verdict.SKIP:
                return verdict
            try:
                self._marker.put(self._marker.stored.after(batch), advance=True)
            except MarkerConflictError:
                self._marker.load()
            else:
                return Verdict.APPLY
