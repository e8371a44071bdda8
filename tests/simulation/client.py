"""A simulated Kafka client: connections, versions, metadata, on the product's codec.

What it does with them is its workload's; what its client library would do for an error is in
`retries`. Everything that was seen goes into a `History`.
"""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decoder, encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.headers import (
    RequestHeader,
    request_header_version,
    response_header_version,
)
from headrace_broker.protocol.messages import create_topics, find_coordinator, metadata
from simulation.history import History
from simulation.retries import LIBRDKAFKA_REFRESH, REFRESH, RETRIABLE

if TYPE_CHECKING:
    from simulation.workloads.features import KnownLevel

# The oldest version that a workload can use; without an entry the newest is meant.
OLDEST = {
    ApiKey.METADATA: 1,
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.INIT_PRODUCER_ID: 3,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 3,
    ApiKey.DELETE_RECORDS: 0,
    ApiKey.JOIN_GROUP: 4,
    ApiKey.SYNC_GROUP: 0,
    ApiKey.HEARTBEAT: 0,
    ApiKey.LEAVE_GROUP: 3,
}
# From here on topics have ids instead of names.
IDS_FROM = {
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 13,
    ApiKey.OFFSET_COMMIT: 10,
    ApiKey.OFFSET_FETCH: 10,
}
METADATA_IDS_FROM = 10
METADATA_EPOCHS_FROM = 7
KEYS_FROM = 4
# What FindCoordinator is asked for.
GROUPS, TRANSACTIONAL_IDS = 0, 1
GROUPS_FROM = 8

REQUEST_SECONDS = 3.0
# A client of the defaults waits 30 s; here a failover takes one to three.
PATIENT_SECONDS = 10.0
CONNECT_SECONDS = 1.0
RETRY_SECONDS = 0.05
FAILURES = (OSError, TimeoutError, EOFError)


def draw_versions(rng: random.Random) -> dict[ApiKey, int]:
    """Draw which version of each API a client speaks: mostly the newest, any that is served."""
    newest = {key: messages.max_version for key, messages in API_TABLE.items()}
    versions = {
        key: newest[key] if rng.random() < 0.4 else rng.randint(oldest, newest[key])
        for key, oldest in OLDEST.items()
    }
    if versions[ApiKey.METADATA] < METADATA_IDS_FROM:
        for key, first in IDS_FROM.items():
            versions[key] = min(versions[key], first - 1)
    return newest | versions


class Caller(asyncio.Protocol):
    """One connection: requests out, responses in, matched by correlation id."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: dict[int, tuple[ApiKey, int, asyncio.Future[Any]]] = {}
        self._next = 0
        self._transport: Any = None
        self.is_closed = False
        self.peer: tuple[str, int] | None = None
        self.versions: Mapping[ApiKey, int] = {}
        """What the client speaks; the newest of what is not in it."""

    def connection_made(self, transport) -> None:
        self._transport = transport
        self.peer = transport.get_extra_info("peername")

    def connection_lost(self, exc) -> None:  # noqa: ARG002 - asyncio's signature
        self.is_closed = True
        for _, _, future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError("connection closed"))
        self._waiting.clear()

    def send(
        self, key: ApiKey, request: Any, version: int | None = None, *, is_answered: bool = True
    ) -> asyncio.Future[Any]:
        """Write a request and return the future of its response; None at once where there is none.

        Nobody need wait for it: a failure that nobody asks for is no error.
        """
        self._next += 1
        if version is None:
            version = self.versions.get(key, API_TABLE[key].max_version)
        header = RequestHeader(
            request_api_key=key,
            request_api_version=version,
            correlation_id=self._next,
            client_id="simulated",
        )
        body = encode_bytes(header, request_header_version(key, version))
        body += encode_bytes(request, version)
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(_heard)
        if self.is_closed:
            future.set_exception(EOFError("connection closed"))
            return future
        if is_answered:
            self._waiting[self._next] = (key, version, future)
        else:
            future.set_result(None)
        self._transport.write(struct.pack(">i", len(body)) + body)
        return future

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


def _heard(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


class Client:
    """Connections, metadata and retries of one client process."""

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[tuple[str, int]],
        history: History,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.history = history
        self.rng = rng
        self.versions = draw_versions(rng)
        self.request_seconds = rng.choice((1.0, 3.0, 3.0, 3.0, PATIENT_SECONDS))
        self.closes_after_timeout = rng.random() < 0.7
        """As Java's does; one that does not keeps the old connection, and what is on its way."""
        self.refresh_errors = rng.choice((REFRESH, LIBRDKAFKA_REFRESH))
        self.ids: dict[str, UUID] = {}
        self.names: dict[UUID, str] = {}
        self.level: KnownLevel | None = None
        """Of `transaction.version`, in the seeds that change it."""
        self.generations: tuple[dict[ApiKey, int], dict[ApiKey, int]] | None = None
        """Versions below level 2 and at it, of a client that goes by the level."""
        self._bootstrap = list(bootstrap)
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._callers: dict[tuple[str, int], Caller] = {}

    # ---- connections

    async def caller(self, address: tuple[str, int]) -> Caller:
        """Return an open connection to an address; raises OSError."""
        caller = self._callers.get(address)
        if caller is None or caller.is_closed:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_SECONDS):
                _, caller = await loop.create_connection(Caller, *address)
            caller.versions = self.versions
            self._callers[address] = caller
        return caller

    async def wait(self, caller: Caller, answer: asyncio.Future[Any]) -> Any:
        """Wait for an answer; a time-out ends the use of a connection, and mostly itself."""
        try:
            async with asyncio.timeout(self.request_seconds):
                return await answer
        except TimeoutError:
            if self.closes_after_timeout:
                caller.close()
            elif caller.peer is not None and self._callers.get(caller.peer) is caller:
                del self._callers[caller.peer]  # another one is made; this one stays open
            raise

    async def call(
        self, caller: Caller, key: ApiKey, request: Any, version: int | None = None
    ) -> Any:
        """Send and wait; raises one of FAILURES."""
        return await self.wait(caller, caller.send(key, request, version))

    async def any_call(
        self,
        key: ApiKey,
        request: Any,
        version: int | None = None,
        *,
        on_unanswered: Callable[[], None] = lambda: None,
    ) -> Any:
        """Ask any broker that answers; raises one of FAILURES.

        Calls `on_unanswered` for each one that was asked in vain: it may still do as it was told.
        """
        addresses = sorted({*self._bootstrap, *self._brokers.values()})
        self.rng.shuffle(addresses)
        error: BaseException = OSError("no broker")
        for address in addresses:
            try:
                caller = await self.caller(address)
            except FAILURES as failure:
                error = failure
                continue
            try:
                return await self.call(caller, key, request, version)
            except FAILURES as failure:
                error = failure
                on_unanswered()
        raise error

    def speaks_ids(self, key: ApiKey) -> bool:
        """Whether its requests of this API name topics by id."""
        return self.versions[key] >= IDS_FROM[key]

    async def topic_id(self, topic: str) -> UUID:
        """Return a topic's id; raises one of FAILURES, OSError where nobody knows it."""
        if topic not in self.ids:
            await self.refresh()
        if topic not in self.ids:
            raise OSError("the topic is not known")
        return self.ids[topic]

    async def refresh(self) -> None:
        """Learn brokers and leaders."""
        response = await self.any_call(ApiKey.METADATA, metadata.MetadataRequest(topics=None))
        version = self.versions[ApiKey.METADATA]
        self._brokers = {item.node_id: (item.host, item.port) for item in response.brokers}
        for topic in response.topics:
            if version >= METADATA_IDS_FROM:
                if self.ids.get(topic.name) != topic.topic_id:
                    # Its epochs have nothing to do with those of the topic that had its name.
                    for partition in topic.partitions:
                        self._epochs.pop((topic.name, partition.partition_index), None)
                self.ids[topic.name] = topic.topic_id
                self.names[topic.topic_id] = topic.name
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                epoch = partition.leader_epoch if version >= METADATA_EPOCHS_FROM else -1
                # A broker that lags behind names a former leader; no client follows it back.
                if epoch >= self._epochs.get(key, -1):
                    self._epochs[key] = epoch
                    self._leaders[key] = (partition.leader_id, epoch)

    async def leader(self, topic: str, partition: int) -> tuple[Caller, int]:
        """Return a connection to a partition's leader and its epoch."""
        known = self._leaders.get((topic, partition))
        if known is None or known[0] not in self._brokers:
            await self.refresh()
            known = self._leaders.get((topic, partition))
        if known is None or known[0] not in self._brokers:
            raise OSError("no leader is known")
        return await self.caller(self._brokers[known[0]]), known[1]

    def known_epoch(self, topic: str, partition: int) -> int:
        """Return the newest leader epoch of a partition that it has heard of; -1 where of none."""
        return self._epochs.get((topic, partition), -1)

    def forget(self, topic: str, partition: int, *, is_new: bool = False) -> None:
        """Ask for metadata before the next request to this partition, which may be a new one."""
        self._leaders.pop((topic, partition), None)
        if is_new:
            self._epochs.pop((topic, partition), None)

    def heard(self, topic: str, partition: int, code: int) -> None:
        """Take an error of a partition as the client library would."""
        if code in self.refresh_errors:
            self.forget(topic, partition)

    async def pause(self) -> None:
        await asyncio.sleep(RETRY_SECONDS * (0.5 + self.rng.random()))

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

    # ---- coordinators

    async def coordinator(self, key: str, kind: int = GROUPS) -> Caller | None:
        """Return a connection to the coordinator of a group or of a transactional id.

        None where nobody knows it.
        """
        messages = find_coordinator
        if self.versions[ApiKey.FIND_COORDINATOR] < KEYS_FROM:
            request = messages.FindCoordinatorRequest(key=key, key_type=kind)
            found = await self.any_call(ApiKey.FIND_COORDINATOR, request)
        else:
            request = messages.FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
            found = (await self.any_call(ApiKey.FIND_COORDINATOR, request)).coordinators[0]
        if found.error_code:
            return None
        return await self.caller((found.host, found.port))
