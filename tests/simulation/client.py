"""Simulated Kafka clients: producers, consumers and an admin, on the product's own codec.

They follow Kafka's rules for clients (metadata after NOT_LEADER, the same sequence for a retry, a
reset only when the broker says out of range) and write everything they saw into a `History`.
"""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.batch_header import parse_batch_header
from headrace_broker.protocol.codec import decoder, encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.headers import (
    RequestHeader,
    request_header_version,
    response_header_version,
)
from headrace_broker.protocol.messages import (
    create_topics,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)
from simulation.history import History, Status, Write

VERSIONS = {
    ApiKey.METADATA: 12,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 12,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.DESCRIBE_QUORUM: 2,
    ApiKey.ADD_RAFT_VOTER: 0,
    ApiKey.REMOVE_RAFT_VOTER: 0,
}
REQUEST_SECONDS = 3.0
CONNECT_SECONDS = 1.0
RETRY_SECONDS = 0.05
EARLIEST = -2

# The broker certainly did not apply the request. Everything else may have been applied: a leader
# says NOT_LEADER_OR_FOLLOWER, too, when it lost its role while a record waited for its commit.
NOT_APPLIED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
# Waiting and asking again is what Kafka's clients do.
RETRIABLE = NOT_APPLIED | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.INVALID_REPLICATION_FACTOR,
}
FAILURES = (OSError, TimeoutError, EOFError)


class Caller(asyncio.Protocol):
    """One connection: requests out, responses in, matched by correlation id."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: dict[int, tuple[ApiKey, int, asyncio.Future[Any]]] = {}
        self._next = 0
        self._transport: Any = None
        self.is_closed = False
        self.peer: tuple[str, int] | None = None

    def connection_made(self, transport) -> None:
        self._transport = transport
        self.peer = transport.get_extra_info("peername")

    def connection_lost(self, exc) -> None:  # noqa: ARG002 - asyncio's signature
        self.is_closed = True
        for _, _, future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError("connection closed"))
        self._waiting.clear()

    def send(self, key: ApiKey, request: Any, version: int | None = None) -> asyncio.Future[Any]:
        """Write a request and return the future of its response."""
        self._next += 1
        if version is None:
            version = VERSIONS[key]
        header = RequestHeader(
            request_api_key=key,
            request_api_version=version,
            correlation_id=self._next,
            client_id="simulated",
        )
        body = encode_bytes(header, request_header_version(key, version))
        body += encode_bytes(request, version)
        future = asyncio.get_running_loop().create_future()
        if self.is_closed:
            future.set_exception(EOFError("connection closed"))
            return future
        self._waiting[self._next] = (key, version, future)
        self._transport.write(struct.pack(">i", len(body)) + body)
        return future

    async def call(self, key: ApiKey, request: Any, version: int | None = None) -> Any:
        """Send and wait; a time-out closes the connection, as Kafka's clients do."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await self.send(key, request, version)
        except TimeoutError:
            self.close()
            raise

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < size + 4:
                return
            frame = bytes(self._buffer[4 : size + 4])
            del self._buffer[: size + 4]
            (correlation,) = struct.unpack_from(">i", frame)
            key, version, future = self._waiting.pop(correlation)
            start = 5 if response_header_version(key, version) else 4
            response, _ = decoder(API_TABLE[key].response, version)(frame, start)
            if not future.done():
                future.set_result(response)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Client:
    """Connections, metadata and retries of one client process."""

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[tuple[str, int]],
        history: History,
        chance: random.Random,
    ) -> None:
        self.name = name
        self.history = history
        self.chance = chance
        self._bootstrap = list(bootstrap)
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._callers: dict[tuple[str, int], Caller] = {}

    # ---- connections

    async def caller(self, address: tuple[str, int]) -> Caller:
        """Return an open connection to an address; raises OSError."""
        caller = self._callers.get(address)
        if caller is None or caller.is_closed:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_SECONDS):
                _, caller = await loop.create_connection(Caller, *address)
            self._callers[address] = caller
        return caller

    async def any_call(self, key: ApiKey, request: Any) -> Any:
        """Ask any broker that answers; raises one of FAILURES."""
        addresses = sorted({*self._bootstrap, *self._brokers.values()})
        self.chance.shuffle(addresses)
        error: BaseException = OSError("no broker")
        for address in addresses:
            try:
                return await (await self.caller(address)).call(key, request)
            except FAILURES as failure:
                error = failure
        raise error

    async def refresh(self) -> None:
        """Learn brokers and leaders."""
        response = await self.any_call(ApiKey.METADATA, metadata.MetadataRequest(topics=None))
        self._brokers = {item.node_id: (item.host, item.port) for item in response.brokers}
        for topic in response.topics:
            for partition in topic.partitions:
                self._leaders[topic.name, partition.partition_index] = (
                    partition.leader_id,
                    partition.leader_epoch,
                )

    async def leader(self, topic: str, partition: int) -> tuple[Caller, int]:
        """Return a connection to a partition's leader and its epoch."""
        known = self._leaders.get((topic, partition))
        if known is None or known[0] not in self._brokers:
            await self.refresh()
            known = self._leaders.get((topic, partition))
        if known is None or known[0] not in self._brokers:
            raise OSError("no leader is known")
        return await self.caller(self._brokers[known[0]]), known[1]

    def forget(self, topic: str, partition: int) -> None:
        """Ask for metadata before the next request to this partition."""
        self._leaders.pop((topic, partition), None)

    async def pause(self) -> None:
        await asyncio.sleep(RETRY_SECONDS * (0.5 + self.chance.random()))

    async def until(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat `attempt` until it returns something other than None."""
        while True:
            try:
                result = await attempt()
            except FAILURES:
                result = None
            if result is not None:
                return result
            await self.pause()

    # ---- admin

    async def create_topic(
        self, name: str, partitions: int, replicas: int, configs: dict[str, str]
    ) -> None:
        """Create a topic, whatever it takes."""
        request = create_topics.CreateTopicsRequest(
            topics=[
                create_topics.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replicas,
                    configs=[
                        create_topics.CreatableTopicConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=2000,
        )

        async def attempt() -> bool | None:
            response = await self.any_call(ApiKey.CREATE_TOPICS, request)
            code = response.topics[0].error_code
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return True
            if code not in RETRIABLE:
                self.history.violate("create-topics", f"{name}: {ErrorCode(code).name}")
            return None

        await self.until(attempt)

    # ---- groups

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Commit one offset once; True where the coordinator acknowledged it."""
        code = await self.try_commit(group, topic, partition, offset)
        if code and code not in RETRIABLE:
            self.history.violate("commit", f"{group}: {code.name}")
        return code is ErrorCode.NONE

    async def try_commit(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        generation: int = -1,
        member: str = "",
    ) -> ErrorCode | None:
        """Commit one offset once; None where nobody answered."""
        request = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset
                        )
                    ],
                )
            ],
        )
        try:
            caller = await self.coordinator(group)
            if caller is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            response = await caller.call(ApiKey.OFFSET_COMMIT, request)
        except FAILURES:
            return None
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def committed(self, group: str, topic: str, partition: int, known: int) -> int:
        """Return a committed offset, -1 where there is none.

        `known` has been acknowledged. A coordinator that has not heard yet that another took its
        place answers from memory what was committed before, as Kafka's does. An answer below
        `known` counts where it led from before the request until after the answer, and is asked
        for again where it did not: what was lost stays lost.
        """
        request = offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[
                        offset_fetch.OffsetFetchRequestTopics(
                            name=topic, partition_indexes=[partition]
                        )
                    ],
                )
            ]
        )

        async def attempt() -> int | None:
            caller = await self.coordinator(group)
            if caller is None:
                return None
            before = self.history.coordinator(group)
            response = await caller.call(ApiKey.OFFSET_FETCH, request)
            answer = response.groups[0]
            if answer.error_code or answer.topics[0].partitions[0].error_code:
                return None
            found = int(answer.topics[0].partitions[0].committed_offset)
            led = before[1] == caller.peer and before == self.history.coordinator(group)
            return found if found >= known or led else None

        return int(await self.until(attempt))

    async def coordinator(self, group: str) -> Caller | None:
        """Return a connection to a group's coordinator, None where nobody knows it."""
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        found = (await self.any_call(ApiKey.FIND_COORDINATOR, request)).coordinators[0]
        if found.error_code:
            return None
        return await self.caller((found.host, found.port))


class Producer:
    """Writes numbered records to one partition, in order, with retries or without."""

    def __init__(
        self, client: Client, name: str, topic: str, partition: int, *, idempotent: bool
    ) -> None:
        self.client = client
        self.name = name
        self.topic = topic
        self.partition = partition
        self.idempotent = idempotent
        self.in_flight_max = client.chance.choice((1, 2, 5)) if idempotent else 1
        self.pause_seconds = client.chance.choice((0.02, 0.06, 0.2))
        self._sent = 0
        self._sequence = 0
        self._id = (-1, -1)
        self._is_known = False
        """Whether a broker knows its sequences. One that does not begins with any, as Kafka's do.

        Of several first batches in flight, one might be taken where those before it were refused.
        """

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Write until `is_over`, and then until a healed cluster has taken something new.

        Everything sent has an outcome when this returns.
        """
        if self.idempotent:
            self._id = await self.client.until(self._init)
        window: list[list[Write]] = []
        while not is_over() or window:
            in_flight_max = self.in_flight_max if self._is_known else 1
            while len(window) < in_flight_max and not is_over():
                window.append(self._next_batch())
            window = await self._send(window)
            await self._think()
        batch: list[Write] = []
        while not batch or batch[0].status is not Status.ACKNOWLEDGED:
            if not window:
                batch = self._next_batch()
                window = [batch]
            window = await self._send(window)
            await self._think()

    async def _think(self) -> None:
        await asyncio.sleep(self.client.chance.expovariate(1 / self.pause_seconds))

    async def _init(self) -> tuple[int, int] | None:
        request = init_producer_id.InitProducerIdRequest(transactional_id=None)
        response = await self.client.any_call(ApiKey.INIT_PRODUCER_ID, request)
        return None if response.error_code else (response.producer_id, response.producer_epoch)

    def _next_batch(self) -> list[Write]:
        batch = []
        for _ in range(self.client.chance.choice((1, 1, 2, 5))):
            write = Write(
                producer=self.name,
                number=self._sent,
                topic=self.topic,
                partition=self.partition,
                idempotent=self.idempotent,
            )
            self._sent += 1
            batch.append(write)
            self.client.history.sent(write)
        return batch

    def _request(self, batch: list[Write]) -> produce.ProduceRequest:
        options: dict[str, int] = {}
        if self.idempotent:
            options = {
                "producer_id": self._id[0],
                "producer_epoch": self._id[1],
                "base_sequence": batch[0].number,
            }
        now = self.client.history.now_ms()
        padding = b"." * self.client.chance.choice((0, 0, 20, 900))
        records = [
            NewRecord(key=write.key, value=write.value + padding, timestamp=now) for write in batch
        ]
        data = produce.PartitionProduceData(
            index=self.partition, records=bytes(build_batch(records, **options))
        )
        return produce.ProduceRequest(
            acks=-1,
            timeout_ms=1500,
            topic_data=[produce.TopicProduceData(name=self.topic, partition_data=[data])],
        )

    async def _send(self, window: list[list[Write]]) -> list[list[Write]]:
        """Send a window in order; return the batches that must be sent again."""
        client = self.client
        try:
            caller, _ = await client.leader(self.topic, self.partition)
        except FAILURES:
            await client.pause()
            return window if self.idempotent else self._give_up(window, Status.FAILED)
        answers = [caller.send(ApiKey.PRODUCE, self._request(batch)) for batch in window]
        again: list[list[Write]] = []
        for batch, answer in zip(window, answers, strict=True):
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    response = await answer
            except FAILURES:
                caller.close()
                client.forget(self.topic, self.partition)
                if self.idempotent:
                    again.append(batch)
                else:
                    self._give_up([batch], Status.UNKNOWN)
                continue
            result = response.responses[0].partition_responses[0]
            again += self._judge(batch, result, is_head=not again)
        if again:
            await client.pause()
        return again

    def _judge(self, batch: list[Write], result: Any, *, is_head: bool) -> list[list[Write]]:
        code = ErrorCode(result.error_code)
        history = self.client.history
        if code is ErrorCode.NONE:
            self._is_known = True
            for place, write in enumerate(batch):
                history.acknowledged(write, result.base_offset + place)
            return []
        self.client.forget(self.topic, self.partition)
        if not self.idempotent:
            return self._give_up([batch], Status.FAILED if code in NOT_APPLIED else Status.UNKNOWN)
        is_gap = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_gap and not is_head:
            return [batch]  # the one before it comes again first
        if code not in RETRIABLE:
            history.violate("produce", f"{self.name} sends {batch[0].number} and hears {code.name}")
            return self._give_up([batch], Status.UNKNOWN)
        return [batch]

    def _give_up(self, window: list[list[Write]], status: Status) -> list[list[Write]]:
        for batch in window:
            for write in batch:
                write.status = status
        return []


class Consumer:
    """Reads one partition from a committed offset on, as `assign` does."""

    def __init__(self, client: Client, name: str, topic: str, partition: int) -> None:
        self.client = client
        self.name = name
        self.topic = topic
        self.partition = partition
        self.position = 0
        self.began_at = 0
        """Where the log began when it was last asked for."""
        self.group = f"group-{name}"
        self.committed = -1
        self.attempted = -1

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Poll, commit now and then, and sometimes start again from the committed offset."""
        chance = self.client.chance
        while not is_over():
            await self.poll()
            await asyncio.sleep(chance.expovariate(20))
            draw = chance.random()
            if draw < 0.1 and self.position:
                self.attempted = max(self.attempted, self.position)
                position = self.position
                if await self.client.commit(self.group, self.topic, self.partition, position):
                    self.committed = max(self.committed, position)
            elif draw < 0.12:
                await self.restart()

    async def restart(self) -> None:
        """Begin where the group stands; what was acknowledged must be there."""
        found = await self.client.committed(self.group, self.topic, self.partition, self.committed)
        if found < self.committed or found > self.attempted:
            self.client.history.violate(
                "lost-commit",
                f"{self.group} finds {found}; {self.committed} was acknowledged, "
                f"{self.attempted} was sent last",
            )
        self.position = max(found, 0)

    async def poll(self, max_wait_ms: int = 100) -> int:
        """Fetch once; return how many records came, -1 after an error."""
        client = self.client
        data = fetch.FetchPartition(
            partition=self.partition,
            fetch_offset=self.position,
            partition_max_bytes=client.chance.choice((1, 500, 65536)),
        )
        try:
            caller, epoch = await client.leader(self.topic, self.partition)
            data.current_leader_epoch = epoch
            request = fetch.FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                session_epoch=-1,
                topics=[fetch.FetchTopic(topic=self.topic, partitions=[data])],
            )
            response = await caller.call(ApiKey.FETCH, request)
        except FAILURES:
            client.forget(self.topic, self.partition)
            await client.pause()
            return -1
        result = response.responses[0].partitions[0] if response.responses else None
        if result is None or result.error_code:
            code = ErrorCode(result.error_code if result else response.error_code)
            if code is ErrorCode.OFFSET_OUT_OF_RANGE and client.history.may_begin_later:
                await self._skip_what_is_gone()
            elif code not in RETRIABLE:
                client.history.violate("fetch", f"{self.name} at {self.position} hears {code.name}")
            client.forget(self.topic, self.partition)
            await client.pause()
            return -1
        return self._take(result)

    async def _skip_what_is_gone(self) -> None:
        """Go on at the log's start, which alone may be above us, as `auto.offset.reset` says."""
        client = self.client
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=self.topic,
                    partitions=[
                        list_offsets.ListOffsetsPartition(
                            partition_index=self.partition, timestamp=EARLIEST
                        )
                    ],
                )
            ],
        )
        try:
            caller, _ = await client.leader(self.topic, self.partition)
            response = await caller.call(ApiKey.LIST_OFFSETS, request)
        except FAILURES:
            return
        result = response.topics[0].partitions[0]
        if result.error_code:
            return
        if result.offset < self.position:
            client.history.violate(
                "nonmonotonic-poll",
                f"{self.name} at {self.position} is out of range, the log begins at "
                f"{result.offset}",
            )
        self.position = self.began_at = result.offset

    def _take(self, result: Any) -> int:
        data = memoryview(result.records or b"")
        start, count = 0, 0
        while start < len(data):
            header = parse_batch_header(data, start)
            for record in iterate_records(data[start : start + header.size_bytes]):
                if record.offset < self.position:
                    continue
                self.client.history.read(
                    self.name, self.topic, self.partition, self.position, record
                )
                self.position = record.offset + 1
                count += 1
            if self.client.history.may_have_holes:
                # The last records of a batch may have been compacted away.
                end = header.base_offset + header.last_offset_delta + 1
                self.position = max(self.position, end)
            start += header.size_bytes
        if count and self.position > result.high_watermark:
            self.client.history.violate(
                "above-high-watermark",
                f"{self.name} read up to {self.position} of {self.topic}-{self.partition}, "
                f"the high watermark is {result.high_watermark}",
            )
        return count
