"""The fast paths answer producers, followers and consumers, byte for byte, as the general ones do.

Two brokers act the same part, one of them without its fast paths.
"""

import asyncio
import itertools
import random
import struct
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.metadata.entities import BrokerImage
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.fetch.fast_follower import FastDelayedFetch
from headrace_broker.server.network.connection import Connection
from headrace_broker.server.produce.delayed_produce import FastDelayedProduce

NOW_MS = 1_763_700_000_000
FOLLOWER, FOLLOWER_EPOCH = 2, 50
PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 11, 18
FLEXIBLE_FROM = {PRODUCE: 9, FETCH: 12}
TURNS = 6  # of the event loop, after which everything is said that no timer waits for


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.sent = []

    def write(self, data):
        self.sent.append(bytes(data))

    def writelines(self, parts):
        self.sent.append(b"".join(parts))

    def get_extra_info(self, name):
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return 0

    def close(self):
        self.sent.append("closed")

    abort = close


class Client:
    """One connection to the leader, without a network."""

    def __init__(self, broker):
        self.wire = Wire()
        self.correlation_id = 0
        self.connection = Connection(broker.listeners[0])
        self.connection.connection_made(self.wire)

    def send(self, key, version, request, tail=b""):
        self.correlation_id += 1
        body = struct.pack(">hhih", key, version, self.correlation_id, 0)
        body += b"\0" if version >= FLEXIBLE_FROM[key] else b""
        body += encode_bytes(request, version) + tail
        frame = struct.pack(">i", len(body)) + body
        self.connection.get_buffer(len(frame))[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))


class StoppableLoop(asyncio.SelectorEventLoop):
    """Its time stands still while a test acts, so no timer fires by accident."""

    stopped_at = None
    ahead = 0.0

    def time(self):
        return super().time() + self.ahead if self.stopped_at is None else self.stopped_at

    def stop_time(self):
        self.stopped_at = self.time()

    def resume_time(self):
        """Go on from where the test has put the time: it never goes back."""
        self.ahead = self.stopped_at - super().time()
        self.stopped_at = None


class Leader:
    """A broker that leads both partitions of a topic; the test is their follower."""

    def __init__(self, broker, topic):
        self.broker = broker
        self.topic = broker.metadata.topics[topic]
        self.partitions = [broker.replicas.partition(topic, index) for index in (0, 1)]
        self.epoch = self.partitions[0].leader_epoch
        self.producer, self.follower, self.consumer = (Client(broker) for _ in range(3))
        self.sequence = 0
        self.session, self.session_epoch = 0, 0
        self.consumer_session, self.consumer_epoch = 0, 0
        host = broker.replicas.host
        other = BrokerImage(
            node_id=FOLLOWER,
            epoch=FOLLOWER_EPOCH,
            incarnation_id=UUID(int=2),
            endpoints=(),
            rack=None,
            fenced=False,
        )
        host.image = replace(host.image, brokers={**host.image.brokers, FOLLOWER: other})
        self.lead()

    @property
    def clients(self):
        return self.producer, self.follower, self.consumer

    def lead(self, isr=(1, FOLLOWER)):
        """Begin a new leader epoch."""
        self.epoch += 1
        for index, partition in enumerate(self.partitions):
            image = self.topic.partitions[index]
            partition.apply(
                replace(
                    image,
                    leader_epoch=self.epoch,
                    partition_epoch=image.partition_epoch + self.epoch,
                    replicas=(1, FOLLOWER),
                    isr=isr,
                ),
                2,
            )

    def produce(self, index, acks, count):
        records = [NewRecord(key=None, value=b"v" * 20, timestamp=NOW_MS) for _ in range(count)]
        batch = bytes(
            build_batch(records, producer_id=7, producer_epoch=0, base_sequence=self.sequence)
        )
        self.sequence += count * (acks != 5)
        data = [PartitionProduceData(index=index, records=batch)]
        request = ProduceRequest(
            acks=acks,
            timeout_ms=30,
            topic_data=[TopicProduceData(name=self.topic.name, partition_data=data)],
        )
        self.producer.send(PRODUCE, PRODUCE_VERSION, request)

    def fetch(self, indexes, lag=0, epoch_change=0, leader_epoch_change=0, wait_ms=500):
        """Ask for partitions as their follower, which has all but the last `lag` records."""
        if epoch_change:
            epoch = self.session_epoch + epoch_change
        else:
            epoch = self.session_epoch
            self.session_epoch += 1
        asked = [
            FetchPartition(
                partition=index,
                current_leader_epoch=self.epoch + leader_epoch_change,
                fetch_offset=max(0, self.partitions[index].log.log_end_offset - lag),
                last_fetched_epoch=self.partitions[index].log.leader_epochs.latest,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            for index in indexes
        ]
        topics = [FetchTopic(topic_id=self.topic.topic_id, partitions=asked)] if asked else []
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=FOLLOWER, replica_epoch=FOLLOWER_EPOCH),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session,
            session_epoch=epoch,
            topics=topics,
        )
        self.follower.send(FETCH, FETCH_VERSION, request)
        self.session = self.broker.replicas.follower_sessions.get(FOLLOWER, 0)

    def consume(self, version, indexes, offset, leader_epoch_change, *limits):
        """Fetch as a consumer does, that names its topic as the version asks."""
        min_bytes, wait_ms, isolation, session = limits
        epoch = -1 if session is None else self.consumer_epoch + session
        asked = [
            FetchPartition(
                partition=index,
                current_leader_epoch=self.epoch + leader_epoch_change if version >= 9 else -1,
                fetch_offset=offset,
                partition_max_bytes=1 << 20,
            )
            for index in indexes
        ]
        named = {"topic_id": self.topic.topic_id} if version >= 13 else {"topic": self.topic.name}
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=isolation,
            session_id=self.consumer_session,
            session_epoch=epoch,
            topics=[FetchTopic(**named, partitions=asked)] if asked else [],
        )
        before = len(self.consumer.wire.sent)
        self.consumer.send(FETCH, version, request)
        if version >= 7 and session == 0:
            self.consumer_epoch += 1
            if len(self.consumer.wire.sent) > before and not self.consumer_session:
                # Throttle time and error are before it, tags of the header from version 12 on.
                at = 8 + (version >= 12) + 6
                self.consumer_session = int.from_bytes(self.consumer.wire.sent[-1][at : at + 4])

    def state(self):
        return [
            (partition.log.log_end_offset, partition.high_watermark)
            for partition in self.partitions
        ]


class Pair:
    """Two brokers for all examples, each of which has a topic of its own: starting takes long."""

    def __init__(self, directory):
        self._runner = asyncio.Runner(loop_factory=StoppableLoop)
        self._brokers = [
            self._runner.run(self._start(directory / name)) for name in ("fast", "general")
        ]
        self._brokers[1].listeners[0].fast_paths.clear()
        self._numbers = itertools.count()

    async def _start(self, path):
        path.mkdir()
        text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={path}\nnum.partitions=2\n"
        text += "replica.lag.time.max.ms=3600000\n"
        # Both name the same leader to those whom they send away.
        text += "advertised.listeners=PLAINTEXT://127.0.0.1:9092\n"
        broker = Broker(parse_config(text), rng=random.Random(5), on_failure=print)
        await broker.start()
        # The in-sync sets of former examples are nobody's business while one acts.
        broker.replicas.host.request_isr_update = lambda _: None
        return broker

    def act_out(self, actions):
        """Return what each of the two said, action by action, and where its partitions are."""
        number = next(self._numbers)
        return [self._runner.run(self._act(each, number, actions)) for each in self._brokers]

    async def _act(self, broker, number, actions):
        broker.rng.seed(number)  # both draw the same ids
        topic = f"topic{number:06}"
        await broker.controller.auto_create_topics([topic])
        leader = Leader(broker, topic)
        seen = []
        loop = asyncio.get_running_loop()
        loop.stop_time()
        leader.fetch([0, 1])
        for name, arguments in actions:
            if name == "wait":
                loop.stopped_at += arguments[0]
            else:
                getattr(leader, name)(*arguments)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            seen.append([len(each.wire.sent) for each in leader.clients] + [leader.state()])
        for client in leader.clients:
            client.connection.connection_lost(None)
        loop.resume_time()
        sent = [b"".join(client.wire.sent) for client in leader.clients]
        return seen, sent, leader.topic.topic_id

    def close(self):
        for broker in self._brokers:
            self._runner.run(broker.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    found = Pair(tmp_path_factory.mktemp("pair"))
    yield found
    found.close()


PARTITION = st.integers(0, 1)
ACTION = st.one_of(
    st.tuples(
        st.just("produce"),
        st.tuples(PARTITION, st.sampled_from([-1, -1, -1, 1, 5]), st.integers(1, 3)),
    ),
    st.tuples(st.just("fetch"), st.tuples(st.sampled_from([[0], [0], [1], [0, 1], []]))),
    st.tuples(st.just("fetch"), st.tuples(st.sampled_from([[0], [1]]), st.integers(-1, 2))),
    st.tuples(
        st.just("fetch"),
        st.tuples(
            st.just([0]),
            st.just(0),
            st.sampled_from([0, 0, 1, -1]),
            st.sampled_from([0, -1, 1]),
            st.sampled_from([500, 0]),
        ),
    ),
    st.tuples(st.just("lead"), st.sampled_from([(), ((1,),)])),
    st.tuples(st.just("wait"), st.just((0.08,))),
)
ROUND = [("produce", (0, -1, 1)), ("fetch", ([0], 1)), ("fetch", ([0],))]


EXAMPLES = 120  # in every run: what both decide is one, what they read and write is two


@settings(max_examples=EXAMPLES)
@given(actions=st.lists(ACTION, max_size=15).map(lambda drawn: [*ROUND, *drawn, *ROUND]))
def test_both_paths_say_the_same_to_producers_and_followers(pair, actions):
    fast, general = pair.act_out(actions)
    assert fast == general


CONSUME = st.tuples(
    st.just("consume"),
    st.tuples(
        st.integers(4, 18),  # version
        st.sampled_from([[0], [1], [0, 1], [1, 0], []]),
        st.sampled_from([0, 0, 1, 2, 7, -1]),  # offset
        st.sampled_from([0, 0, -1, 1]),  # leader epoch, beside the real one
        st.sampled_from([0, 1, 1, 400]),  # bytes at least
        st.sampled_from([0, 30, 500]),  # ms at most
        st.sampled_from([0, 1]),  # isolation level
        st.sampled_from([None, 0, 0, 1]),  # no session, its next epoch, a wrong one
    ),
)


@settings(max_examples=EXAMPLES)
@given(actions=st.lists(st.one_of(CONSUME, CONSUME, ACTION), min_size=3, max_size=15))
def test_both_paths_say_the_same_to_consumers(pair, actions):
    fast, general = pair.act_out([*ROUND, *actions, *ROUND])
    assert fast == general


def watched(fast_path, made, *arguments):
    answer = fast_path(*arguments)
    made.append(answer)
    return answer


def test_a_write_and_its_fetches_take_the_fast_paths(tmp_path):
    async def scenario():
        text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}\n"
        broker = Broker(parse_config(text + "num.partitions=2\n"), on_failure=print)
        await broker.start()
        try:
            await broker.controller.auto_create_topics(["topic"])
            leader = Leader(broker, "topic")
            leader.fetch([0, 1])
            leader.produce(0, -1, 1)  # teaches it where the partition is
            leader.fetch([0])
            for _ in range(TURNS):
                await asyncio.sleep(0)
            fast_paths, made = broker.listeners[0].fast_paths, []
            for key in (PRODUCE, FETCH):
                fast_paths[key] = partial(watched, fast_paths[key], made)
            for _ in range(3):
                leader.produce(0, -1, 1)
                leader.fetch([0])
            assert list(map(type, made)) == [FastDelayedProduce, FastDelayedFetch] * 3
            assert leader.state()[0] == (4, 4)
            assert len(leader.producer.wire.sent) == 4
        finally:
            await broker.stop()

    asyncio.run(scenario())
