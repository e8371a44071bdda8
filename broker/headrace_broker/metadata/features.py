"""Decides the cluster's finalized features: what UpdateFeatures changes (KIP-584, KIP-778).

Levels, ranges and messages are Kafka 4.2's (FeatureControlManager). Features that are not listed
here are refused like features that a Kafka node does not know. Without
eligible.leader.replicas.version Kafka drops the ELR; Headrace always keeps it, so that feature is
always finalized and cannot be lowered. All nodes are assumed to run this version: other nodes'
supported levels are not checked yet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from headrace_broker.metadata.brokers.registration import (
    GROUP_VERSION,
    GROUP_VERSION_FEATURE,
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_MIN,
    SHARE_VERSION,
    SHARE_VERSION_FEATURE,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
)
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.records import FeatureLevelRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NodeId

__all__ = [
    "GROUP_VERSION_FEATURE",
    "KRAFT_VERSION_FEATURE",
    "SHARE_VERSION_FEATURE",
    "SUPPORTED_FEATURES",
    "TRANSACTION_VERSION_FEATURE",
    "FeatureUpdate",
    "LevelRange",
    "UpgradeType",
    "decide_update_features",
    "finalized_features",
]

#: The quorum keeps it in separate records (KIP-853), not in FeatureLevelRecords.
KRAFT_VERSION_FEATURE: Final = "kraft.version"

ELR_VERSION_FEATURE: Final = "eligible.leader.replicas.version"
ELR_VERSION: Final = 1

#: Features that may be lowered and raised again at runtime.
_CAN_BE_LOWERED: Final = frozenset(
    {GROUP_VERSION_FEATURE, SHARE_VERSION_FEATURE, TRANSACTION_VERSION_FEATURE}
)

#: The last level that changed the record formats (4.0-IV1): below it records would be lost.
_METADATA_CHANGED: Final = 23


class LevelRange(NamedTuple):
    """The levels of a feature that this node supports."""

    min: int
    max: int

    def __str__(self) -> str:
        """Return the range in Kafka's format."""
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


SUPPORTED_FEATURES: Final[Mapping[str, LevelRange]] = {
    METADATA_VERSION_FEATURE: LevelRange(METADATA_VERSION_MIN, METADATA_VERSION),
    KRAFT_VERSION_FEATURE: LevelRange(0, 1),
    ELR_VERSION_FEATURE: LevelRange(0, ELR_VERSION),
    GROUP_VERSION_FEATURE: LevelRange(0, GROUP_VERSION),
    SHARE_VERSION_FEATURE: LevelRange(0, SHARE_VERSION),
    TRANSACTION_VERSION_FEATURE: LevelRange(0, TRANSACTION_VERSION),
}


class UpgradeType(IntEnum):
    """What the caller allows, with the codes of FeatureUpdate.UpgradeType."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


_UPGRADE_TYPES: Final = frozenset(UpgradeType)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """The wanted level of a feature; `upgrade_type` may be an unknown code."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def finalized_features(image: MetadataImage, kraft_version: int) -> dict[str, int]:
    """Return the cluster's finalized levels, by name; `kraft_version` is the quorum's.

    A feature at level 0 is not finalized, and is left out.
    """
    levels = {ELR_VERSION_FEATURE: ELR_VERSION, **image.features}
    if kraft_version:
        levels[KRAFT_VERSION_FEATURE] = kraft_version
    return levels


def decide_update_features(
    image: MetadataImage,
    updates: Sequence[FeatureUpdate],
    *,
    node_id: NodeId,
    kraft_version: int,
    validate_only: bool,
) -> MetadataDecision[None]:
    """Decide all updates or none. Raises ApiError(INVALID_UPDATE_VERSION) with Kafka's messages."""
    current = finalized_features(image, kraft_version)
    records = []
    for update in updates:
        level = current.get(update.name, 0)
        _check(update, level, node_id)
        if update.name == KRAFT_VERSION_FEATURE:
            continue
        if update.name == METADATA_VERSION_FEATURE:
            _check_metadata_version(update, level)
        records.append(FeatureLevelRecord(name=update.name, feature_level=update.level))
    return MetadataDecision(records=[] if validate_only else records, response=None)


def _check(update: FeatureUpdate, current: int, node_id: NodeId) -> None:
    """Raise ApiError unless the update is possible at all."""
    if update.upgrade_type not in _UPGRADE_TYPES:
        raise _refused(update, "The controller does not support the given upgrade type.")
    if update.level < 0:
        raise _refused(update, "A feature version cannot be less than 0.")
    supported = SUPPORTED_FEATURES.get(update.name)
    if supported is None:
        raise _refused(update, f"Local controller {node_id} does not support this feature.")
    if not supported.min <= update.level <= supported.max:
        raise _refused(update, f"Local controller {node_id} only supports versions {supported}")
    is_upgrade = update.upgrade_type == UpgradeType.UPGRADE
    if update.level < current and is_upgrade:
        raise _refused(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        )
    if update.level > current and not is_upgrade:
        raise _refused(update, "Can't downgrade to a newer version.")
    if update.name == METADATA_VERSION_FEATURE:
        return
    if update.level < current and update.name not in _CAN_BE_LOWERED:
        raise _refused(update, "Can't downgrade the version of this feature.")
    if update.level > current and update.name == KRAFT_VERSION_FEATURE:
        raise _refused(
            update,
            "Start the controllers again with headrace.kraft.version=1: the next leader writes the"
            " voters into the log.",
        )


def _check_metadata_version(update: FeatureUpdate, current: int) -> None:
    if update.level >= min(current, _METADATA_CHANGED):
        return
    if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE:
        reason = "Unsafe metadata downgrade is not supported in this version."
    else:
        reason = (
            "Refusing to perform the requested downgrade because it might delete metadata"
            " information."
        )
    raise ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Unsupported metadata.version downgrade from {current} to {update.level}. {reason}",
    )


def _refused(update: FeatureUpdate, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name}. {reason}",
    )
