"""CreateTopics (API key 19): create topics."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class CreatableReplicaAssignment(Struct):
    """An element of ``CreatableTopic.assignments``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    broker_ids: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class CreatableTopicConfig(Struct):
    """An element of ``CreatableTopic.configs``."""

    name: Annotated[str, String("0+")] = ""
    value: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class CreatableTopic(Struct):
    """An element of ``CreateTopicsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    num_partitions: Annotated[int, Int32("0+")] = 0
    replication_factor: Annotated[int, Int16("0+")] = 0
    assignments: Annotated[list[CreatableReplicaAssignment], Array("0+")] = field(
        default_factory=list
    )
    configs: Annotated[list[CreatableTopicConfig], Array("0+")] = field(default_factory=list)


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest(Message):
    """Asks to create topics."""

    topics: Annotated[list[CreatableTopic], Array("0+")] = field(default_factory=list)
    timeout_ms: Annotated[int, Int32("0+")] = 60000
    validate_only: Annotated[bool, Bool("1+")] = False


@struct
class CreatableTopicConfigs(Struct):
    """An element of ``CreatableTopicResult.configs``."""

    name: Annotated[str, String("5+")] = ""
    value: Annotated[str | None, String("5+", nullable="5+")] = ""
    read_only: Annotated[bool, Bool("5+")] = False
    config_source: Annotated[int, Int8("5+", ignorable=True)] = -1
    is_sensitive: Annotated[bool, Bool("5+")] = False


@struct
class CreatableTopicResult(Struct):
    """An element of ``CreateTopicsResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    topic_id: Annotated[UUID, Uuid("7+", ignorable=True)] = ZERO_UUID
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("1+", nullable="0+", ignorable=True)] = ""
    topic_config_error_code: Annotated[int, Int16("5+", tag=0, ignorable=True)] = 0
    num_partitions: Annotated[int, Int32("5+", ignorable=True)] = -1
    replication_factor: Annotated[int, Int16("5+", ignorable=True)] = -1
    configs: Annotated[
        list[CreatableTopicConfigs] | None, Array("5+", nullable="5+", ignorable=True)
    ] = field(default_factory=list)


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse(Message):
    """Answers ``CreateTopicsRequest``."""

    throttle_time_ms: Annotated[int, Int32("2+", ignorable=True)] = 0
    topics: Annotated[list[CreatableTopicResult], Array("0+")] = field(default_factory=list)
