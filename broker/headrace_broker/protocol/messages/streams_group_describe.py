"""StreamsGroupDescribe (API key 89): describe streams groups."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
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


@message(api_key=89, versions="0", flexible="0+")
class StreamsGroupDescribeRequest(Message):
    """Asks to describe streams groups."""

    group_ids: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    include_authorized_operations: Annotated[bool, Bool("0+")] = False


@struct
class KeyValue(Struct):
    """An element of ``TopicInfo.topic_configs`` and ``Member.client_tags``."""

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
class Subtopology(Struct):
    """An element of ``Topology.subtopologies``."""

    subtopology_id: Annotated[str, String("0+")] = ""
    source_topics: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    repartition_sink_topics: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
    state_changelog_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)
    repartition_source_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)


@struct
class Topology(Struct):
    """The value of ``DescribedGroup.topology``."""

    epoch: Annotated[int, Int32("0+")] = 0
    subtopologies: Annotated[list[Subtopology] | None, Array("0+", nullable="0+")] = None


@struct
class Endpoint(Struct):
    """The value of ``Member.user_endpoint``."""

    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@struct
class TaskOffset(Struct):
    """An element of ``Member.task_offsets`` and ``Member.task_end_offsets``."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partition: Annotated[int, Int32("0+")] = 0
    offset: Annotated[int, Int64("0+")] = 0


@struct
class TaskIds(Struct):
    """An element of ``Assignment.active_tasks`` and others."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class Assignment(Struct):
    """The value of ``Member.assignment`` and ``Member.target_assignment``."""

    active_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    standby_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    warmup_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)


@struct
class Member(Struct):
    """An element of ``DescribedGroup.members``."""

    member_id: Annotated[str, String("0+")] = ""
    member_epoch: Annotated[int, Int32("0+")] = 0
    instance_id: Annotated[str | None, String("0+", nullable="0+")] = None
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = None
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    topology_epoch: Annotated[int, Int32("0+")] = 0
    process_id: Annotated[str, String("0+")] = ""
    user_endpoint: Annotated[Endpoint | None, Nested("0+", nullable="0+")] = None
    client_tags: Annotated[list[KeyValue], Array("0+")] = field(default_factory=list)
    task_offsets: Annotated[list[TaskOffset], Array("0+")] = field(default_factory=list)
    task_end_offsets: Annotated[list[TaskOffset], Array("0+")] = field(default_factory=list)
    assignment: Annotated[Assignment, Nested("0+")] = field(default_factory=Assignment)
    target_assignment: Annotated[Assignment, Nested("0+")] = field(default_factory=Assignment)
    is_classic: Annotated[bool, Bool("0+")] = False


@struct
class DescribedGroup(Struct):
    """An element of ``StreamsGroupDescribeResponse.groups``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    group_id: Annotated[str, String("0+")] = ""
    group_state: Annotated[str, String("0+")] = ""
    group_epoch: Annotated[int, Int32("0+")] = 0
    assignment_epoch: Annotated[int, Int32("0+")] = 0
    topology: Annotated[Topology | None, Nested("0+", nullable="0+")] = None
    members: Annotated[list[Member], Array("0+")] = field(default_factory=list)
    authorized_operations: Annotated[int, Int32("0+")] = -2147483648


@message(api_key=89, versions="0", flexible="0+")
class StreamsGroupDescribeResponse(Message):
    """Answers ``StreamsGroupDescribeRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    groups: Annotated[list[DescribedGroup], Array("0+")] = field(default_factory=list)
