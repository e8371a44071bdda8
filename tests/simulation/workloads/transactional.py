"""A transactional producer, as Java's: its requests in both generations, and what it retries.

Version 2 (KIP-890) adds partitions by producing, and gets a new epoch with each end; an older one
adds them itself, and takes a new epoch where the outcome of a request is unknown, so that nothing
delayed touches its next transaction, which Kafka's older clients cannot promise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    produce,
    txn_offset_commit,
)
from simulation.atomicity import Atomicity, Key, Outcome, Transaction
from simulation.client import FAILURES, METADATA_IDS_FROM, TRANSACTIONAL_IDS, Caller, Client
from simulation.retries import RETRIABLE
from simulation.workloads.features import BUMPS_FROM

ORDERS: tuple[Key, ...] = (("orders", 0), ("orders", 1))
LEDGER: tuple[Key, ...] = (("ledger", 0), ("ledger", 1))
IMPLICIT_FROM = 12
END_BUMPS_FROM = 5
GENERATIONS_FROM = 3
KEY_TYPES_FROM = 1

_LOST_COORDINATOR = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
)
_NOT_DONE = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_RETRIED = RETRIABLE | _NOT_DONE | {ErrorCode.OPERATION_NOT_ATTEMPTED}
_FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_ABORTABLE = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,  # the abort tells whether it is fenced
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_OFFSETS_ABORTABLE = _ABORTABLE | {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


class FencedError(Exception):
    """Another producer has the id now, or nobody: begin again."""


class AbortableError(Exception):
    """The transaction cannot go on: abort it."""


class TransactionalProducer:
    """One producer of a transactional id, from its InitProducerId on."""

    def __init__(self, client: Client, checks: Atomicity, transactional_id: str, life: int) -> None:
        self.client = client
        self.life = (transactional_id, life)
        self._checks = checks
        self._id = transactional_id
        self._identity = (-1, -1)
        self._sequences: dict[Key, int] = {}
        self._added: set[Any] = set()
        self._coordinator: Caller | None = None
        self._count = 0
        self.is_unsure = False
        """Whether the outcome of a request is unknown, so that it may still arrive."""
        self.moves_groups_alone = False
        """Whether a transaction may have a group's offsets, and no records."""
        self._last_end: end_txn.EndTxnRequest | None = None
        self.renews_after_aborts = True
        """Whether an older client takes a new epoch after each abort; Java's keeps a known one."""
        self.timeout_ms = client.rng.choice((700, 700, 2000, 6000))
        self.bumps_epochs = client.versions[ApiKey.PRODUCE] >= IMPLICIT_FROM

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- the id

    async def begin_life(self) -> None:
        """Fence whoever had the id. Raises FencedError."""
        await self._hear_of_level()
        await self._init((-1, -1))

    async def _hear_of_level(self) -> bool:
        """Speak the version of the next transaction; return whether it is the first with bumps."""
        client, bumped = self.client, self.bumps_epochs
        if client.generations is not None and client.level is not None:
            level = await client.level.ask()
            client.versions.update(client.generations[level >= BUMPS_FROM])
            self.bumps_epochs = level >= BUMPS_FROM
        return self.bumps_epochs and not bumped

    async def _init(self, expected: tuple[int, int]) -> None:
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        while True:
            sent_at = self._now()
            response = await self._ask(ApiKey.INIT_PRODUCER_ID, request)
            code = self._code(response)
            if code is ErrorCode.NONE:
                break
            if code in _FENCED:
                raise FencedError(code.name)
            await self._wait_or_complain("InitProducerId", code)
        self.client.history.gave_producer_id(response.producer_id, f"transactional id {self._id}")
        self._identity = (response.producer_id, response.producer_epoch)
        self._sequences.clear()
        self.is_unsure = False
        if expected[0] < 0:
            self._checks.initialised(self.life, sent_at)

    # ---- a transaction

    def begin(self) -> Transaction:
        """Begin a transaction, of which nobody hears yet."""
        self._count += 1
        self._added.clear()
        return self._checks.begin(self.life, self._count)

    async def write(self, transaction: Transaction, records: Mapping[Key, Sequence[bytes]]) -> None:
        """Write until everything is acknowledged. Raises AbortableError."""
        if not self.bumps_epochs:
            await self._add_partitions(records)
        batches: dict[Key, tuple[list[bytes], bytes, float]] = {}
        for key, values in records.items():
            for value in values:
                self._checks.send(transaction, key, value)
            batches[key] = (list(values), self._batch(key, values), self._now())
        while batches:
            leaders: dict[Caller, list[Key]] = {}
            for key in batches:
                try:
                    caller, _ = await self.client.leader(*key)
                    leaders.setdefault(caller, []).append(key)
                except FAILURES:
                    self.client.forget(*key)
            for caller, keys in leaders.items():
                answers = await self._produce(caller, {key: batches[key][1] for key in keys})
                for key, (code, offset) in answers.items():
                    if code is ErrorCode.NONE:
                        values, _, sent_at = batches.pop(key)
                        self._checks.acknowledged(transaction, key, offset, values, sent_at)
                    elif code in _ABORTABLE:
                        self.is_unsure = True
                        raise AbortableError(code.name)
                    else:
                        self.client.heard(*key, code)
                        self._complain(f"Produce to {key}", code)
            if batches:
                await self.client.pause()

    def _batch(self, key: Key, values: Sequence[bytes]) -> bytes:
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(values)
        now = self.client.history.now_ms()
        return bytes(
            build_batch(
                [NewRecord(key=value, value=value, timestamp=now) for value in values],
                producer_id=self._identity[0],
                producer_epoch=self._identity[1],
                base_sequence=sequence,
                is_transactional=True,
            )
        )

    async def _produce(
        self, caller: Caller, batches: Mapping[Key, bytes]
    ) -> dict[Key, tuple[ErrorCode, int]]:
        client, request = self.client, self._produce_request(batches)
        try:
            response = await client.call(caller, ApiKey.PRODUCE, request)
        except FAILURES:
            self.is_unsure = True
            for key in batches:
                client.forget(*key)
            return {}
        return {
            (client.names.get(topic.topic_id, topic.name), result.index): (
                ErrorCode(result.error_code),
                result.base_offset,
            )
            for topic in response.responses
            for result in topic.partition_responses
        }

    def _produce_request(self, batches: Mapping[Key, bytes]) -> produce.ProduceRequest:
        client, topics = self.client, {}
        for (topic, index), records in batches.items():
            if topic not in topics:
                topics[topic] = produce.TopicProduceData(name=topic, partition_data=[])
                if client.speaks_ids(ApiKey.PRODUCE):
                    topics[topic].topic_id = client.ids[topic]
            data = produce.PartitionProduceData(index=index, records=records)
            topics[topic].partition_data.append(data)
        return produce.ProduceRequest(
            transactional_id=self._id, acks=-1, timeout_ms=1500, topic_data=list(topics.values())
        )

    async def abort_early(
        self, transaction: Transaction, key: Key, values: Sequence[bytes], seconds: float
    ) -> None:
        """Write, and abort before it is known whether that was appended, as librdkafka's purge.

        Only of a client below version 2, which begins a new epoch then. Raises FencedError,
        AbortableError.
        """
        client = self.client
        await self._add_partitions({key: values})
        for value in values:
            self._checks.send(transaction, key, value)
        caller = answer = None
        try:
            caller, _ = await client.leader(*key)
            answer = caller.send(
                ApiKey.PRODUCE, self._produce_request({key: self._batch(key, values)})
            )
        except FAILURES:
            client.forget(*key)
        self.is_unsure = True
        await asyncio.sleep(seconds)
        await self.end(transaction, commits=False)
        if caller is None or answer is None:
            return
        try:
            found = (await client.wait(caller, answer)).responses[0].partition_responses[0]
        except FAILURES:
            client.forget(*key)
        else:
            client.heard(*key, found.error_code)

    async def _add_partitions(self, keys: Mapping[Key, Any]) -> None:
        missing = [key for key in keys if key not in self._added]
        if not missing:
            return
        messages = add_partitions_to_txn
        topics: dict[str, messages.AddPartitionsToTxnTopic] = {}
        for topic, index in missing:
            if topic not in topics:
                topics[topic] = messages.AddPartitionsToTxnTopic(name=topic)
            topics[topic].partitions.append(index)
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._identity[0],
            v3_and_below_producer_epoch=self._identity[1],
            v3_and_below_topics=list(topics.values()),
        )
        while True:
            response = await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, request)
            codes = {ErrorCode.NETWORK_EXCEPTION}
            if response is not None:
                codes = {
                    ErrorCode(result.partition_error_code)
                    for topic in response.results_by_topic_v3_and_below
                    for result in topic.results_by_partition
                }
            if codes == {ErrorCode.NONE}:
                self._added.update(missing)
                return
            for code in sorted(codes - {ErrorCode.NONE}):
                if code in _ABORTABLE:
                    raise AbortableError(code.name)
                await self._wait_or_complain("AddPartitionsToTxn", code)

    async def commit_offsets(
        self, group: str, places: Mapping[Key, int], *, generation: int = -1, member: str = ""
    ) -> None:
        """Let the transaction move a group. Raises AbortableError."""
        if not self.bumps_epochs and group not in self._added:
            added = add_offsets_to_txn.AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=self._identity[0],
                producer_epoch=self._identity[1],
                group_id=group,
            )
            while (code := self._code(await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, added))) != 0:
                if code in _ABORTABLE:
                    raise AbortableError(code.name)
                await self._wait_or_complain("AddOffsetsToTxn", code)
            self._added.add(group)
        messages = txn_offset_commit
        topics: dict[str, messages.TxnOffsetCommitRequestTopic] = {}
        for (topic, index), offset in places.items():
            if topic not in topics:
                topics[topic] = messages.TxnOffsetCommitRequestTopic(name=topic)
            topics[topic].partitions.append(
                messages.TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset
                )
            )
        request = messages.TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group,
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            generation_id=generation,
            member_id=member,
            topics=list(topics.values()),
        )
        while True:
            codes = await self._ask_group(group, request)
            if codes == {ErrorCode.NONE}:
                return
            for code in sorted(codes - {ErrorCode.NONE}):
                if code in _OFFSETS_ABORTABLE:
                    raise AbortableError(code.name)
                await self._wait_or_complain("TxnOffsetCommit", code)

    async def _ask_group(self, group: str, request: Any) -> set[ErrorCode]:
        try:
            caller = await self.client.coordinator(group)
            if caller is None:
                return {ErrorCode.COORDINATOR_NOT_AVAILABLE}
            response = await self.client.call(caller, ApiKey.TXN_OFFSET_COMMIT, request)
        except FAILURES:
            self.is_unsure = True
            return {ErrorCode.NETWORK_EXCEPTION}
        return {
            ErrorCode(result.error_code) for topic in response.topics for result in topic.partitions
        }

    async def end(self, transaction: Transaction, *, commits: bool) -> None:
        """Commit or abort until the outcome is known. Raises FencedError, AbortableError."""
        if not transaction.written and self.bumps_epochs and not self.moves_groups_alone:
            self._checks.end(transaction, Outcome.ABORTED)
            return
        if commits:
            self._checks.ask_commit(transaction)
        request = end_txn.EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            committed=commits,
        )
        may_be_done = False
        while True:
            response = await self._ask(ApiKey.END_TXN, request)
            code = self._code(response)
            if code is ErrorCode.NONE:
                break
            if code in _FENCED:
                is_unknown = commits and may_be_done
                self._checks.end(transaction, Outcome.UNKNOWN if is_unknown else Outcome.ABORTED)
                raise FencedError(code.name)
            if code in _ABORTABLE:
                self._checks.end(transaction, Outcome.ABORTED)
                if commits:
                    raise AbortableError(code.name)
                raise FencedError(code.name)
            may_be_done |= code not in _NOT_DONE
            await self._wait_or_complain("EndTxn", code)
        self._checks.end(transaction, Outcome.COMMITTED if commits else Outcome.ABORTED)
        self._last_end = request
        await self._go_on(response, commits=commits)

    async def end_again(self, *, commits: bool) -> ErrorCode:
        """Ask once for what ended before the present transaction, as if a request came late."""
        if self._last_end is None:
            raise AssertionError("no transaction has ended")
        self._last_end.committed = commits
        return self._code(await self._ask(ApiKey.END_TXN, self._last_end))

    async def _go_on(self, response: Any, *, commits: bool) -> None:
        bumped, history = self.bumps_epochs, self.client.history
        if bumped:
            following = (response.producer_id, response.producer_epoch)
            if following == self._identity:
                history.violate("epoch-stays", f"{self._id} goes on as {following} after its end")
            self._identity = following
            self._sequences.clear()
        is_first = await self._hear_of_level()
        if is_first:
            history.reach("a producer goes on with version 2")
        elif bumped and not self.bumps_epochs:
            history.reach("a producer goes on without version 2")
        is_unsure = self.is_unsure or (not commits and self.renews_after_aborts)
        if is_first or (not bumped and is_unsure):
            await self._init(self._identity)

    # ---- the coordinator

    async def _ask(self, key: ApiKey, request: Any) -> Any:
        """Ask the coordinator; None where nobody answered."""
        try:
            if self._coordinator is None or self._coordinator.is_closed:
                self._coordinator = await self.client.coordinator(self._id, TRANSACTIONAL_IDS)
            if self._coordinator is None:
                return None
            return await self.client.call(self._coordinator, key, request)
        except FAILURES:
            self.is_unsure = True
            self._coordinator = None
            return None

    def _code(self, response: Any) -> ErrorCode:
        return ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode(response.error_code)

    async def _wait_or_complain(self, what: str, code: ErrorCode) -> None:
        if code in _LOST_COORDINATOR:
            self._coordinator = None
        self._complain(what, code)
        await self.client.pause()

    def _complain(self, what: str, code: ErrorCode) -> None:
        if code not in _RETRIED:
            self.client.history.violate("transaction", f"{self._id}: {what} hears {code.name}")
            raise FencedError(code.name)


def draw_transactional_versions(client: Client) -> None:
    """Draw whether a client knows version 2 of transactions, and the versions that go with it."""
    rng, versions = client.rng, client.versions
    if rng.random() < 0.6:
        newer = newer_versions(client)
        if client.level is not None:
            client.generations = (older_versions(client), newer)
        versions.update(newer)
    else:
        versions.update(older_versions(client))
    versions[ApiKey.ADD_PARTITIONS_TO_TXN] = rng.randint(0, 3)
    versions[ApiKey.FIND_COORDINATOR] = max(versions[ApiKey.FIND_COORDINATOR], KEY_TYPES_FROM)


def newer_versions(client: Client) -> dict[ApiKey, int]:
    """Draw the versions of a client that knows version 2."""
    versions = client.versions
    has_ids = versions[ApiKey.METADATA] >= METADATA_IDS_FROM
    newest = (ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.ADD_OFFSETS_TO_TXN)
    return {
        ApiKey.PRODUCE: IMPLICIT_FROM + (has_ids and client.rng.random() < 0.6),
        **{key: versions[key] for key in newest},
    }


def older_versions(client: Client) -> dict[ApiKey, int]:
    """Draw the versions of a client that does not know version 2."""
    rng = client.rng
    return {
        ApiKey.PRODUCE: rng.randint(3, IMPLICIT_FROM - 1),
        ApiKey.END_TXN: rng.randint(0, END_BUMPS_FROM - 1),
        ApiKey.TXN_OFFSET_COMMIT: rng.randint(GENERATIONS_FROM, 4),
        ApiKey.ADD_OFFSETS_TO_TXN: rng.randint(0, 4),
    }


class Worker:
    """What writers and processors of one transactional id have in common."""

    def __init__(self, client: Client, checks: Atomicity, transactional_id: str) -> None:
        draw_transactional_versions(client)
        self.client = client
        self.checks = checks
        self.transactional_id = transactional_id

    async def new_producer(self) -> TransactionalProducer:
        """Take the id over, whoever has it."""
        while True:
            life = self.checks.next_life(self.transactional_id)
            producer = TransactionalProducer(self.client, self.checks, self.transactional_id, life)
            try:
                await producer.begin_life()
            except FencedError:
                await self.client.pause()
            else:
                return producer

    async def repeat(
        self,
        is_over: Callable[[], bool],
        transact: Callable[[TransactionalProducer], Awaitable[bool]],
        begin: Callable[[TransactionalProducer], Awaitable[bool]] | None = None,
    ) -> None:
        """Transact until it is over, with a new producer where one may not go on.

        `transact` and `begin`, which comes first, return whether the producer may.
        """
        while not is_over():
            producer = await self.new_producer()
            may_go_on = begin is None or await begin(producer)
            while may_go_on and not is_over():
                may_go_on = await transact(producer)
                await asyncio.sleep(self.client.rng.expovariate(4))

    async def think(self) -> None:
        """Pass a moment; now and then one in which others give us up."""
        rng = self.client.rng
        await asyncio.sleep(rng.expovariate(30))
        if rng.random() < 0.08:
            self.client.history.reach("a producer pauses in the middle of a transaction")
            await asyncio.sleep(rng.choice((0.5, 1.5, 3.0)))

    async def give_up(self, producer: TransactionalProducer, transaction: Transaction) -> bool:
        """Abort; return whether the producer may go on."""
        try:
            await producer.end(transaction, commits=False)
        except (FencedError, AbortableError):
            return False
        return True
