"""ApiVersions (API key 18): tell which APIs and versions a node serves."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest(Message):
    """Asks to tell which APIs and versions a node serves."""

    client_software_name: Annotated[str, String("3+", ignorable=True)] = ""
    client_software_version: Annotated[str, String("3+", ignorable=True)] = ""


@struct
class ApiVersion(Struct):
    """An element of ``ApiVersionsResponse.api_keys``."""

    api_key: Annotated[int, Int16("0+")] = 0
    min_version: Annotated[int, Int16("0+")] = 0
    max_version: Annotated[int, Int16("0+")] = 0


@struct
class SupportedFeatureKey(Struct):
    """An element of ``ApiVersionsResponse.supported_features``."""

    name: Annotated[str, String("3+")] = ""
    min_version: Annotated[int, Int16("3+")] = 0
    max_version: Annotated[int, Int16("3+")] = 0


@struct
class FinalizedFeatureKey(Struct):
    """An element of ``ApiVersionsResponse.finalized_features``."""

    name: Annotated[str, String("3+")] = ""
    max_version_level: Annotated[int, Int16("3+")] = 0
    min_version_level: Annotated[int, Int16("3+")] = 0


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse(Message):
    """Answers ``ApiVersionsRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    api_keys: Annotated[list[ApiVersion], Array("0+")] = field(default_factory=list)
    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Array("3+", tag=0, ignorable=True)] = (
        field(default_factory=list)
    )
    finalized_features_epoch: Annotated[int, Int64("3+", tag=1, ignorable=True)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Array("3+", tag=2, ignorable=True)] = (
        field(default_factory=list)
    )
    zk_migration_ready: Annotated[bool, Bool("3+", tag=3, ignorable=True)] = False
