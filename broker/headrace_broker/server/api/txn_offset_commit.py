"""TxnOffsetCommit: a group's offsets, readable when the transaction commits.

Versions: 0 · 1 as 0 · 2 leader epoch · 3 flexible, member and generation (KIP-447) · 4
TRANSACTION_ABORTABLE · 5 implicit partitions in transactions (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.coordinator.transactions.transaction import Identity
from headrace_broker.log.verification import Verification
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.offset_commit import OffsetCommitRequestTopic
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace_broker.protocol.types import PartitionIndex, ProducerEpoch, ProducerId
from headrace_broker.server.api.services import (
    WithClock,
    WithConfig,
    WithGroups,
    WithMetadata,
    WithReplicas,
    WithVerifier,
)
from headrace_broker.server.transactions.admission import COORDINATOR_TROUBLE, NEVER, admission
from headrace_broker.server.transactions.verifier import Question

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.TXN_OFFSET_COMMIT

_ABORTABLE_FROM: Final = 4
_IMPLICIT_FROM: Final = 5
_FIRST_SEQUENCE: Final = 0


class Node(WithClock, WithConfig, WithGroups, WithMetadata, WithReplicas, WithVerifier, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Write the offsets, which stay pending until the transaction's marker."""
    image = broker.metadata

    def check_partition(topic: OffsetCommitRequestTopic, index: int) -> ErrorCode:
        found = image.topics.get(topic.name)
        if found is None or PartitionIndex(index) not in found.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic.topic_id = found.topic_id
        return ErrorCode.NONE

    try:
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if request.producer_epoch < 0:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "a producer's epoch is never negative")
        verification = await _verify(broker, context, request)
        return await broker.groups.commit_transactional(
            request, context, check_partition, verification
        )
    except ApiError as error:
        return _refusal(request, _code(error.code, context.api_version))


async def _verify(
    broker: Node, context: RequestContext, request: TxnOffsetCommitRequest
) -> Verification:
    """Return the verification for the append: the group's partition is in the open transaction."""
    identity = Identity(
        producer_id=ProducerId(request.producer_id), epoch=ProducerEpoch(request.producer_epoch)
    )
    index = broker.groups.partition_for(request.group_id)
    try:
        partition = broker.replicas.partition(GROUP_METADATA_TOPIC, index)
        found = admission(partition, identity, _FIRST_SEQUENCE, broker.clock, broker.config)
    except ApiError as error:
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            raise
        raise ApiError(ErrorCode.NOT_COORDINATOR, error.message) from error
    if not found.is_asked:
        return found
    (answer,) = broker.verifier.ask(
        request.transactional_id,
        identity,
        [(GROUP_METADATA_TOPIC, index)],
        Question.ADD if context.api_version >= _IMPLICIT_FROM else Question.VERIFY,
    )
    code = await answer
    if code in NEVER:
        partition.log.producers.verifications.refuse(identity.producer_id, found)
    if code is not ErrorCode.NONE:
        raise ApiError(code)
    return found


def _code(code: ErrorCode, version: int) -> ErrorCode:
    """Return a code that a client of this version knows (KafkaApis, GroupCoordinatorService)."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if code in COORDINATOR_TROUBLE and code is not ErrorCode.NOT_COORDINATOR:
        # The client then retries without looking for the group's coordinator: it is this broker.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if code in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _refusal(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=item.partition_index, error_code=code
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
