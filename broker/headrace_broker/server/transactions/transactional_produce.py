"""Produce requests that name a transactional id: verified before a transaction's first record.

Within a transaction that is open in all its partitions, such a request is appended like any other.
At the beginning of a transaction the leader asks the coordinator first (KIP-890): from version 12
on to add the partitions, before that whether the producer added them. While the request waits, its
bytes are copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace_broker.coordinator.transactions.transaction import Identity
from headrace_broker.log.verification import TRUSTED, Verification
from headrace_broker.protocol.batch_header import HEADER_SIZE, parse_batch_header
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.types import ProducerEpoch, ProducerId
from headrace_broker.server.transactions.admission import COORDINATOR_TROUBLE, NEVER, admission
from headrace_broker.server.transactions.verifier import Question

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.produce import (
        PartitionProduceData,
        ProduceRequest,
        TopicProduceData,
    )
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.transactions.verifier import Verifier

Admissions = dict[int, Verification | ApiError]
"""By the identity of a partition's data: the verification for its append, or the error."""

IMPLICIT_FROM: Final = 12
_ABORTABLE_FROM: Final = 11
_ASKED_AGAIN: Final = COORDINATOR_TROUBLE | {ErrorCode.CONCURRENT_TRANSACTIONS}
"""The producer sends the same request once more."""


class Node(Protocol):
    """The parts of the node that a request uses."""

    @property
    def clock(self) -> Clock:
        """Tells the time."""

    @property
    def config(self) -> BrokerConfig:
        """The settings."""

    @property
    def verifier(self) -> Verifier:
        """Asks transaction coordinators."""


def admitted(admissions: Admissions, data: PartitionProduceData) -> Verification:
    """Return the verification for an append of the data; raise ApiError if it is refused."""
    found = admissions[id(data)]
    if isinstance(found, ApiError):
        raise found
    return found


class _Asked(NamedTuple):
    """A partition's data for which a coordinator is asked."""

    data: PartitionProduceData
    verification: Verification
    partition: Partition

    def forget(self) -> None:
        """Forget the question: it must not keep the producer's current epoch out."""
        header = parse_batch_header(self.data.records or b"")
        producers = self.partition.log.producers
        producers.verifications.refuse(header.producer_id, self.verification)


class TransactionalProduce:
    """One request, until its append."""

    def __init__(self, broker: Node, api_version: int, request: ProduceRequest) -> None:
        self.admissions: Admissions = {}
        self._broker = broker
        self._api_version = api_version
        self._request = request
        self._waiting: list[tuple[_Asked, asyncio.Future[ErrorCode]]] = []
        self._producers: set[int] = set()
        self._before: list[asyncio.Future[None]] = []
        self._turn: asyncio.Future[None] | None = None

    def begin(self, find: Callable[[TopicProduceData, PartitionProduceData], Partition]) -> bool:
        """Check every partition; return whether all can be appended at once."""
        unknown: dict[Identity, list[_Asked]] = {}
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                try:
                    partition = find(topic, data)
                    identity, verification = self._admit(partition, data)
                except ApiError as error:
                    self.admissions[id(data)] = error
                    continue
                self.admissions[id(data)] = verification
                if verification.is_asked:
                    asked = _Asked(data, verification, partition)
                    unknown.setdefault(identity, []).append(asked)
        for identity, questions in unknown.items():
            self._ask(identity, questions)
        turns = self._broker.verifier.turns
        return not self._waiting and turns.keys().isdisjoint(self._producers)

    def _admit(
        self, partition: Partition, data: PartitionProduceData
    ) -> tuple[Identity, Verification]:
        identity = Identity()
        records = data.records
        if records is None or len(records) < HEADER_SIZE:
            return identity, TRUSTED  # the append will refuse it
        try:
            header = parse_batch_header(records)
        except DecodeError:
            return identity, TRUSTED
        if not header.is_transactional or header.is_control:
            return identity, TRUSTED
        self._producers.add(header.producer_id)
        identity = Identity(
            producer_id=ProducerId(header.producer_id),
            epoch=ProducerEpoch(header.producer_epoch),
        )
        node = self._broker
        asked = admission(partition, identity, header.base_sequence, node.clock, node.config)
        return identity, asked

    def _ask(self, identity: Identity, asked: list[_Asked]) -> None:
        answers = self._broker.verifier.ask(
            self._request.transactional_id or "",
            identity,
            [(each.partition.topic, each.data.index) for each in asked],
            Question.ADD if self._api_version >= IMPLICIT_FROM else Question.VERIFY,
        )
        self._waiting.extend(zip(asked, answers, strict=True))

    def wait(self) -> None:
        """Queue behind the producer's earlier requests, and copy the received bytes.

        Otherwise a request that finds the transaction open would overtake an earlier one that
        waited for the coordinator. The connection's buffer is soon reused for the next request.
        """
        turns = self._broker.verifier.turns
        self._turn = asyncio.get_running_loop().create_future()
        for producer_id in self._producers:
            if (before := turns.get(producer_id)) is not None:
                self._before.append(before)
            turns[producer_id] = self._turn
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                data.records = bytes(data.records or b"")

    async def finish(self, append: Callable[[], Any]) -> Any:
        """Wait for the coordinator, append what it admits, and return the append's result."""
        try:
            for before in self._before:
                await asyncio.shield(before)
            for asked, answer in self._waiting:
                code = await asyncio.shield(answer)
                if code in NEVER:
                    asked.forget()
                if code is not ErrorCode.NONE:
                    refusal = self.admissions[id(asked.data)] = self._refusal(code)
                    if code in _ASKED_AGAIN:
                        asked.partition.note_refusal(refusal.code)
            return append()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        turns, turn = self._broker.verifier.turns, self._turn
        for producer_id in self._producers:
            if turns.get(producer_id) is turn:
                del turns[producer_id]
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _refusal(self, code: ErrorCode) -> ApiError:
        """Return the producer's error for the coordinator's answer (ReplicaManager)."""
        if code is ErrorCode.PRODUCER_FENCED:
            return ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "another producer has the id now")
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._api_version < _ABORTABLE_FROM:
            return ApiError(
                ErrorCode.INVALID_TXN_STATE, "the partition was not added to the transaction"
            )
        is_busy = code is ErrorCode.CONCURRENT_TRANSACTIONS and self._api_version < IMPLICIT_FROM
        if is_busy or code in COORDINATOR_TROUBLE:
            # Older clients retry this error without refreshing their metadata.
            return ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction's coordinator: {code.name}"
            )
        return ApiError(code)
