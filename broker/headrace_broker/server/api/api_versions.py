"""ApiVersions: what this broker serves.

Versions: 0 · 1 throttle time · 2 as 1 · 3 flexible, client software, finalized features (KIP-584) ·
4 features of version 0 · 5 cluster and node id (KIP-1242). An unknown version is answered with
error 35 in version 0 (KIP-511): see `server/network/connection.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.features import SUPPORTED_FEATURES, finalized_features
from headrace_broker.protocol.apis import PRODUCE_MIN_VERSION_ADVERTISED, ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from headrace_broker.server.api.services import WithApis, WithMetadata, WithRaft

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_broker.server.network.api_entry import ApiEntry
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.API_VERSIONS

_FEATURES = [
    SupportedFeatureKey(name=name, min_version=levels.min, max_version=levels.max)
    for name, levels in SUPPORTED_FEATURES.items()
]
# Clients before version 4 cannot parse a feature whose lowest level is 0 (KAFKA-17011).
_FEATURES_FROM_1 = [
    replace(feature, min_version=max(feature.min_version, 1)) for feature in _FEATURES
]


class Node(WithApis, WithMetadata, WithRaft, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """List the APIs; a client software name that breaks KIP-511's syntax is INVALID_REQUEST."""
    names = (request.client_software_name, request.client_software_version)
    if context.api_version >= 3 and not all(_is_software_name(name) for name in names):  # noqa: PLR2004 (the version of KIP-511)
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    finalized = finalized_features(broker.metadata, broker.raft.node.voters.kraft_version)
    return ApiVersionsResponse(
        api_keys=served_apis(broker.apis_of(context.listener)),
        supported_features=_FEATURES if context.api_version >= 4 else _FEATURES_FROM_1,  # noqa: PLR2004 (the version of KIP-1022)
        finalized_features_epoch=broker.metadata.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.items()
        ],
    )


def served_apis(apis: Mapping[int, ApiEntry]) -> list[ApiVersion]:
    """Return the table in the form of ApiVersions."""
    return [
        ApiVersion(
            api_key=key,
            min_version=PRODUCE_MIN_VERSION_ADVERTISED
            if key == ApiKey.PRODUCE
            else entry.min_version,
            max_version=entry.max_version,
        )
        for key, entry in sorted(apis.items())
    ]


def unsupported(apis: Mapping[int, ApiEntry]) -> ApiVersionsResponse:
    """Return the response to an unsupported version."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=served_apis(apis))


def _is_software_name(name: str) -> bool:
    return (
        bool(name)
        and all(c.isalnum() or c in ".-" for c in name)
        and name[0].isalnum()
        and name[-1].isalnum()
    )
