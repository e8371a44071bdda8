"""What a handler knows about a request besides its body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RequestContext:
    """The circumstances of one request. Created for each request, so it stays small."""

    api_version: int
    correlation_id: int
    client_id: str
    client_address: str
    listener: str
    connection_id: int
