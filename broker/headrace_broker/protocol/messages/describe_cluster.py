"""DescribeCluster (API key 60): list the nodes of the cluster."""

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


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest(Message):
    """Asks to list the nodes of the cluster."""

    include_cluster_authorized_operations: Annotated[bool, Bool("0+")] = False
    endpoint_type: Annotated[int, Int8("1+")] = 1
    include_fenced_brokers: Annotated[bool, Bool("2+")] = False


@struct
class DescribeClusterBroker(Struct):
    """An element of ``DescribeClusterResponse.brokers``."""

    broker_id: Annotated[int, Int32("0+")] = 0
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, Int32("0+")] = 0
    rack: Annotated[str | None, String("0+", nullable="0+")] = None
    is_fenced: Annotated[bool, Bool("2+")] = False


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse(Message):
    """Answers ``DescribeClusterRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    endpoint_type: Annotated[int, Int8("1+")] = 1
    cluster_id: Annotated[str, String("0+")] = ""
    controller_id: Annotated[int, Int32("0+")] = -1
    brokers: Annotated[list[DescribeClusterBroker], Array("0+")] = field(default_factory=list)
    cluster_authorized_operations: Annotated[int, Int32("0+")] = -2147483648
