"""UpdateFeatures (API key 57): raise or lower the cluster's finalized features."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class FeatureUpdateKey(Struct):
    """An element of ``UpdateFeaturesRequest.feature_updates``."""

    feature: Annotated[str, String("0+")] = ""
    max_version_level: Annotated[int, Int16("0+")] = 0
    allow_downgrade: Annotated[bool, Bool("0")] = False
    upgrade_type: Annotated[int, Int8("1+")] = 1


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest(Message):
    """Asks to raise or lower the cluster's finalized features."""

    timeout_ms: Annotated[int, Int32("0+")] = 60000
    feature_updates: Annotated[list[FeatureUpdateKey], Array("0+")] = field(default_factory=list)
    validate_only: Annotated[bool, Bool("1+")] = False


@struct
class UpdatableFeatureResult(Struct):
    """An element of ``UpdateFeaturesResponse.results``."""

    feature: Annotated[str, String("0+")] = ""
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse(Message):
    """Answers ``UpdateFeaturesRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    results: Annotated[list[UpdatableFeatureResult], Array("0-1", ignorable=True)] = field(
        default_factory=list
    )
