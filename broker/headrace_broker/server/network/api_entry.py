"""One served API: it decodes requests, calls the handler and encodes responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decoder, encoder
from headrace_broker.protocol.error_codes import error_codes
from headrace_broker.server.network.metrics import ApiMetrics

Handler = Callable[..., Any]
"""(node, context, request) → response, awaitable or None. `node` is the whole node; each handler
names the part of it that it needs as a Protocol."""
Decoder = Callable[[Any, int], tuple[Any, int]]
Encoder = Callable[[Any], list[Any]]

NEVER_FLEXIBLE = 32768
"""Above every version, which is an int16."""


class ApiEntry:
    """One served API. Codecs are compiled at first use and kept per version."""

    __slots__ = (
        "cancel_on_disconnect",
        "decoders",
        "encoders",
        "error_codes",
        "flexible_from",
        "handle",
        "key",
        "max_version",
        "metrics",
        "min_version",
        "name",
        "response",
    )

    def __init__(self, key: ApiKey, handle: Handler, *, cancel_on_disconnect: bool) -> None:
        messages = API_TABLE[key]
        self.key = key
        self.name = key.name.title().replace("_", "")
        self.handle = handle
        self.response = messages.response
        self.min_version = messages.min_version
        self.max_version = messages.max_version
        self.flexible_from = (
            NEVER_FLEXIBLE if messages.flexible_from is None else messages.flexible_from
        )
        self.cancel_on_disconnect = cancel_on_disconnect
        self.decoders: dict[int, Decoder] = _Lazy(
            lambda version: decoder(messages.request, version)
        )
        self.encoders: dict[int, Encoder] = _Lazy(
            lambda version: encoder(messages.response, version)
        )
        self.error_codes: dict[int, Callable[[Any], list[int]]] = _Lazy(
            lambda version: error_codes(messages.response, version)
        )
        self.metrics = ApiMetrics(self.name)

    def encode(self, response: Any, version: int) -> list[Any]:
        """Return an answer's encoded body; its error codes are counted."""
        if codes := self.error_codes[version](response):
            self.metrics.count_errors(codes)
        return self.encoders[version](response)


class _Lazy(dict[int, Any]):
    """Creates missing values: no function call for a version that was seen before."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, version: int) -> Any:
        made = self[version] = self._make(version)
        return made
