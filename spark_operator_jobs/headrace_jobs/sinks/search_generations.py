"""Generations of a job's search index: one index each; readers use an alias.

A swap is one request that changes the alias, which the server applies atomically. Drivers do not
notice: each writes into its own generation's index, which its marker names, never through the
readers' alias.

An index whose own name is the readers' name cannot be swapped: the name is taken until the index is
deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_jobs.progress.stored import StoredProgress, parse_progress
from headrace_jobs.sinks.generations import (
    Difference,
    OutputGeneration,
    columns_of_one,
    refuse_unwritten,
)
from headrace_jobs.sinks.protocol import SinkError
from headrace_jobs.sinks.search_marker import (
    MARKERS,
    Marker,
    MarkerConflictError,
    refusal,
    search_client,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_jobs.sinks.protocol import Run

__all__ = ["SearchGenerations", "place_of"]

# What a shadow's index copies from the live index, besides its mapping.
_SETTINGS = ("number_of_shards", "number_of_replicas", "gc_deletes", "refresh_interval", "analysis")
_PAGE = 1_000
_ATTEMPTS = 20


def place_of(client: Any, name: str, run: Run, epoch: int) -> tuple[str, str]:
    """Return the index for a new generation, which is created, and the alias to write through.

    The alias contains the epoch's number: tasks of earlier drivers use another alias, which is
    gone. Raises `SinkError`.
    """
    live = _behind(client, name)
    own = f"{name}_g{run.generation}"
    alias = f"{own}_e{epoch}"
    if live is None:
        _make(client, own, {"aliases": {alias: {}} | ({} if run.is_shadow else {name: {}})})
        return own, alias
    if not run.is_shadow:
        others = [
            each.generation
            for each in _generations(client, run.job, name)
            if each.output == live and each.generation != run.generation
        ]
        if others:
            raise SinkError(
                f"search index {name} holds the documents of generation {others[0]}: begin"
                f" generation {run.generation} beside them, with --shadow, then compare and swap"
                " (headrace jobs diff, headrace jobs swap)"
            )
        return live, ""
    if live == name:
        raise SinkError(
            f"{name} is an index, and only an alias can be swapped: give generation"
            f" {run.generation} an index of another name, or make {name} an alias of one"
        )
    _make(client, own, _like(client, live) | {"aliases": {alias: {}}})
    return own, alias


def _behind(client: Any, name: str) -> str | None:
    """Return the index behind the readers' name; None if there is none."""
    from opensearchpy.exceptions import NotFoundError

    try:
        found = list(client.indices.get(index=name))
    except NotFoundError:
        return None
    if len(found) > 1:
        raise SinkError(f"alias {name} is of several indices: {', '.join(sorted(found))}")
    return str(found[0])


def _like(client: Any, live: str) -> dict[str, Any]:
    """Return the settings for an index that accepts the same documents as another one."""
    (found,) = client.indices.get(index=live).values()
    index = found["settings"]["index"]
    settings = {name: index[name] for name in _SETTINGS if name in index}
    return {"mappings": found["mappings"], "settings": {"index": settings}}


def _make(client: Any, index: str, body: dict[str, Any]) -> None:
    """Create an index, or use an empty one. Raises `SinkError` if it has documents."""
    from opensearchpy.exceptions import RequestError

    try:
        client.indices.create(index=index, body=body)
    except RequestError as error:
        if error.error != "resource_already_exists_exception":
            raise
        client.indices.refresh(index=index)
        if client.count(index=index)["count"]:
            raise SinkError(
                f"search index {index} has documents that belong to no generation: delete it, or"
                " begin a generation of another number"
            ) from error
        for alias in body.get("aliases", {}):
            client.indices.put_alias(index=index, name=alias)


def _generations(client: Any, job: str, name: str) -> list[OutputGeneration]:
    from opensearchpy.exceptions import NotFoundError

    live = _behind(client, name)
    try:
        client.indices.refresh(index=MARKERS)
        markers = list(_scan(client, MARKERS))
    except NotFoundError:
        return []
    found = []
    for identity, source in markers:
        owner, _, rest = identity.partition("/")
        number, _, output = rest.partition("/")
        index = source.get("index", name)
        if (owner, output) != (job, name) or not index:
            continue
        progress: StoredProgress = parse_progress(source["progress"])
        found.append(
            OutputGeneration(
                generation=int(number),
                output=index,
                is_live=index == live,
                batch_id=progress.batch_id,
                offsets=progress.offsets,
                delivery="",
            )
        )
    return sorted(found, key=lambda each: each.generation)


def _scan(client: Any, index: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every document with its id, from one point in time."""
    from opensearchpy.helpers import scan

    for each in scan(client, index=index, size=_PAGE):
        yield each["_id"], each["_source"]


@dataclass(frozen=True, kw_only=True)
class SearchGenerations:
    """The generations of one job behind one name."""

    hosts: tuple[str, ...]
    job: str
    name: str

    def all(self) -> list[OutputGeneration]:
        """Return every generation. Raises `SinkError`."""
        with self._client() as client:
            return _generations(client, self.job, self.name)

    def live(self) -> Marker:
        """Return the marker of the generation that readers see. Raises `SinkError`."""
        with self._client() as client:
            live = [each for each in _generations(client, self.job, self.name) if each.is_live]
            if not live:
                raise SinkError(f"search index {self.name} has no documents of {self.job}")
            marker = Marker(self.hosts, self.job, live[0].generation, self.name)
            marker.load()
        return marker

    def diff(self, old: int, new: int, *, examples_max: int = 10) -> Difference:
        """Compare two, document by document. Raises `SinkError`."""
        with self._client() as client:
            indices = [self._of(client, number).output for number in (old, new)]
            client.indices.refresh(index=",".join(indices))
            fields: tuple[set[str], set[str]] = (set(), set())
            left = {}
            for identity, body in _scan(client, indices[0]):
                left[identity] = _digest(body)
                fields[0].update(body)
            same, changed, only_new = 0, [], []
            for identity, body in _scan(client, indices[1]):
                fields[1].update(body)
                digest = left.pop(identity, None)
                if digest is None:
                    only_new.append(identity)
                elif digest == _digest(body):
                    same += 1
                else:
                    changed.append(identity)
            shown = [*changed, *left, *only_new][:examples_max]
            was, now = (_documents(client, each, shown) for each in indices)
            columns_old, columns_new = columns_of_one(*fields)
            return Difference(
                only_old=len(left),
                only_new=len(only_new),
                changed=len(changed),
                same=same,
                examples=tuple(zip(was, now, strict=True)),
                columns_old=columns_old,
                columns_new=columns_new,
            )

    def swap(self, generation: int) -> None:
        """Point the name at a generation's index, atomically. Raises `SinkError`."""
        with self._client() as client:
            new = self._of(client, generation)
            index, live = new.output, _behind(client, self.name)
            if index == live:
                return
            refuse_unwritten(self.name, generation, new)
            if live == self.name:
                raise SinkError(f"{self.name} is an index, and only an alias can be swapped")
            actions: list[dict[str, Any]] = [{"add": {"index": index, "alias": self.name}}]
            if live is not None:
                actions.append({"remove": {"index": live, "alias": self.name, "must_exist": True}})
            client.indices.update_aliases(body={"actions": actions})

    def discard(self, generation: int) -> None:
        """Discard a shadow; its driver is fenced. Raises `SinkError`."""
        with self._client() as client:
            doomed = self._of(client, generation)
            if doomed.is_live:
                raise SinkError(
                    f"readers see generation {generation} by {self.name}: swap in another first"
                )
            marker = Marker(self.hosts, self.job, generation, self.name)
            for _ in range(_ATTEMPTS):
                marker.load()
                with contextlib.suppress(MarkerConflictError):
                    marker.discard()
                    break
            else:
                raise SinkError(f"{self.name} is busy")
            marker.close()
            client.indices.delete(index=doomed.output, ignore_unavailable=True)

    def _of(self, client: Any, generation: int) -> OutputGeneration:
        found = {each.generation: each for each in _generations(client, self.job, self.name)}
        if generation not in found:
            known = ", ".join(map(str, found)) or "none"
            raise SinkError(f"{self.name} has no generation {generation} of {self.job} ({known})")
        return found[generation]

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from opensearchpy.exceptions import OpenSearchException

        client = search_client(self.hosts)
        try:
            yield client
        except OpenSearchException as error:
            raise refusal(error, "the search server refuses") from error
        finally:
            client.close()


def _documents(client: Any, index: str, identities: list[str]) -> list[str | None]:
    """Return documents as JSON, in this order; None for missing ones."""
    if not identities:
        return []
    found = client.mget(index=index, body={"ids": identities})["docs"]
    return [_text(each["_source"]) if each.get("found") else None for each in found]


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, ensure_ascii=False)


def _digest(body: dict[str, Any]) -> bytes:
    return hashlib.blake2b(_text(body).encode(), digest_size=16).digest()
