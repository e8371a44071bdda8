"""The marker document of a job in OpenSearch: its progress, written by compare-and-set.

All markers are in the index `headrace-progress`. A read by id sees the newest write (realtime get);
a write names the sequence number and primary term of the document that it is based on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace_jobs.outages import Outage
from headrace_jobs.progress.stored import StoredProgress, format_progress, parse_progress
from headrace_jobs.sinks.protocol import SinkAwayError, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "MARKERS",
    "Marker",
    "MarkerConflictError",
    "is_for_now",
    "refusal",
    "search_client",
    "servers_name",
]

MARKERS = "headrace-progress"
_TIMEOUT_SECONDS = 30
_RETRIES = 3
_TOO_MANY_REQUESTS = 429
_SERVERS_FAULT = 500


class MarkerConflictError(Exception):
    """The marker changed since it was read: read it again, and decide again."""


def search_client(hosts: Sequence[str], outage_seconds_max: float = 0.0) -> Any:
    """Return a client. Raises `SinkError` without the library.

    A server that is away or refuses for now is asked again for `outage_seconds_max`, in growing
    intervals; then the client raises `AwayError`.
    """
    try:
        from opensearchpy import OpenSearch, Transport
        from opensearchpy.exceptions import TransportError
    except ImportError as error:
        raise SinkError(
            "a search index needs opensearch-py: pip install 'headrace[sinks]'"
        ) from error

    class PatientTransport(Transport):
        """Asks again. It may repeat any request: writes have versions."""

        def perform_request(self, *arguments: Any, **named: Any) -> Any:
            outage = Outage(servers_name(hosts), outage_seconds_max)
            while True:
                try:
                    return super().perform_request(*arguments, **named)
                except TransportError as error:
                    if outage_seconds_max <= 0 or not is_for_now(error.status_code):
                        raise
                    outage.wait(error)

    return OpenSearch(
        list(hosts),
        transport_class=PatientTransport,
        timeout=_TIMEOUT_SECONDS,
        # Each host once, and then we wait.
        max_retries=len(hosts) - 1 if outage_seconds_max > 0 else _RETRIES,
        retry_on_timeout=True,
    )


def servers_name(hosts: Sequence[str]) -> str:
    """Return the servers for messages, without user and password."""
    names = [host.replace(f"{urlsplit(host).netloc.rpartition('@')[0]}@", "") for host in hosts]
    return f"the search server {' or '.join(names)}"


def is_for_now(status: int | str) -> bool:
    """Whether a request or a document may be taken later.

    The client has a text where there was no answer. A document's fault has another status below
    500; what is behind that is the server's own, as 503 of a shard that is not recovered yet.
    """
    return isinstance(status, str) or status == _TOO_MANY_REQUESTS or status >= _SERVERS_FAULT


def refusal(error: Any, what: str) -> SinkError:
    """Return the client's exception as ours: `SinkAwayError` where it is one for now."""
    from opensearchpy.exceptions import TransportError

    is_away = isinstance(error, TransportError) and is_for_now(error.status_code)
    return (SinkAwayError if is_away else SinkError)(f"{what}: {error}")


class Marker:
    """One marker document: of a job's generation, and the index that readers use."""

    def __init__(self, hosts: Sequence[str], job: str, generation: int, name: str) -> None:
        self._hosts = tuple(hosts)
        self._client = search_client(hosts)
        self._identity = f"{job}/{generation}/{name}"
        self._name = name
        self._place: dict[str, int] = {}
        self.stored = StoredProgress(epoch=0)
        #: The number of marked batches: the higher part of documents' versions.
        self.sequence = 0
        #: The index with the generation's documents; "" before its first epoch.
        self.index = ""
        #: The alias through which drivers write; "" for an index created by the user.
        self.alias = ""

    def wait_for_server(self, outage_seconds_max: float) -> None:
        """Ask a server that is away again, from now on; then raise `AwayError`."""
        self._client.close()
        self._client = search_client(self._hosts, outage_seconds_max)

    def require_durable(self, index: str) -> None:
        """Raise `SinkError` if the index acknowledges a write before it is on disk."""
        from opensearchpy.exceptions import NotFoundError, OpenSearchException

        try:
            settings = self._client.indices.get_settings(
                index=index, name="index.translog.durability", flat_settings=True
            )
        except NotFoundError:
            return
        except OpenSearchException as error:
            raise refusal(error, "no search server lets us in") from error
        if any(
            each["settings"].get("index.translog.durability") == "async"
            for each in settings.values()
        ):
            raise SinkError(
                f"index {index} has index.translog.durability=async: a crash of the server loses"
                " documents whose batch is marked as done. Set it to request, or choose"
                " at-most-once"
            )

    def require_index(self) -> None:
        """Raise `SinkError` if the index is gone: the server would make another, empty one."""
        if not self._client.indices.exists(index=self.index):
            raise SinkError(
                f"index {self.index} is gone, and its marker says that batch {self.stored.batch_id}"
                " is in it: restore it from a snapshot, or begin the next --generation, which reads"
                " the past again"
            )

    def claim(
        self, place: Callable[[Any, int], tuple[str, str]], *, is_moving: bool = False
    ) -> None:
        """Take the next epoch. Raises `SinkError`.

        `place` gets a client and the epoch, and returns index and alias for a new generation; with
        `is_moving` it is asked each time.
        """
        from opensearchpy.exceptions import OpenSearchException

        try:
            while True:
                self.load()
                if is_moving or not self.index:
                    self.index, self.alias = place(self._client, self.stored.epoch + 1)
                stored = self.stored
                try:
                    self.put(replace(stored, epoch=stored.epoch + 1))
                except MarkerConflictError:
                    continue
                return
        except OpenSearchException as error:
            raise refusal(error, "no search server lets us in") from error

    def load(self) -> None:
        """Read the marker."""
        from opensearchpy.exceptions import NotFoundError

        try:
            found = self._client.get(index=MARKERS, id=self._identity, realtime=True)
        except NotFoundError:
            self.stored, self.sequence, self._place = StoredProgress(epoch=0), 0, {}
            self.index = self.alias = ""
            return
        self.stored = parse_progress(found["_source"]["progress"])
        self.sequence = int(found["_source"]["sequence"])
        # Markers from before generations had separate indices do not name the index.
        self.index = found["_source"].get("index", self._name)
        self.alias = found["_source"].get("alias", "")
        self._place = {
            "if_seq_no": found["_seq_no"],
            "if_primary_term": found["_primary_term"],
        }

    def discard(self) -> None:
        """Fence the generation's driver, and drop everything but the epoch.

        Raises `MarkerConflictError`.
        """
        self.index = self.alias = ""
        self.put(StoredProgress(epoch=self.stored.epoch + 1))

    def put(self, progress: StoredProgress, *, advance: bool = False) -> None:
        """Write the marker, based on the last read state. Raises `MarkerConflictError`."""
        from opensearchpy.exceptions import ConflictError

        sequence = self.sequence + advance
        body = {
            "index": self.index,
            "alias": self.alias,
            "sequence": sequence,
            # As text: only Headrace reads it, and it must not grow the mapping.
            "progress": format_progress(progress),
            "offsets": json.dumps(
                {f"{at.topic}/{at.partition}": end for at, end in progress.offsets.items()}
            ),
        }
        condition: dict[str, Any] = dict(self._place) or {"op_type": "create"}
        try:
            done = self._client.index(index=MARKERS, id=self._identity, body=body, params=condition)
        except ConflictError as error:
            raise MarkerConflictError(self._identity) from error
        self.stored, self.sequence = progress, sequence
        self._place = {
            "if_seq_no": done["_seq_no"],
            "if_primary_term": done["_primary_term"],
        }

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
