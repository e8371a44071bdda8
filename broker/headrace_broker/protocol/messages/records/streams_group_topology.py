"""StreamsGroupTopology, a coordinator's record (type 23): the topology of a streams group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=23, versions="0")
class StreamsGroupTopologyKey(Message):
    """Key of the record that says the topology of a streams group."""

    group_id: Annotated[str, String("0")] = ""


@struct
class TopicConfig(Struct):
    """An element of ``TopicInfo.topic_configs``."""

    key: Annotated[str, String("0+")] = ""
    value: Annotated[str, String("0+")] = ""


@struct
class TopicInfo(Struct):
    """An element of ``Subtopology.state_changelog_topics`` and others."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[int, Int32("0+")] = 0
    replication_factor: Annotated[int, Int16("0+")] = 0
    topic_configs: Annotated[list[TopicConfig], Array("0+")] = field(default_factory=list)


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
    """An element of ``StreamsGroupTopologyValue.subtopologies``."""

    subtopology_id: Annotated[str, String("0+")] = ""
    source_topics: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    source_topic_regex: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    state_changelog_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)
    repartition_sink_topics: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
    repartition_source_topics: Annotated[list[TopicInfo], Array("0+")] = field(default_factory=list)
    copartition_groups: Annotated[list[CopartitionGroup], Array("0+")] = field(default_factory=list)


@message(api_key=23, versions="0", flexible="0+")
class StreamsGroupTopologyValue(Message):
    """Value of the record that says the topology of a streams group."""

    epoch: Annotated[int, Int32("0+")] = 0
    subtopologies: Annotated[list[Subtopology], Array("0+")] = field(default_factory=list)
