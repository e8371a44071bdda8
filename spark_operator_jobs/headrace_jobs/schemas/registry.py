"""Sources of schemas: files by their ids, or a registry with Confluent's HTTP API.

A task asks for each schema once. An id that the registry does not know is asked for again after
half a minute, because producers register a schema before they use it. A registry that does not
answer is waited for (`outages`); then the batch fails, and the next driver begins with it.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace_jobs import outages
from headrace_jobs.outages import AwayError, Outage
from headrace_jobs.schemas.values import BrokenValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Registry", "RegistryError", "SchemaFiles", "SchemaSource"]

_TIMEOUT_SECONDS = 10.0
_UNKNOWN_KEPT_SECONDS = 30.0
_NOT_FOUND = 404
#: Of what a client did wrong; these two are for now.
_REFUSALS = frozenset(range(400, 500)) - {408, 429}


class RegistryError(Exception):
    """The registry does not answer; the record is not at fault."""


class SchemaSource(Protocol):
    """Schemas by id. It is pickled for the tasks."""

    def read(self, schema_id: int, *, serialized: bool = False) -> bytes:
        """Return a schema: Avro's JSON, or a serialized `FileDescriptorProto`.

        Raises `BrokenValueError` for an unknown id, and `RegistryError`.
        """

    def referenced(self, schema_id: int, *, serialized: bool = False) -> list[tuple[str, bytes]]:
        """Return the schemas that it refers to, by name, each after those that it refers to.

        Raises what `read` raises.
        """


@dataclass(frozen=True)
class SchemaFiles:
    """Files by id: `.avsc`, or a descriptor set of `protoc --descriptor_set_out`."""

    paths: Mapping[int, str]

    def read(self, schema_id: int, *, serialized: bool = False) -> bytes:
        """Return the file. Raises `BrokenValueError` if there is none for the id."""
        del serialized  # a file has one form
        if schema_id not in self.paths:
            raise BrokenValueError(f"schema {schema_id} is not known")
        return Path(self.paths[schema_id]).read_bytes()

    def referenced(self, schema_id: int, *, serialized: bool = False) -> list[tuple[str, bytes]]:
        """Return none: a file has everything (`protoc --include_imports`)."""
        del schema_id, serialized
        return []


@dataclass(frozen=True)
class Registry:
    """A registry at a URL, which may contain user and password for basic authentication."""

    url: str
    #: By path; a schema never changes.
    _known: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    _unknown: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def read(self, schema_id: int, *, serialized: bool = False) -> bytes:
        """Ask for a schema. Raises `BrokenValueError` for an unknown id, and `RegistryError`."""
        schema: str = self._document(schema_id, serialized=serialized)["schema"]
        if not serialized:
            return schema.encode()
        try:
            return base64.b64decode(schema, validate=True)
        except ValueError as error:
            raise BrokenValueError(f"schema {schema_id} is no descriptor: {error}") from error

    def referenced(self, schema_id: int, *, serialized: bool = False) -> list[tuple[str, bytes]]:
        """Ask for the schemas that it refers to. Raises what `read` raises."""
        found: dict[str, bytes] = {}
        self._collect(schema_id, found, set(), serialized=serialized)
        return list(found.items())

    def _collect(
        self, schema_id: int, found: dict[str, bytes], seen: set[int], *, serialized: bool
    ) -> None:
        seen.add(schema_id)
        document = self._document(schema_id, serialized=serialized)
        for reference in document.get("references") or []:
            try:
                name, subject = str(reference["name"]), str(reference["subject"])
                version = int(reference["version"])
            except (KeyError, TypeError, ValueError) as error:
                raise RegistryError(f"schema {schema_id} has the reference {reference}") from error
            other = self._id_of(schema_id, subject, version)
            if other not in seen:
                self._collect(other, found, seen, serialized=serialized)
            if name not in found:
                found[name] = self.read(other, serialized=serialized)

    def _id_of(self, schema_id: int, subject: str, version: int) -> int:
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"
        text = self._known.get(path) or self._get(path)
        if text is None:
            self._unknown[schema_id] = time.monotonic()
            raise BrokenValueError(
                f"schema {schema_id} refers to {subject}, version {version}, which is not in the"
                " registry"
            )
        try:
            other = int(json.loads(text)["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"the registry's answer to {path} has no id") from error
        self._known[path] = text
        return other

    def _document(self, schema_id: int, *, serialized: bool) -> dict[str, Any]:
        if time.monotonic() - self._unknown.get(schema_id, -_UNKNOWN_KEPT_SECONDS) < (
            _UNKNOWN_KEPT_SECONDS
        ):
            raise BrokenValueError(f"schema {schema_id} is not in the registry")
        path = f"/schemas/ids/{schema_id}{'?format=serialized' if serialized else ''}"
        text = self._known.get(path) or self._get(path)
        if text is None:
            self._unknown[schema_id] = time.monotonic()
            raise BrokenValueError(f"schema {schema_id} is not in the registry")
        try:
            document: dict[str, Any] = json.loads(text)
            if not isinstance(document["schema"], str):
                raise TypeError(document)
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryError(f"the registry's answer to {path} has no schema") from error
        self._known[path] = text
        return document

    def _get(self, path: str) -> bytes | None:
        request = self._request(path)
        outage = Outage("the schema registry", outages.OUTAGE_SECONDS_MAX)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - see _request
                    content: bytes = answer.read()
                    return content
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == _NOT_FOUND:
                    return None
                if error.code in _REFUSALS:
                    raise RegistryError(f"the registry refuses {path}: {error}") from error
                cause: Exception = error
            except (OSError, http.client.HTTPException) as error:
                # No answer, or none of HTTP.
                cause = error
            try:
                outage.wait(cause)
            except AwayError as error:
                raise RegistryError(f"the registry does not answer {path}: {error}") from cause

    def _request(self, path: str) -> urllib.request.Request:
        scheme, _, rest = self.url.rstrip("/").partition("://")
        if scheme not in ("http", "https"):
            raise RegistryError("the registry's URL must be http(s)")
        credentials, _, host = rest.rpartition("@")
        request = urllib.request.Request(f"{scheme}://{host}{path}")  # noqa: S310 - the scheme is checked above
        if credentials:
            token = base64.b64encode(urllib.parse.unquote_to_bytes(credentials)).decode()
            request.add_header("Authorization", f"Basic {token}")
        return request
