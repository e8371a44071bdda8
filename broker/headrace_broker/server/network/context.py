"""What a handler knows of the request beside its body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request's circumstances. Made for each request: it stays small."""

    api_version: int
    correlation_id: int
    client_id: str
    client_address: str
    listener: str
    connection_id: int
