"""The table of APIs: key and version to decoder, handler and encoder.

Each file in `server/api/` is one handler. The table is built from those files: adding a file serves
its API, and ApiVersions reports exactly this table.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol import fast_fetch
from headrace_broker.protocol.apis import API_TABLE, CONTROLLER, ApiKey
from headrace_broker.server import api as api_package
from headrace_broker.server.network.api_entry import ApiEntry
from headrace_broker.server.produce import fast_produce
from headrace_broker.server.quorum.forwarding import forwarded

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.fetch import FetchRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

NOT_HANDLERS = {"dispatch", "left_out", "services"}
"""The modules of `server/api/` that serve no API."""
FAST_VERSIONS = {
    ApiKey.PRODUCE: fast_produce.FAST_VERSIONS,
    ApiKey.FETCH: range(fast_fetch.FAST_VERSION, fast_fetch.FAST_VERSION + 1),
}
"""The versions that the fast codecs read, bounded on both sides."""
QUORUM_FETCH_FROM = 12
"""Earlier versions have no last fetched epoch in a fetch, and no leader in an answer (KIP-595)."""


def load_api_table() -> Mapping[int, ApiEntry]:
    """Import every module of `server/api/` and return the table by API key."""
    table: dict[int, ApiEntry] = {}
    for info in pkgutil.iter_modules(api_package.__path__):
        if info.name in NOT_HANDLERS:
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
    check_fast_versions(table)
    return table


def check_fast_versions(table: Mapping[int, ApiEntry]) -> None:
    """Raise RuntimeError if a fast codec reads versions that are not served, or not flexible.

    Newer versions than a fast codec's go to the general codec until the fast one supports them.
    """
    for key, versions in FAST_VERSIONS.items():
        entry = table[key]
        first, last = versions[0], versions[-1]
        if first < max(entry.min_version, entry.flexible_from) or last > entry.max_version:
            raise RuntimeError(
                f"{entry.name}: the fast codec reads versions {first} to {last}, served are "
                f"{entry.min_version} to {entry.max_version}, flexible from {entry.flexible_from}"
            )


def served_by(table: Mapping[int, ApiEntry], role: str) -> Mapping[int, ApiEntry]:
    """Return the part of the table that the listeners of a role serve.

    Fetch on a controller listener reads the metadata log, which belongs to the quorum.
    """
    served = {key: entry for key, entry in table.items() if role in API_TABLE[entry.key].listeners}
    if role == CONTROLLER:
        fetch = ApiEntry(ApiKey.FETCH, _fetch_metadata, cancel_on_disconnect=True)
        fetch.min_version = QUORUM_FETCH_FROM
        served[ApiKey.FETCH] = fetch
    return served


def left_out_by(role: str, key: int) -> ApiEntry | None:
    """Return the entry that refuses an API which Kafka serves there and we do not, else None."""
    entry = _refusals().get(key)
    return entry if entry is not None and role in API_TABLE[entry.key].listeners else None


@cache
def _refusals() -> Mapping[int, ApiEntry]:
    """Return the table of what is refused: loaded when somebody first asks for an unknown API."""
    module = importlib.import_module(f"{api_package.__name__}.left_out")
    return {
        key: ApiEntry(key, module.refusing(key), cancel_on_disconnect=False)
        for key in module.REFUSALS
    }


def _fetch_metadata(broker: WithRaft, context: RequestContext, request: FetchRequest) -> Any:
    return broker.raft.request(request, context.api_version)
