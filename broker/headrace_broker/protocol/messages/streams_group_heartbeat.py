"""StreamsGroupHeartbeat (API key 88): join, keep and leave a streams group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nested,
    String,
    Struct,
    UInt16,
    message,
    struct,
)


@struct
class KeyValue(Struct):
    """An element of ``TopicInfo.topic_configs`` and others."""

    key: Annotated[str, String("0+")] = ""
    value: Annotated[str, String("0+")] = ""


@struct
class TopicInfo(Struct):
    """An element of ``Subtopology.state_changelog_topics`` and others."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[int, Int32("0+")] = 0
    replication_factor: Annotated[int, Int16("0+")] = 0
    topic_configs: Annotated[list[KeyValue], Array("0+")] = field(default_factory=list)


@struct
class CopartitionGroup(Struct):
    """An element of ``Subtopology.copartition_groups``."""

    source_topics: Annotated[list[int], Array("0+", of=Int16)] = field(default_factory=list)
    source_topic_regex: Annotated[list[int], Array("0+", of=Int16)] = field(default_factory=list)
    repartition_source_topics: Annotated[list[int], Array("0+", of=Int16)] = field(
        default_factory=list
    )


@struct
class Subtopology(Struct):
    """An element of ``Topology.subtopologies``."""

    subtopology_id: Annotated[str, String("0+")] = ""
    source_topics: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    source_topic_regex: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    state_changelog_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)
    repartition_sink_topics: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
    repartition_source_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)
    copartition_groups: Annotated[list[CopartitionGroup], Array("0+")] = field(default_factory=list)


@struct
class Topology(Struct):
    """The value of ``StreamsGroupHeartbeatRequest.topology``."""

    epoch: Annotated[int, Int32("0+")] = 0
    subtopologies: Annotated[list[Subtopology], Array("0+")] = field(default_factory=list)


@struct
class StreamsGroupHeartbeatRequestTaskIds(Struct):
    """An element of ``StreamsGroupHeartbeatRequest.active_tasks`` and others."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class StreamsGroupHeartbeatRequestEndpoint(Struct):
    """The value of ``StreamsGroupHeartbeatRequest.user_endpoint``."""

    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@struct
class TaskOffset(Struct):
    """An element of ``StreamsGroupHeartbeatRequest.task_offsets`` and others."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partition: Annotated[int, Int32("0+")] = 0
    offset: Annotated[int, Int64("0+")] = 0


@message(api_key=88, versions="0", flexible="0+")
class StreamsGroupHeartbeatRequest(Message):
    """Asks to join, keep and leave a streams group."""

    group_id: Annotated[str, String("0+")] = ""
    member_id: Annotated[str, String("0+")] = ""
    member_epoch: Annotated[int, Int32("0+")] = 0
    endpoint_information_epoch: Annotated[int, Int32("0+")] = 0
    instance_id: Annotated[str | None, String("0+", nullable="0+")] = None
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = None
    rebalance_timeout_ms: Annotated[int, Int32("0+")] = -1
    topology: Annotated[Topology | None, Nested("0+", nullable="0+")] = None
    active_tasks: Annotated[
        list[StreamsGroupHeartbeatRequestTaskIds] | None, Array("0+", nullable="0+")
    ] = None
    standby_tasks: Annotated[
        list[StreamsGroupHeartbeatRequestTaskIds] | None, Array("0+", nullable="0+")
    ] = None
    warmup_tasks: Annotated[
        list[StreamsGroupHeartbeatRequestTaskIds] | None, Array("0+", nullable="0+")
    ] = None
    process_id: Annotated[str | None, String("0+", nullable="0+")] = None
    user_endpoint: Annotated[
        StreamsGroupHeartbeatRequestEndpoint | None, Nested("0+", nullable="0+")
    ] = None
    client_tags: Annotated[list[KeyValue] | None, Array("0+", nullable="0+")] = None
    task_offsets: Annotated[list[TaskOffset] | None, Array("0+", nullable="0+")] = None
    task_end_offsets: Annotated[list[TaskOffset] | None, Array("0+", nullable="0+")] = None
    shutdown_application: Annotated[bool, Bool("0+")] = False


@struct
class Status(Struct):
    """An element of ``StreamsGroupHeartbeatResponse.status``."""

    status_code: Annotated[int, Int8("0+")] = 0
    status_detail: Annotated[str, String("0+")] = ""


@struct
class StreamsGroupHeartbeatResponseTaskIds(Struct):
    """An element of ``StreamsGroupHeartbeatResponse.active_tasks`` and others."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class StreamsGroupHeartbeatResponseEndpoint(Struct):
    """The value of ``EndpointToPartitions.user_endpoint``."""

    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@struct
class TopicPartition(Struct):
    """An element of ``EndpointToPartitions.active_partitions`` and others."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class EndpointToPartitions(Struct):
    """An element of ``StreamsGroupHeartbeatResponse.partitions_by_user_endpoint``."""

    user_endpoint: Annotated[StreamsGroupHeartbeatResponseEndpoint, Nested("0+")] = field(
        default_factory=StreamsGroupHeartbeatResponseEndpoint
    )
    active_partitions: Annotated[list[TopicPartition], Array("0+")] = field(default_factory=list)
    standby_partitions: Annotated[list[TopicPartition], Array("0+")] = field(default_factory=list)


@message(api_key=88, versions="0", flexible="0+")
class StreamsGroupHeartbeatResponse(Message):
    """Answers ``StreamsGroupHeartbeatRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    member_id: Annotated[str, String("0+")] = ""
    member_epoch: Annotated[int, Int32("0+")] = 0
    heartbeat_interval_ms: Annotated[int, Int32("0+")] = 0
    acceptable_recovery_lag: Annotated[int, Int32("0+")] = 0
    task_offset_interval_ms: Annotated[int, Int32("0+")] = 0
    status: Annotated[list[Status] | None, Array("0+", nullable="0+")] = field(default_factory=list)
    active_tasks: Annotated[
        list[StreamsGroupHeartbeatResponseTaskIds] | None, Array("0+", nullable="0+")
    ] = None
    standby_tasks: Annotated[
        list[StreamsGroupHeartbeatResponseTaskIds] | None, Array("0+", nullable="0+")
    ] = None
    warmup_tasks: Annotated[
        list[StreamsGroupHeartbeatResponseTaskIds] | None, Array("0+", nullable="0+")
    ] = None
    endpoint_information_epoch: Annotated[int, Int32("0+")] = 0
    partitions_by_user_endpoint: Annotated[
        list[EndpointToPartitions] | None, Array("0+", nullable="0+")
    ] = None
