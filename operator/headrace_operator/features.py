"""The levels of a cluster's features, read from and set on the brokers (KIP-584).

Blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


__all__ = ["observe_features", "observe_levels", "set_feature_levels"]

UPGRADE, SAFE_DOWNGRADE = 1, 2
TIMEOUT_MS = 10_000


def observe_features(admin: Any) -> dict[str, int]:
    """Return the finalized levels. `admin`: a `kafka.KafkaAdminClient`. Raises KafkaError."""
    return {
        name: feature["finalized"][1]
        for name, feature in sorted(admin.describe_features().items())
        if "finalized" in feature
    }


def observe_levels(admin: Any, brokers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the finalized levels, and each broker's supported ones. Raises KafkaError."""
    features = observe_features(admin)
    alive = [each["broker_id"] for each in brokers if not each.get("is_fenced", False)]
    supported = _supported_features(admin, alive)
    return {"features": features, "supported_features": supported}


def _supported_features(
    admin: Any, node_ids: Iterable[int]
) -> dict[int, dict[str, tuple[int, int]]]:
    """Return the supported levels of each broker that answers."""
    from kafka.errors import KafkaError
    from kafka.protocol.metadata import ApiVersionsRequest

    request = ApiVersionsRequest(
        client_software_name="headrace-operator", client_software_version="1", min_version=3
    )
    manager = admin._manager  # noqa: SLF001 - its own call asks any broker
    found = {}
    for node_id in node_ids:
        try:
            answer = manager.run(manager.send, request, node_id)
        except KafkaError:
            # It may have stopped at this moment; the others answer.
            continue
        found[node_id] = {
            each.name: (each.min_version, each.max_version)
            for each in answer.supported_features or ()
        }
    return found


def set_feature_levels(admin: Any, levels: Mapping[str, tuple[int, int]]) -> tuple[int, str | None]:
    """Set levels (before and after, by name), all or none.

    Returns the brokers' error code, 0 for success, and their message.
    """
    from kafka.protocol.admin import UpdateFeaturesRequest

    request = UpdateFeaturesRequest(
        timeout_ms=TIMEOUT_MS,
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name,
                max_version_level=after,
                allow_downgrade=after < before,
                # Never request a downgrade that would lose metadata.
                upgrade_type=SAFE_DOWNGRADE if after < before else UPGRADE,
            )
            for name, (before, after) in sorted(levels.items())
        ],
        validate_only=False,
    )

    async def send() -> Any:
        # The client's own call drops the brokers' message.
        return await admin._send_request_to_controller(request, get_errors_fn=lambda _: [])  # noqa: SLF001

    answer = admin._manager.run(send)  # noqa: SLF001
    return answer.error_code, answer.error_message
