"""UpdateFeatures: raises or lowers the cluster's finalized features (KIP-584).

Versions: 0 · 1 upgrade types, dry runs (KIP-778) · 2 no result for each feature (KIP-1022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.features import (
    FeatureUpdate,
    UpgradeType,
    decide_update_features,
)
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace_broker.server.api.services import WithConfig, WithController, WithRaft

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.UPDATE_FEATURES
FORWARDED = True


class Node(WithConfig, WithController, WithRaft, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Update all features or none; a refusal names the first that cannot be updated."""
    updates = [
        FeatureUpdate(
            name=each.feature,
            level=each.max_version_level,
            upgrade_type=(
                UpgradeType.SAFE_DOWNGRADE
                if not context.api_version and each.allow_downgrade
                else each.upgrade_type
            ),
        )
        for each in request.feature_updates
    ]
    try:
        await broker.controller.submit(
            lambda image: decide_update_features(
                image,
                updates,
                node_id=broker.config.node_id,
                kraft_version=broker.raft.node.voters.kraft_version,
                validate_only=request.validate_only,
            )
        )
    except ApiError as error:
        message = (
            "The update failed for all features since the following feature had an error: "
            f"{error.message}"
        )
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=update.name, error_message=None) for update in updates
        ],
    )
