"""The table of APIs: key and version to decoder, handler and encoder.

One handler is one file in `server/api/`. The table is what those files declare: a file that is
there is served, and ApiVersions tells clients just that.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import API_TABLE, CONTROLLER, ApiKey
from headrace_broker.protocol.codec import decoder, encoder
from headrace_broker.server import api as api_package
from headrace_broker.server.forwarding import forwarded
from headrace_broker.server.metrics import ApiMetrics

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.fetch import FetchRequest
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

Handler = Callable[..., Any]  # (broker, context, request) -> response | awaitable | None
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
        self.metrics = ApiMetrics(self.name)


class _Lazy(dict[int, Any]):
    """Makes what is missing: no function call where the version was seen before."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, version: int) -> Any:
        made = self[version] = self._make(version)
        return made


def load_api_table() -> Mapping[int, ApiEntry]:
    """Import every module of `server/api/` and return the table by API key."""
    table: dict[int, ApiEntry] = {}
    for info in pkgutil.iter_modules(api_package.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{api_package.__name__}.{info.name}")
        key = ApiKey(module.API_KEY)
        if key in table:
            raise RuntimeError(f"two modules of server/api serve {key.name}")
        handle = module.handle
        if getattr(module, "FORWARDED", False):
            handle = forwarded(handle)
        table[key] = ApiEntry(
            key, handle, cancel_on_disconnect=getattr(module, "CANCEL_ON_DISCONNECT", False)
        )
    return table


def served_by(table: Mapping[int, ApiEntry], role: str) -> Mapping[int, ApiEntry]:
    """Return the part of the table that the listeners of a role serve.

    What a controller lets fetch is the metadata log, which belongs to the quorum.
    """
    served = {key: entry for key, entry in table.items() if role in API_TABLE[entry.key].listeners}
    if role == CONTROLLER:
        served[ApiKey.FETCH] = ApiEntry(ApiKey.FETCH, _fetch_metadata, cancel_on_disconnect=True)
    return served


def _fetch_metadata(broker: Broker, context: RequestContext, request: FetchRequest) -> Any:
    return broker.quorum.request(request, context.api_version)
