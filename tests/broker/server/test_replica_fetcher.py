"""A fetcher against sources that stop answering: real connections to servers that hang."""

import asyncio
import contextlib
import struct
from uuid import UUID

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.headers import response_header_version
from headrace_broker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace_broker.protocol.messages.fetch import FetchResponse, PartitionData
from headrace_broker.server.follower.fetch_topics import Key
from headrace_broker.server.follower.replica_fetcher import (
    FetchedPartitions,
    FetcherConfig,
    ReplicaFetcher,
)
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from headrace_broker.server.peers.peers import Address, PeerConnections
from support.log import ManualClock, batch_of
from support.waiting import until

US, SOURCE = 2, 1
LOOPBACK = "127.0.0.1"
FETCH_VERSION = 16
SESSION = 7


class Book:
    """Where the source is now."""

    def __init__(self, address):
        self.address = address

    def broker_address(self, _node_id):
        return self.address

    def voter_address(self, _node_id):
        return None

    def active_controller(self):
        return None


class Source:
    """Answers fetches while `answers`, from a session of its own; then it hangs."""

    def __init__(self):
        self.answers = True
        self.made = self.lost = self.fetches = 0
        self._writers = []

    @contextlib.asynccontextmanager
    async def serving(self):
        server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        try:
            yield Address(*server.sockets[0].getsockname())
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _serve(self, reader, writer):
        self.made += 1
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation_id = struct.unpack_from(">hhi", frame)
                if key == ApiKey.FETCH:
                    self.fetches += 1
                    if not self.answers:
                        continue
                    await asyncio.sleep(0.01)
                self._answer(writer, ApiKey(key), version, correlation_id)
        self.lost += 1

    def _answer(self, writer, key, version, correlation_id):
        if key is ApiKey.FETCH:
            response = FetchResponse(
                error_code=ErrorCode.NONE, session_id=SESSION, responses=[], node_endpoints=[]
            )
        else:
            served = ApiVersion(
                api_key=ApiKey.FETCH, min_version=FETCH_VERSION, max_version=FETCH_VERSION
            )
            response = ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=[served])
        head = struct.pack(">i", correlation_id)
        if response_header_version(key, version):
            head += b"\0"
        body = head + encode_bytes(response, version)
        writer.write(struct.pack(">i", len(body)) + body)


def test_a_follower_cuts_an_epoch_that_its_leader_cannot_have_had(tmp_path):
    """The leader does not know it, and would refuse every fetch."""

    async def run():
        host = ReplicaHost(US)
        key, partition = _follower(tmp_path, 0, host)
        for number, epoch in enumerate((0, 0, 16)):
            partition.append_as_follower(
                batch_of(b"v", base_offset=number, partition_leader_epoch=epoch)
            )
        fetched = FetchedPartitions(
            SOURCE, host, FetcherConfig(), schedule=lambda: None, spawn=lambda _: None
        )
        fetched.add(key, partition)
        round_ = fetched.state.take()
        assert [position.last_fetched_epoch for _, position in round_.dirty] == [16]
        refusal = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0)
        fetched.take(key, round_.number, refusal, [])
        [(_, position)] = fetched.state.take().dirty
        assert (position.fetch_offset, position.last_fetched_epoch) == (2, 0)
        partition.log.close()

    asyncio.run(run())


def test_what_a_leader_of_a_former_epoch_answered_is_not_taken(tmp_path):
    """The metadata names the next leader; whoever goes by it has not come to this partition yet."""

    async def run():
        host = ReplicaHost(US)
        key, partition = _follower(tmp_path, 0, host)
        fetched = FetchedPartitions(
            SOURCE, host, FetcherConfig(), schedule=lambda: None, spawn=lambda _: None
        )
        fetched.add(key, partition)
        round_ = fetched.state.take()
        image = PartitionImage(
            leader=3, leader_epoch=1, partition_epoch=1, replicas=(SOURCE, US, 3), isr=(3,)
        )
        partition.apply(image, 1)
        data = PartitionData(records=bytes(batch_of(b"former")), high_watermark=1)
        fetched.take(key, round_.number, data, [])
        assert partition.log.log_end_offset == 0
        partition.log.close()

    asyncio.run(run())


def test_a_log_does_not_begin_above_what_is_known_to_be_committed(tmp_path):
    """An answer's high watermark may be older than its log start."""
    _, partition = _follower(tmp_path, 0, ReplicaHost(US))
    for number in range(3):
        partition.append_as_follower(batch_of(b"v", base_offset=number))
    partition.follow_high_watermark(1, 2)
    assert (partition.log.log_start_offset, partition.high_watermark) == (0, 1)
    partition.follow_high_watermark(2, 2)
    assert (partition.log.log_start_offset, partition.high_watermark) == (2, 2)
    partition.log.close()


def _follower(directory, index, host, unsynced_max=None):
    log = PartitionLog.open(directory / f"t-{index}", LogConfig(), clock=ManualClock())
    partition = Partition("t", UUID(int=5), index, log, host)
    partition.apply(
        PartitionImage(
            leader=SOURCE,
            leader_epoch=0,
            partition_epoch=0,
            replicas=(SOURCE, US),
            isr=(SOURCE, US),
        ),
        1,
        unsynced_max,
    )
    return Key(UUID(int=5).bytes, index), partition


def test_a_connection_that_hangs_is_closed_and_not_the_one_that_was_made_since(tmp_path):
    """A broker has a new address, and what was asked at the old one is never answered."""

    async def run():
        former, present = Source(), Source()
        async with former.serving() as old, present.serving() as new:
            book = Book(old)
            host = ReplicaHost(US)
            peers = PeerConnections(book, client_id="test", frame_bytes_max=1 << 20)
            config = FetcherConfig(wait_max_ms=50, timeout_ms=200)
            fetcher = ReplicaFetcher(SOURCE, host, peers, config)
            logs = []
            try:
                for index, is_there in enumerate((False, True)):
                    key, partition = _follower(tmp_path, index, host)
                    logs.append(partition.log)
                    if is_there:
                        # A fetch hangs at the old address; this one overtakes it at the new one.
                        former.answers = False
                        asked = former.fetches
                        await until(lambda asked=asked: former.fetches > asked)
                        book.address, host.image = new, MetadataImage()
                    fetcher.follow(key, partition)
                    await until(lambda: former.fetches > 1)
                await until(lambda: former.lost)
                asked = present.fetches
                await until(lambda: present.fetches > asked + 5)
                assert (present.made, present.lost) == (1, 0)
            finally:
                await fetcher.close()
                await peers.close()
                for log in logs:
                    log.abandon()

    asyncio.run(run())


def test_an_offset_is_reported_only_when_it_is_on_disk_whoever_waited_for_an_earlier_one(tmp_path):
    """A leader's next epoch comes while the follower waits for its disk; both go on."""

    async def run():
        waiting = []
        host = ReplicaHost(US)
        key, partition = _follower(tmp_path, 0, host, unsynced_max=0)
        fetched = FetchedPartitions(
            SOURCE, host, FetcherConfig(), schedule=lambda: None, spawn=waiting.append
        )
        partition.append_as_follower(batch_of(b"first"))
        fetched.add(key, partition)
        (first,) = waiting
        first.send(None)
        await until(lambda: partition.durable_end == 1)
        # It is on disk, and who waited for that has not heard of it yet.
        fetched.add(key, partition)
        assert [position.fetch_offset for _, position in fetched.state.take().dirty] == [1]
        partition.append_as_follower(batch_of(b"second", base_offset=1))
        fetched.state.set(key, partition.position())
        fetched.state.hold(key)
        assert partition.durable_end == 1
        with contextlib.suppress(StopIteration):
            first.send(None)
        assert fetched.state.take().dirty == []
        await until(lambda: partition.durable_end == 2)
        fetched.durable(key, partition)
        assert [position.fetch_offset for _, position in fetched.state.take().dirty] == [2]
        partition.log.close()

    asyncio.run(run())
