"""Decides creation and deletion of topics.

Pure: the image, the request, the policy and random numbers come in; records and a response come
out. Each topic of a request succeeds or fails by itself, with the error of Kafka's controller
(ReplicationControlManager), and a topic's records are in one batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from headrace_broker.metadata.decision import MetadataDecision, RandomSource
from headrace_broker.metadata.entities import CLUSTER_METADATA_TOPIC
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.layers import broker_layers
from headrace_broker.metadata.names import (
    collision_index,
    collision_key,
    has_collision_characters,
    validate_topic_name,
)
from headrace_broker.metadata.partitions import (
    PartitionBudget,
    TopicPolicy,
    checked_assignment,
    partition_record,
)
from headrace_broker.metadata.placement import Placer
from headrace_broker.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.metadata.settings.setting_types import format_value
from headrace_broker.metadata.settings.topic_config import (
    ConfigLayer,
    topic_candidates,
    validate_topic_config,
)
from headrace_broker.metadata.settings.topic_settings import TOPIC_SETTINGS
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace_broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace_broker.protocol.types import NodeId, TopicId

_NO_ID = UUID(int=0)
_USE_DEFAULT = -1


def decide_create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    policy: TopicPolicy,
    rng: RandomSource,
) -> MetadataDecision[CreateTopicsResponse]:
    """Decide which of the request's topics are created, where, and with what settings.

    With `validate_only` the response is the same and there are no records.
    """
    creation = _Creation(image, policy, rng)
    times = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    results: list[CreatableTopicResult] = []
    for topic in request.topics:
        try:
            made, result = creation.create(topic, times=times[topic.name])
        except ApiError as error:
            results.append(_creation_error(topic, error))
        else:
            records.extend(made)
            results.append(result)
    return MetadataDecision(
        records=[] if request.validate_only else records,
        response=CreateTopicsResponse(topics=results),
    )


def _creation_error(topic: CreatableTopic, error: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, error_code=error.code, error_message=error.message, configs=[]
    )


class _Creation:
    """One CreateTopics request in progress: its earlier topics count towards the limits."""

    def __init__(self, image: MetadataImage, policy: TopicPolicy, rng: RandomSource) -> None:
        self._image = image
        self._policy = policy
        self._rng = rng
        self._placer: Placer | None = None
        self._collisions: dict[str, str] | None = None
        self._budget = PartitionBudget(image, policy)
        self._layers: Sequence[ConfigLayer] = broker_layers(image, policy.node_id, policy.static)

    def create(
        self, topic: CreatableTopic, *, times: int
    ) -> tuple[list[MetadataRecord], CreatableTopicResult]:
        """Return the records and the result of one topic; raises ApiError.

        `times`: how often the request names the topic.
        """
        if times > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if topic.name == CLUSTER_METADATA_TOPIC:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"'{topic.name}' is the metadata quorum's own log."
            )
        validate_topic_name(topic.name)
        self._check_free(topic.name)
        overrides = self._config(topic)
        placements = self._placements(topic)
        self._budget.take(existing=0, added=len(placements))
        if has_collision_characters(topic.name):
            self._collision_names()[collision_key(topic.name)] = topic.name
        topic_id = new_topic_id(self._rng)
        records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id)]
        records += [
            partition_record(self._image, topic_id, index, replicas)
            for index, replicas in enumerate(placements)
        ]
        records += [
            ConfigRecord(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=topic.name,
                name=name,
                value=value,
            )
            for name, value in overrides.items()
        ]
        result = CreatableTopicResult(
            error_message=None,
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(placements),
            replication_factor=len(placements[0]),
            configs=self._described(overrides),
        )
        return records, result

    def _check_free(self, name: str) -> None:
        if name in self._image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if has_collision_characters(name):
            other = self._collision_names().get(collision_key(name))
            if other is not None:
                raise ApiError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic '{name}' collides with existing topic: {other}",
                )

    def _collision_names(self) -> dict[str, str]:
        if self._collisions is None:
            self._collisions = collision_index(self._image.topics)
        return self._collisions

    def _config(self, topic: CreatableTopic) -> dict[str, str]:
        overrides: dict[str, str] = {}
        for entry in topic.configs:
            if entry.value is None:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Null value not supported for topic configs: {entry.name}",
                )
            overrides[entry.name] = entry.value
        validate_topic_config(overrides, self._layers)
        return overrides

    def _placements(self, topic: CreatableTopic) -> list[list[NodeId]]:
        if topic.assignments:
            return self._manual(topic)
        partitions = topic.num_partitions
        if partitions == _USE_DEFAULT:
            partitions = self._policy.num_partitions
        factor = topic.replication_factor
        if factor == _USE_DEFAULT:
            factor = self._policy.replication_factor
        if factor < 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if partitions < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        self._budget.check(existing=0, added=partitions)
        if self._placer is None:
            self._placer = Placer(self._image, self._rng)
        return self._placer.place(partitions, factor)

    def _manual(self, topic: CreatableTopic) -> list[list[NodeId]]:
        if topic.replication_factor != _USE_DEFAULT or topic.num_partitions != _USE_DEFAULT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but numPartitions and "
                "replicationFactor were not both set to -1.",
            )
        by_index = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
        if sorted(by_index) != list(range(len(topic.assignments))):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence, each named once",
            )
        factor = len(by_index[0])
        return [
            checked_assignment(self._image, index, by_index[index], factor)
            for index in range(len(by_index))
        ]

    def _described(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        described = []
        for name, setting in TOPIC_SETTINGS.items():
            effective = topic_candidates(setting, overrides, self._layers)[0]
            described.append(
                CreatableTopicConfigs(
                    name=name,
                    value=format_value(effective.value),
                    config_source=effective.source,
                )
            )
        return described


def new_topic_id(rng: RandomSource) -> TopicId:
    """Return a random id; like Kafka's, its base64 never starts with '-' (an option's sign)."""
    while True:
        topic_id = UUID(int=rng.getrandbits(128), version=4)
        if topic_id.bytes[0] >> 2 != 62:  # noqa: PLR2004 - '-' in URL-safe base64 (RFC 4648)
            return TopicId(topic_id)


def decide_delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, policy: TopicPolicy
) -> MetadataDecision[DeleteTopicsResponse]:
    """Decide which topics are deleted, by name (all versions) or by id (version 6)."""
    asked = list(request.topics) or [DeleteTopicState(name=name) for name in request.topic_names]
    records: list[MetadataRecord] = []
    results: list[DeletableTopicResult] = []
    seen: set[TopicId] = set()
    for state in asked:
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        results.append(result)
        try:
            topic_id = _deletable(image, state, policy, seen)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        seen.add(topic_id)
        result.topic_id, result.name = topic_id, image.topics_by_id[topic_id].name
        records.append(RemoveTopicRecord(topic_id=topic_id))
    return MetadataDecision(records=records, response=DeleteTopicsResponse(responses=results))


def _deletable(
    image: MetadataImage, state: DeleteTopicState, policy: TopicPolicy, seen: set[TopicId]
) -> TopicId:
    if not policy.deletion_enabled:
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled by delete.topic.enable."
        )
    if state.name is None and state.topic_id == _NO_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if state.name is not None and state.topic_id != _NO_ID:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "Topic name and topic ID can not both be specified."
        )
    if state.name is None:
        topic = image.topics_by_id.get(TopicId(state.topic_id))
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    else:
        found = image.topics.get(state.name)
        if found is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
        topic = found
    if topic.topic_id in seen:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name or id.")
    if topic.is_internal:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"{topic.name} is the cluster's own topic and cannot be deleted",
        )
    return topic.topic_id
