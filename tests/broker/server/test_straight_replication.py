"""The short paths of acks=all say to producers and followers, byte for byte, what the long do."""

import asyncio
import random
import struct
from dataclasses import replace
from functools import partial
from uuid import UUID

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
from headrace_broker.server.config import parse_config
from headrace_broker.server.connection import Connection

NOW_MS = 1_763_700_000_000
FOLLOWER, FOLLOWER_EPOCH = 2, 50
PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 11, 18
TURNS = 6  # of the event loop, after which everything is said that no timer waits for


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.sent = []

    def write(self, data):
        self.sent.append(bytes(data))

    def writelines(self, parts):
        self.sent.append(b"".join(parts))

    def get_extra_info(self, _):
        return ("127.0.0.1", 1)

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
        body = struct.pack(">hhihB", key, version, self.correlation_id, 0, 0)
        body += encode_bytes(request, version) + tail
        frame = struct.pack(">i", len(body)) + body
        self.connection.get_buffer(len(frame))[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))


class StoppableLoop(asyncio.SelectorEventLoop):
    """Its time stands still while a test acts, so that no timer is due by chance."""

    stopped_at = None

    def time(self):
        return super().time() if self.stopped_at is None else self.stopped_at


class Leader:
    """A broker that leads both partitions of a topic; the test is their follower."""

    def __init__(self, broker, *, is_straight):
        self.broker = broker
        if not is_straight:
            broker.listeners[0].straight.clear()
        self.topic = broker.metadata.topics["topic"]
        self.partitions = [broker.replicas.partition("topic", index) for index in (0, 1)]
        self.epoch = self.partitions[0].leader_epoch
        self.producer, self.follower = Client(broker), Client(broker)
        self.sequence = 0
        self.session, self.session_epoch = 0, 0
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
            topic_data=[TopicProduceData(name="topic", partition_data=data)],
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

    def state(self):
        return [
            (partition.log.log_end_offset, partition.high_watermark)
            for partition in self.partitions
        ]


async def act_out(path, actions, *, is_straight):
    """Return all that was sent, action by action, and where the partitions ended up."""
    text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={path}\nnum.partitions=2\n"
    # Both name the same leader to those whom they send away.
    text += "advertised.listeners=PLAINTEXT://127.0.0.1:9092\n"
    broker = Broker(parse_config(text), chance=random.Random(5), on_failure=print)
    await broker.start()
    try:
        await broker.controller.auto_create_topics(["topic"])
        leader = Leader(broker, is_straight=is_straight)
        seen = []
        loop = asyncio.get_running_loop()
        loop.stopped_at = loop.time()
        leader.fetch([0, 1])
        for name, arguments in actions:
            if name == "wait":
                loop.stopped_at += arguments[0]
            else:
                getattr(leader, name)(*arguments)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            seen.append(
                (len(leader.producer.wire.sent), len(leader.follower.wire.sent), leader.state())
            )
        for client in (leader.producer, leader.follower):
            client.connection.connection_lost(None)
        loop.stopped_at = None
        sent = [b"".join(client.wire.sent) for client in (leader.producer, leader.follower)]
        return seen, sent, leader.topic.topic_id
    finally:
        await broker.stop()


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


@settings(max_examples=12, deadline=None, print_blob=True)
@given(actions=st.lists(ACTION, max_size=15).map(lambda drawn: [*ROUND, *drawn, *ROUND]))
def test_both_paths_say_the_same_to_producers_and_followers(tmp_path_factory, actions):
    said = []
    for is_straight in (True, False):
        path = tmp_path_factory.mktemp("straight")
        with asyncio.Runner(loop_factory=StoppableLoop) as runner:
            said.append(runner.run(act_out(path, actions, is_straight=is_straight)))
    straight, general = said
    assert straight == general


def watched(straight, made, *arguments):
    answer = straight(*arguments)
    made.append(answer)
    return answer


def test_a_write_and_its_fetches_take_the_short_paths(tmp_path):
    async def scenario():
        text = f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}\n"
        broker = Broker(parse_config(text + "num.partitions=2\n"), on_failure=print)
        await broker.start()
        try:
            await broker.controller.auto_create_topics(["topic"])
            leader = Leader(broker, is_straight=True)
            leader.fetch([0, 1])
            leader.produce(0, -1, 1)  # teaches it where the partition is
            leader.fetch([0])
            for _ in range(TURNS):
                await asyncio.sleep(0)
            straight, made = broker.listeners[0].straight, []
            for key in (PRODUCE, FETCH):
                straight[key] = partial(watched, straight[key], made)
            for _ in range(3):
                leader.produce(0, -1, 1)
                leader.fetch([0])
            assert [type(answer).__name__ for answer in made] == ["CommitSlot", "FollowerSlot"] * 3
            assert leader.state()[0] == (4, 4)
            assert len(leader.producer.wire.sent) == 4
        finally:
            await broker.stop()

    asyncio.run(scenario())
