"""Decides automatic topic creation: topics that clients use, and internal topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace_broker.metadata.cordons import placeable_brokers
from headrace_broker.metadata.decision import MetadataDecision, RandomSource
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.topics import decide_create_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

_USE_DEFAULT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """A topic that must exist. -1 in `num_partitions` or the factor means the broker's default."""

    name: str
    num_partitions: int = _USE_DEFAULT
    replication_factor: int = _USE_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


def decide_ensure_topic(
    image: MetadataImage, wanted: WantedTopic, policy: TopicPolicy, rng: RandomSource
) -> MetadataDecision[None]:
    """Decide that an internal topic exists; raises ApiError if it cannot be created.

    Its replication factor is reduced to the number of active brokers, so that a small cluster can
    have groups at all; Kafka refuses until there are enough brokers.
    """
    if wanted.name in image.topics:
        return MetadataDecision(records=[], response=None)
    factor = max(1, min(wanted.replication_factor, len(placeable_brokers(image))))
    topic = CreatableTopic(
        name=wanted.name,
        num_partitions=wanted.num_partitions,
        replication_factor=factor,
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in wanted.configs.items()
        ],
    )
    made = decide_create_topics(image, CreateTopicsRequest(topics=[topic]), policy, rng)
    result = made.response.topics[0]
    if result.error_code != ErrorCode.NONE:
        raise ApiError(ErrorCode(result.error_code), result.error_message or "")
    return MetadataDecision(records=made.records, response=None)


def decide_auto_create_topics(
    image: MetadataImage, names: Sequence[str], policy: TopicPolicy, rng: RandomSource
) -> MetadataDecision[Mapping[str, ErrorCode]]:
    """Decide topics with the broker's defaults; return each name's error, NONE if it exists."""
    missing = [name for name in dict.fromkeys(names) if name not in image.topics]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=_USE_DEFAULT, replication_factor=_USE_DEFAULT)
            for name in missing
        ]
    )
    made = decide_create_topics(image, request, policy, rng)
    outcome = dict.fromkeys(names, ErrorCode.NONE)
    for result in made.response.topics:
        outcome[result.name] = ErrorCode(result.error_code)
    return MetadataDecision(records=made.records, response=outcome)
