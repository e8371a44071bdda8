"""HTTP to the API server: requests, errors, discovery, the fence and request counts.

Owns one session. Knows URLs and verbs; `client` knows what is written.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import aiohttp
import msgspec

from headrace_operator.kubernetes.api.connection import ConnectionSourceError
from headrace_operator.kubernetes.api.rights import Lacking, needed_right

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from headrace_operator.kubernetes.api.connection import Connection
    from headrace_operator.kubernetes.api.rights import Right

__all__ = ["FencedError", "KubernetesError", "Object", "ResourceType", "Transport", "Write"]

REQUEST_TIMEOUT_SECONDS = 15.0
#: The API server is asked to end a write so much earlier: an admission webhook may take 30 s, and
#: what the server then says concerns one object. No answer at all would concern all of them.
ANSWER_MARGIN_SECONDS = 5.0
CONNECTIONS_MAX = 32
#: An overloaded server (429 with Retry-After) did nothing, so the request is repeated.
TRIES_MAX = 4
RETRY_AFTER_SECONDS_MAX = 10.0
_FIRST_ERROR, _UNAUTHORIZED, _NOT_FOUND, _CONFLICT = 400, 401, 404, 409
_FORBIDDEN = 403
_FIRST_SERVER_ERROR = 500
_TOO_MANY_REQUESTS = 429
_TIMED_OUT = 504
#: Server-side apply answers 500 with this text for a field that the kind does not have.
_UNDECLARED = "field not declared in schema"
#: What Go says of a request that was not answered in time.
_DEADLINE = "context deadline exceeded"
#: An expired token, a request that took too long, a write that came second, too many requests.
_LATER = frozenset({401, 408, 409, 429})

Object: TypeAlias = dict[str, Any]


class FencedError(Exception):
    """A write was refused locally because leadership was lost. It was not sent."""


class KubernetesError(Exception):
    """The API server's error, or why it did not answer (`status` 0: the outcome is unknown)."""

    #: When the server wants a retry; None: it did not say.
    retry_after_seconds: float | None = None

    def __init__(self, status: int, reason: str, message: str, request: str = "") -> None:
        """`reason` is metav1.Status' (NotFound, Conflict, Invalid, Forbidden …)."""
        super().__init__(f"{reason} ({status}): {request and f'{request}: '}{message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def is_not_found(self) -> bool:
        """Whether the object, or its kind, does not exist."""
        return self.status == _NOT_FOUND

    @property
    def is_forbidden(self) -> bool:
        """Whether the account may not do this, or admission does not let anybody."""
        return self.status == _FORBIDDEN

    @property
    def is_conflict(self) -> bool:
        """Whether another client changed or created the object first."""
        return self.status == _CONFLICT

    @property
    def is_timeout(self) -> bool:
        """Whether the server gave up: an admission webhook, or its storage, did not answer it.

        A webhook whose own timeout is over first is an internal error.
        """
        is_webhooks = self.status >= _FIRST_SERVER_ERROR and _DEADLINE in self.message
        return self.status == _TIMED_OUT or is_webhooks

    @property
    def is_refusal(self) -> bool:
        """Whether the server refused the request, as opposed to being unable to answer."""
        if _UNDECLARED in self.message:
            return True
        return _FIRST_ERROR <= self.status < _FIRST_SERVER_ERROR and self.status not in _LATER

    @property
    def is_about_object(self) -> bool:
        """Whether only this object is affected: a failing webhook answers 500, too."""
        return self.status >= _FIRST_ERROR and self.status != _UNAUTHORIZED


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """The API path of a kind."""

    api_version: str
    plural: str
    is_namespaced: bool

    def path(self, namespace: str | None, name: str | None = None, *more: str) -> str:
        """Return the URL path of a collection, an object, or a subresource."""
        base = f"/api/{self.api_version}" if "/" not in self.api_version else ""
        parts = [base or f"/apis/{self.api_version}"]
        if self.is_namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, *more) if part]
        return "/".join(parts)


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write that was sent, for metrics."""

    verb: str
    kind: str
    status: int


class Transport:
    """Requests to one API server. Close it, or use it with `async with`."""

    def __init__(
        self,
        connection: Connection,
        *,
        fence: Callable[[], None] = lambda: None,
        on_write: Callable[[Write], None] = lambda _: None,
        on_request: Callable[[Right, int], None] = lambda _right, _status: None,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        """`fence` raises FencedError while nothing may be written; `on_write` gets each write.

        `on_request` gets the right that each request needed, and the status.
        """
        self._on_request = on_request
        self._lacking = Lacking(time.monotonic)
        self._timeout_seconds = timeout_seconds
        self._closing: set[asyncio.Task[None]] = set()
        self.connection = connection
        self._fence = fence
        self._on_write = on_write
        self._session: aiohttp.ClientSession | None = None
        self._types: dict[tuple[str, str], ResourceType] = {}

    async def __aenter__(self) -> Self:
        """See close."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See close."""
        await self.close()

    async def close(self) -> None:
        """Close the session's connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def resource_type(self, api_version: str, kind: str) -> ResourceType:
        """Look up a kind by discovery, once."""
        found = self._types.get((api_version, kind))
        if found is not None:
            return found
        path = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        listed = await self.read(path)
        for each in listed["resources"]:
            if "/" not in each["name"]:
                self._types[api_version, each["kind"]] = ResourceType(
                    api_version=api_version,
                    plural=each["name"],
                    is_namespaced=each["namespaced"],
                )
        found = self._types.get((api_version, kind))
        if found is None:
            raise KubernetesError(_NOT_FOUND, "NotFound", f"{api_version} has no kind {kind}")
        return found

    def forget_type(self, api_version: str, kind: str) -> None:
        """Look up the kind again next time."""
        self._types.pop((api_version, kind), None)

    async def read(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """GET. Raises KubernetesError."""
        return await self._request("GET", path, query=query)

    async def read_bytes(self, path: str, query: Mapping[str, str], *, accept: str) -> bytes:
        """GET with another media type, not decoded. Raises KubernetesError."""
        status, content, _ = await self._send("GET", path, query=query, accept=accept)
        if status >= _FIRST_ERROR:
            _decode(status, content, f"GET {path}")
        return content

    async def write(
        self,
        method: str,
        path: str,
        kind: str,
        *,
        body: Any,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send a write. Raises FencedError before sending, KubernetesError after."""
        status = 200
        seconds = int(self._timeout_seconds - ANSWER_MARGIN_SECONDS)
        asked = {**(query or {}), **({"timeout": f"{seconds}s"} if seconds > 0 else {})}
        try:
            return await self._request(
                method, path, query=asked, body=body, content_type=content_type, check=self._fence
            )
        except KubernetesError as error:
            status = error.status
            raise
        finally:
            if "dryRun" not in (query or {}):
                self._on_write(Write(verb=method, kind=kind, status=status))

    async def open_websocket(
        self, path: str, query: Mapping[str, str], subprotocol: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Upgrade a GET to a WebSocket. Raises KubernetesError if the server refuses."""
        session = self._session or self._open()
        try:
            return await session.ws_connect(
                self.connection.server + path,
                params=query,
                headers=self.connection.headers(),
                proxy=self.connection.proxy_url,
                protocols=(subprotocol,),
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            # Its body, which has the server's message, is not kept.
            raise KubernetesError(
                error.status, f"HTTP{error.status}", error.message, f"GET {path}"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = str(error) or type(error).__name__
            raise KubernetesError(0, "Unreachable", text, f"GET {path}") from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        check: Callable[[], None] = lambda: None,
    ) -> Object:
        """Send a request; retry if the server asks for that, after the time that it names.

        `check` raises if nothing may be sent any longer, for example after such a wait.
        """
        for _ in range(TRIES_MAX - 1):
            check()
            try:
                return await self._request_once(method, path, query, body, content_type)
            except KubernetesError as error:
                # For an eviction that a budget forbids, 429 is the answer: the next pass retries.
                if error.retry_after_seconds is None or path.endswith("/eviction"):
                    raise
                await asyncio.sleep(min(error.retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
        check()
        return await self._request_once(method, path, query, body, content_type)

    async def _request_once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
    ) -> Object:
        status, content, retry_after = await self._send(
            method, path, query=query, body=body, content_type=content_type
        )
        if status == _UNAUTHORIZED and self.connection.forget_token():
            status, content, retry_after = await self._send(
                method, path, query=query, body=body, content_type=content_type
            )
        try:
            return _decode(status, content, f"{method} {path}")
        except KubernetesError as error:
            if status == _TOO_MANY_REQUESTS and retry_after.isdigit():
                error.retry_after_seconds = float(retry_after)
            raise

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, bytes, str]:
        right = needed_right(method, path)
        if method == "GET" and (words := self._lacking.message(right)):
            raise KubernetesError(_FORBIDDEN, "Forbidden", words, f"{method} {path}")
        data = None if body is None else msgspec.json.encode(body)
        session = None
        try:
            session = self._session or self._open()
            headers = [("Content-Type", content_type), ("Accept", accept)]
            async with session.request(
                method,
                self.connection.server + path,
                params=query,
                data=data,
                headers=[*headers, *self.connection.headers()],
                proxy=self.connection.proxy_url,
            ) as response:
                after = response.headers.get("Retry-After", "")
                content = await response.read()
                if right is not None:
                    self._on_request(right, response.status)
                    if method == "GET" and response.status == _FORBIDDEN:
                        self._lacking.note(right, _message_of(content))
                return response.status, content, after
        except (aiohttp.ClientError, TimeoutError, OSError, ConnectionSourceError) as error:
            if isinstance(error, TimeoutError) and session is not None:
                self._abandon(session)
            text = str(error) or type(error).__name__
            raise KubernetesError(0, "Unreachable", text, f"{method} {path}") from error

    def _open(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=self.connection.ssl_context(), limit=CONNECTIONS_MAX
            ),
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
        )
        return self._session

    def _abandon(self, session: aiohttp.ClientSession) -> None:
        """Use new connections from now on: pooled connections go silent together.

        Requests in flight on the old ones may still complete.
        """
        if session is not self._session:
            return
        self._session = None

        async def close() -> None:
            try:
                await asyncio.sleep(self._timeout_seconds)
            finally:
                await session.close()

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _decode(status: int, content: bytes, what: str) -> Object:
    try:
        decoded: Object = msgspec.json.decode(content) if content else {}
    except msgspec.DecodeError:
        decoded = {}
    if status < _FIRST_ERROR:
        return decoded
    reason = str(decoded.get("reason") or f"HTTP{status}")
    message = _message_of(content)
    raise KubernetesError(status, reason, message, what)


def _message_of(content: bytes) -> str:
    """Return the server's message; if the body is not a Status, its beginning."""
    try:
        return str(msgspec.json.decode(content)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return content[:500].decode(errors="replace")
