"""The short path of Produce answers, byte for byte, what the general path answers."""

import asyncio
import itertools
import struct
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace_broker.server.api.dispatch import (
    FAST_VERSIONS,
    check_fast_versions,
    load_api_table,
)
from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.network.connection import Connection

NOW_MS = 1_763_700_000_000
PRODUCE = 0


class Wire:
    """A transport that keeps what is written, and whether it was closed."""

    def __init__(self):
        self.sent = b""
        self.is_open = True

    def write(self, data):
        self.sent += bytes(data)

    def writelines(self, parts):
        self.sent += b"".join(parts)

    def get_extra_info(self, name):
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return 0

    def close(self):
        self.is_open = False

    abort = close


def batch_of(count, *, size=10, **changes):
    records = [NewRecord(key=None, value=b"x" * size, timestamp=NOW_MS) for _ in range(count)]
    return bytes(build_batch(records, **changes))


def frame_of(request, version, client_id=b"test"):
    flexible = b"\0" if version >= 9 else b""
    header = struct.pack(">hhih", PRODUCE, version, 7, len(client_id)) + client_id + flexible
    frame = header + encode_bytes(request, version)
    return struct.pack(">i", len(frame)) + frame


def request_to(topic, data, acks=1, transactional_id=None, copies=1):
    partitions = [PartitionProduceData(index=index, records=records) for index, records in data]
    topics = [TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=partitions)]
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=topics * copies
    )


def send(broker, frames):
    """Send the frames over one connection; return what came back, and whether it stayed open."""
    wire = Wire()
    connection = Connection(broker.listeners[0])
    connection.connection_made(wire)
    for frame in frames:
        if wire.is_open:
            for start in range(0, len(frame), 65536):
                piece = frame[start : start + 65536]
                buffer = connection.get_buffer(len(piece))
                buffer[: len(piece)] = piece
                connection.buffer_updated(len(piece))
    connection.connection_lost(None)
    return wire.sent, wire.is_open


async def start_broker(tmp_path):
    text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}\nnum.partitions=2\n"
    broker = Broker(parse_config(text), on_failure=print)
    await broker.start()
    return broker


async def with_broker(tmp_path, check):
    broker = await start_broker(tmp_path)
    try:
        await broker.controller.auto_create_topics(["left", "rite"])
        check(broker)
    finally:
        await broker.stop()


def compare(broker, frames_to, suffix=""):
    """Send one kind of frames by both paths, each to its own topic; the answers are the same."""
    names = f"left{suffix}", f"rite{suffix}"
    left, right = (broker.metadata.topics[name] for name in names)
    fast = send(broker, frames_to(left))
    with mock.patch.dict(broker.listeners[0].fast_paths, clear=True):
        general = send(broker, frames_to(right))
    renamed = general[0].replace(b"rite", b"left")
    renamed = renamed.replace(right.topic_id.bytes, left.topic_id.bytes)
    assert (fast[0], fast[1]) == (renamed, general[1])
    for index in (0, 1):
        ours, theirs = (broker.replicas.partition(name, index).log for name in names)
        assert ours.log_end_offset == theirs.log_end_offset
        end = ours.log_end_offset
        assert bytes(ours.read(0, 1 << 30, upper_bound=end, at_least_one=True)) == bytes(
            theirs.read(0, 1 << 30, upper_bound=end, at_least_one=True)
        )
    return fast[0]


CASES = st.lists(
    st.tuples(
        st.integers(3, 13),  # version
        st.sampled_from([1, 1, 1, 0, -1, 5]),  # acks
        st.sampled_from([0, 0, 0, 1, 2, -1]),  # partition
        st.sampled_from(
            [
                batch_of(1),
                batch_of(3, size=200),  # a length of two bytes
                batch_of(20, size=1000),  # of three
                batch_of(1)[:-1] + b"?",  # a wrong checksum
                batch_of(2) + batch_of(1),
                batch_of(1)[:40],
                batch_of(1, producer_id=9, producer_epoch=0, base_sequence=4),
                batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0),
                b"",
                None,
            ]
        ),
        st.sampled_from([None, None, None, "transaction"]),
        st.sampled_from([1, 1, 1, 2]),  # times the topic is named
        st.sampled_from([1, 1, 1, 2]),  # times the partition is
    ),
    min_size=1,
    max_size=8,
)


class Examples:
    """One broker for all examples, which have topics of their own: starting it is what takes long.

    Its event loop turns while topics are created only.
    """

    def __init__(self, directory):
        self._runner = asyncio.Runner()
        self._broker = self._runner.run(start_broker(directory))
        self._numbers = itertools.count()

    def compare(self, frames_to):
        self._runner.run(self._compare(frames_to, f"{next(self._numbers):06}"))

    async def _compare(self, frames_to, suffix):
        await self._broker.controller.auto_create_topics([f"left{suffix}", f"rite{suffix}"])
        compare(self._broker, frames_to, suffix)

    def close(self):
        self._runner.run(self._broker.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    found = Examples(tmp_path_factory.mktemp("examples"))
    yield found
    found.close()


@settings(max_examples=150, deadline=None, print_blob=True)
@given(cases=CASES)
def test_both_paths_answer_and_append_the_same(examples, cases):
    def frames_to(topic):
        return [
            frame_of(
                request_to(topic, [(index, records)] * partitions, acks, transaction, copies),
                version,
            )
            for version, acks, index, records, transaction, copies, partitions in cases
        ]

    examples.compare(frames_to)


def test_a_frame_cut_short_anywhere_is_refused_by_both_paths(tmp_path):
    def frames_to(topic, cut):
        whole = frame_of(request_to(topic, [(0, batch_of(1))]), 12)
        frame = whole[4:-cut]
        return [whole, whole, struct.pack(">i", len(frame)) + frame]

    def check(broker):
        for cut in range(1, 140):
            compare(broker, lambda topic, cut=cut: frames_to(topic, cut))

    asyncio.run(with_broker(tmp_path, check))


@pytest.mark.parametrize("version", range(9, 14))
def test_the_usual_request_takes_the_fast_path(tmp_path, version):
    def check(broker):
        fast_paths = broker.listeners[0].fast_paths
        fast = fast_paths[PRODUCE]
        answers = []

        def watched(*arguments):
            answers.append(fast(*arguments))
            return answers[-1]

        fast_paths[PRODUCE] = watched
        topic = broker.metadata.topics["left"]
        frames = [frame_of(request_to(topic, [(1, batch_of(1))]), version)] * 3
        sent, _ = send(broker, frames)
        # The first request teaches it where the partition is.
        assert [answer is None for answer in answers] == [True, False, False]
        assert sent.endswith(b"".join(answers[1] + answers[2]))

    asyncio.run(with_broker(tmp_path, check))


def test_a_deleted_topic_is_not_written_to_by_its_bytes(tmp_path):
    async def check():
        text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}\n"
        broker = Broker(parse_config(text), on_failure=print)
        await broker.start()
        try:
            await broker.controller.auto_create_topics(["left"])
            frame = frame_of(request_to(broker.metadata.topics["left"], [(0, batch_of(1))]), 12)
            send(broker, [frame] * 3)
            old = broker.replicas.partition("left", 0)
            await broker.replicas._remove(broker.metadata.topics["left"])
            send(broker, [frame] * 2)
            assert old.log.log_end_offset == 3
        finally:
            await broker.stop()

    asyncio.run(check())


@pytest.mark.parametrize(
    "changes", [{"max_version": 12}, {"min_version": 10}, {"flexible_from": 10}]
)
def test_a_table_that_serves_less_than_a_fast_codec_reads_is_refused(changes):
    table = dict(load_api_table())
    for name, value in changes.items():
        setattr(table[PRODUCE], name, value)
    with pytest.raises(RuntimeError, match="the fast codec reads versions 9 to 13"):
        check_fast_versions(table)


def test_the_newest_version_has_a_fast_codec():
    table = load_api_table()
    for key, versions in FAST_VERSIONS.items():
        assert table[key].max_version == versions[-1]


def test_a_version_above_the_fast_codecs_is_left_to_the_general_one(tmp_path):
    def check(broker):
        topic = broker.metadata.topics["left"]
        frame = memoryview(frame_of(request_to(topic, [(0, batch_of(1))]), 13))[4:]
        fast = broker.listeners[0].fast_paths[PRODUCE]
        body = 10 + len(b"test") + 1
        fast(frame, 13, 7, body)  # teaches it where the partition is
        assert fast(frame, 14, 7, body) is None
        assert fast(frame, 13, 7, body) is not None

    asyncio.run(with_broker(tmp_path, check))


@pytest.mark.parametrize("copies", [1, 2], ids=["in one topic's data", "topic and all"])
def test_a_partition_that_is_named_again_is_appended_to_again(tmp_path, copies):
    """Kafka keeps the last one only, and answers once: records would be lost without a word."""
    data = [(0, batch_of(1)), (0, batch_of(2))] if copies == 1 else [(0, batch_of(1))]

    def check(broker):
        topic = broker.metadata.topics["left"]
        answer = compare(
            broker, lambda topic: [frame_of(request_to(topic, data, copies=copies), 9)]
        )
        decoded = decode(ProduceResponse, answer[4 + 4 + 1 :], 9)[0]
        offsets = [
            (each.error_code, each.base_offset)
            for found in decoded.responses
            for each in found.partition_responses
        ]
        assert offsets == [(0, 0), (0, 1)]
        log = broker.replicas.partition(topic.name, 0).log
        assert log.log_end_offset == (3 if copies == 1 else 2)

    asyncio.run(with_broker(tmp_path, check))
