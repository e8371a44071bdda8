"""`Verifier`: asks transaction coordinators for the partitions that this broker leads (KIP-890).

Before the first record of a transaction, a partition's leader has the partition added for the
producer, or verifies that the producer added it. Requests that wait for the same answer share it,
and continue in order of arrival.
"""

import asyncio
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

from headrace_broker.coordinator.transactions.transaction import (
    Identity,
    TopicPartition,
    TransactionVersion,
)
from headrace_broker.metadata.entities import TRANSACTION_STATE_TOPIC
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace_broker.protocol.types import NO_NODE, NodeId
from headrace_broker.server.peers.peer_connection import PeerUnavailable
from headrace_broker.server.peers.peers import PeerConnections
from headrace_broker.server.transactions.coordinator import TransactionCoordinator

_Key = tuple[TopicPartition, Identity, "Question"]
_TIMEOUT_MS: Final = 5000


class Question(Enum):
    """What a leader asks the coordinator."""

    ADD = "add"
    VERIFY = "verify"


class Verifier:
    """Asks for this broker's partitions."""

    def __init__(
        self,
        node_id: NodeId,
        coordinator: TransactionCoordinator,
        peers: PeerConnections,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._peers = peers
        self._image = image
        self.turns: dict[int, asyncio.Future[None]] = {}
        """By producer id: completes when its latest waiting request is appended or refused."""
        self._asked: dict[_Key, asyncio.Future[ErrorCode]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Collection[TopicPartition],
        question: Question,
    ) -> list[asyncio.Future[ErrorCode]]:
        """Return each partition's answer: NONE, or the coordinator's error."""
        loop = asyncio.get_running_loop()
        answers, fresh = [], []
        for where in partitions:
            key = (where, identity, question)
            answer = self._asked.get(key)
            if answer is None:
                answer = self._asked[key] = loop.create_future()
                fresh.append(where)
            answers.append(answer)
        if fresh:
            task = loop.create_task(self._settle(transactional_id, identity, fresh, question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return answers

    async def _settle(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: list[TopicPartition],
        question: Question,
    ) -> None:
        try:
            found = await self._question(transactional_id, identity, partitions, question)
        except ApiError as error:
            found = dict.fromkeys(partitions, error.code)
        except PeerUnavailable:
            found = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        finally:
            answers = [self._asked.pop((where, identity, question)) for where in partitions]
        for where, answer in zip(partitions, answers, strict=True):
            if not answer.done():
                answer.set_result(found.get(where, ErrorCode.COORDINATOR_NOT_AVAILABLE))

    async def _question(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: list[TopicPartition],
        question: Question,
    ) -> dict[TopicPartition, ErrorCode]:
        index = self._coordinator.partition_for(transactional_id)
        state = self._image().partition(TRANSACTION_STATE_TOPIC, index)
        leader = NO_NODE if state is None else state.leader
        if leader == NO_NODE:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader == self._node_id:
            if question is Question.VERIFY:
                return self._coordinator.verify(transactional_id, identity, partitions)
            await self._coordinator.add(
                transactional_id, identity, partitions, TransactionVersion.TV_2
            )
            return dict.fromkeys(partitions, ErrorCode.NONE)
        request = _request(transactional_id, identity, partitions, question)
        response: AddPartitionsToTxnResponse = await self._peers.send(
            leader, request, timeout_ms=_TIMEOUT_MS
        )
        if response.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(response.error_code))
        return {
            (topic.name, result.partition_index): ErrorCode(result.partition_error_code)
            for transaction in response.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
        }


def _request(
    transactional_id: str,
    identity: Identity,
    partitions: list[TopicPartition],
    question: Question,
) -> AddPartitionsToTxnRequest:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, index in partitions:
        topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(index)
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                verify_only=question is Question.VERIFY,
                topics=list(topics.values()),
            )
        ]
    )
