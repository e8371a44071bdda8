"""Metadata (API key 3): list brokers, topics and the leaders of their partitions."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
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
class MetadataRequestTopic(Struct):
    """An element of ``MetadataRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
    name: Annotated[str | None, String("0+", nullable="10+")] = ""


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest(Message):
    """Asks to list brokers, topics and the leaders of their partitions."""

    topics: Annotated[list[MetadataRequestTopic] | None, Array("0+", nullable="1+")] = field(
        default_factory=list
    )
    allow_auto_topic_creation: Annotated[bool, Bool("4+")] = True
    include_cluster_authorized_operations: Annotated[bool, Bool("8-10")] = False
    include_topic_authorized_operations: Annotated[bool, Bool("8+")] = False


@struct
class MetadataResponseBroker(Struct):
    """An element of ``MetadataResponse.brokers``."""

    node_id: Annotated[int, Int32("0+")] = 0
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, Int32("0+")] = 0
    rack: Annotated[str | None, String("1+", nullable="1+", ignorable=True)] = None


@struct
class MetadataResponsePartition(Struct):
    """An element of ``MetadataResponseTopic.partitions``."""

    error_code: Annotated[int, Int16("0+")] = 0
    partition_index: Annotated[int, Int32("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("7+", ignorable=True)] = -1
    replica_nodes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    isr_nodes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    offline_replicas: Annotated[list[int], Array("5+", ignorable=True, of=Int32)] = field(
        default_factory=list
    )


@struct
class MetadataResponseTopic(Struct):
    """An element of ``MetadataResponse.topics``."""

    error_code: Annotated[int, Int16("0+")] = 0
    name: Annotated[str | None, String("0+", nullable="12+")] = ""
    topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
    is_internal: Annotated[bool, Bool("1+", ignorable=True)] = False
    partitions: Annotated[list[MetadataResponsePartition], Array("0+")] = field(
        default_factory=list
    )
    topic_authorized_operations: Annotated[int, Int32("8+")] = -2147483648


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse(Message):
    """Answers ``MetadataRequest``."""

    throttle_time_ms: Annotated[int, Int32("3+", ignorable=True)] = 0
    brokers: Annotated[list[MetadataResponseBroker], Array("0+")] = field(default_factory=list)
    cluster_id: Annotated[str | None, String("2+", nullable="2+", ignorable=True)] = None
    controller_id: Annotated[int, Int32("1+", ignorable=True)] = -1
    topics: Annotated[list[MetadataResponseTopic], Array("0+")] = field(default_factory=list)
    cluster_authorized_operations: Annotated[int, Int32("8-10")] = -2147483648
    error_code: Annotated[int, Int16("13+", ignorable=True)] = 0
