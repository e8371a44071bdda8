"""Writes documents to an index by bulk requests, from the tasks that have the rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_jobs.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import Column, DataFrame

__all__ = [
    "BulkError",
    "Documents",
    "as_documents",
    "document_id",
    "index_rows",
    "unfit_version",
]

_ROWS_A_REQUEST = 2_000
# A server takes requests of 100 MB at most (`http.max_content_length`).
_BYTES_A_REQUEST = 8 * 1024 * 1024
_CONFLICT = 409
# The maximum size of a document's id; a longer one is replaced by its hash.
_ID_BYTES_MAX = 512
# Of rows that have none: older than any that has one.
_NO_VERSION = 0


class BulkError(Exception):
    """Documents were refused; the message has the first reason."""


@dataclass(frozen=True, kw_only=True)
class Documents:
    """How rows become documents. `version` and `deleted` are columns, if set.

    A late request never recreates an index that is written through an alias: a server creates a
    missing index for a document automatically, but not an alias.
    """

    index: str
    is_alias: bool
    key: tuple[str, ...]
    version: str | None
    deleted: str | None
    #: How long a server that is away, or a document that is refused for now, is waited for.
    outage_seconds_max: float
    is_correction: bool = False


def index_rows(frame: DataFrame, hosts: Sequence[str], what: Documents, version: int) -> int:
    """Index a frame's rows; return how many were older than what the index has.

    All are durable on return. `version` applies to rows that have none of their own.
    """
    task = _BulkTask(
        hosts=tuple(hosts),
        index=what.index,
        is_alias=what.is_alias,
        has_versions=what.version is not None,
        is_correction=what.is_correction,
        outage_seconds_max=what.outage_seconds_max,
    )
    documents = as_documents(frame, what, version)
    done = documents.mapInArrow(task.run, "older bigint").collect()
    return sum(int(row.older) for row in done)


def as_documents(frame: DataFrame, what: Documents, version: int) -> DataFrame:
    """Return `id, body, version, deleted` of rows; the body is JSON (`as_json`)."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    from headrace_jobs.transforms.json_text import as_json

    fields = [name for name in frame.columns if name != what.deleted]
    return frame.select(
        document_id(what.key).alias("id"),
        as_json(F.struct(*(F.col(f"`{name}`") for name in fields))).alias("body"),
        _version(frame, what.version, version).alias("version"),
        (F.col(what.deleted) if what.deleted else F.lit(False)).alias("deleted"),  # noqa: FBT003 - Spark's API
    )


def document_id(key: Sequence[str]) -> Column:
    """Return the key as text: a single column's value, or a JSON array of several.

    Of a single column null and an empty text, which are no ids, are such an array, too; so is what
    begins as one.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as above

    parts = [F.col(f"`{name}`").cast("string") for name in key]
    text = F.to_json(F.array(*parts))
    if len(parts) == 1:
        is_plain = (parts[0] != "") & ~F.startswith(parts[0], F.lit("["))
        text = F.when(is_plain, parts[0]).otherwise(text)
    return F.when(F.octet_length(text) <= _ID_BYTES_MAX, text).otherwise(F.sha2(text, 256))


def _version(frame: DataFrame, column: str | None, version: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as above

    if column is None:
        return F.lit(version).cast("bigint")
    own = F.col(f"`{column}`")
    is_time = dict(frame.dtypes)[column].startswith("timestamp")
    return F.coalesce(F.unix_millis(own) if is_time else own.cast("bigint"), F.lit(_NO_VERSION))


def unfit_version(frame: DataFrame, column: str | None) -> list[Column]:
    """Return a reason for versions that the server does not take, null for the others."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    if column is None:
        return []
    is_negative = _version(frame, column, _NO_VERSION) < _NO_VERSION
    return [F.when(is_negative, F.lit(f"{column} is no version: it is below 0, or before 1970"))]


def _requests(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one request after the other; a document may be larger than a request."""
    first, size = 0, 0
    for index, row in enumerate(rows):
        added = len(row["body"])
        if index - first == _ROWS_A_REQUEST or (size and size + added > _BYTES_A_REQUEST):
            yield rows[first:index]
            first, size = index, 0
        size += added
    if rows:
        yield rows[first:]


@dataclass(frozen=True, kw_only=True)
class _BulkTask:
    """What a task does with its partition. It is pickled to executors.

    Without versions all rows of a batch have the same one, and the last row of a partition wins.
    """

    hosts: tuple[str, ...]
    index: str
    is_alias: bool
    has_versions: bool
    is_correction: bool
    outage_seconds_max: float

    def run(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Send the documents; yield how many were older than what the index has."""
        import pyarrow as pa

        from headrace_jobs.sinks.search_marker import search_client

        count = 0
        client = search_client(self.hosts, self.outage_seconds_max)
        sent: set[str] = set()
        doubtful: dict[str, dict[str, Any]] = {}
        for batch in batches:
            rows = batch.to_pylist()
            if not self.has_versions:
                rows = list({row["id"]: row for row in rows}.values())
            for request in _requests(rows):
                older = self._send(client, request, sent)
                count += len(older)
                if not self.has_versions:
                    for row in request:
                        doubtful.pop(row["id"], None)
                    doubtful |= {row["id"]: row for row in older}
            if not self.has_versions:
                sent.update(row["id"] for row in rows)
        if doubtful and not self.is_correction:
            self._refuse_unordered(client, list(doubtful.values()))
        client.close()
        yield pa.RecordBatch.from_pydict({"older": [count]})

    def _send(
        self, client: Any, rows: list[dict[str, Any]], sent: AbstractSet[str]
    ) -> list[dict[str, Any]]:
        """Send rows until each is accepted, or exists in this version or a later one.

        `sent` are ids that this task has written. Returns the rows that the index did not take.
        Raises `BulkError`, `AwayError`.
        """
        from headrace_jobs.sinks.search_marker import is_for_now, servers_name

        outage = Outage(servers_name(self.hosts), self.outage_seconds_max)
        older: list[dict[str, Any]] = []
        parameters = {"require_alias": "true"} if self.is_alias else {}
        while True:
            lines = [line for row in rows for line in self._lines(row, is_sent=row["id"] in sent)]
            answer = client.bulk(body="\n".join(lines) + "\n", params=parameters)
            if not answer["errors"]:
                return older
            results = [next(iter(item.values())) for item in answer["items"]]
            refused = [
                result
                for result in results
                if "error" in result
                and result["status"] != _CONFLICT
                and not is_for_now(result["status"])
            ]
            if refused:
                reason = json.dumps(refused[0]["error"])[:500]
                raise BulkError(f"{len(refused)} documents were refused, the first: {reason}")
            pairs = list(zip(rows, results, strict=True))
            older += [row for row, result in pairs if result["status"] == _CONFLICT]
            # The server is overloaded, its disk is full, or a shard of it is not there yet.
            waiting = [pair for pair in pairs if is_for_now(pair[1]["status"])]
            if not waiting:
                return older
            rows = [row for row, _ in waiting]
            reason = json.dumps(waiting[0][1].get("error"))[:500]
            outage.wait(f"{len(rows)} documents are refused for now, the first: {reason}")

    def _refuse_unordered(self, client: Any, rows: list[dict[str, Any]]) -> None:
        """Raise `BulkError` if another task of this batch wrote other documents of these ids.

        A first attempt of this task wrote the same ones, and a later driver has other versions.
        """
        for first in range(0, len(rows), _ROWS_A_REQUEST):
            part = rows[first : first + _ROWS_A_REQUEST]
            found = client.mget(index=self.index, body={"ids": [row["id"] for row in part]})
            for row, document in zip(part, found["docs"], strict=True):
                if document.get("_version") != row["version"]:
                    continue
                if row["deleted"] or document["_source"] != json.loads(row["body"]):
                    raise BulkError(
                        f"several rows of this batch have the id {row['id']!r}, in several"
                        " partitions: which one is the last? Name a `version`, or aggregate by the"
                        " key"
                    )

    def _lines(self, row: dict[str, Any], *, is_sent: bool) -> tuple[str, ...]:
        # Of rows without a version the last one stays; a correction may have the same one.
        is_equal_newer = self.is_correction or is_sent or not row["version"]
        action = {
            "_index": self.index,
            "_id": row["id"],
            "version": row["version"],
            "version_type": "external_gte" if is_equal_newer else "external",
        }
        if row["deleted"]:
            return (json.dumps({"delete": action}),)
        return (json.dumps({"index": action}), row["body"])
