"""The writer of dead letters: which of its records it waits for, which are gone, who took them."""

import asyncio
from types import SimpleNamespace

import pytest

from headrace_broker.coordinator.share_partition.partition import DeadLetter, ShareLimits
from headrace_broker.protocol.batch import iterate_records
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace_broker.server.shares import dead_letters
from headrace_broker.server.shares.dead_letters import DeadLetterWriter
from headrace_broker.server.shares.share_settings import ShareSettings
from support.log import ManualClock, batch_of

TOPIC = "dlq.t"
LETTERS = [DeadLetter(first=0, last=0, count=1, is_rejected=True)]


class Source:
    """A partition with one record, whose reads are refused at first."""

    topic, index = "t", 0

    def __init__(self, *refusals):
        self.refusals = list(refusals)

    def readable_end(self, _isolation):
        return 1

    def read(self, *_where, **_how):
        if self.refusals:
            raise ApiError(self.refusals.pop(0))
        return batch_of(b"a")


class Peers:
    """The leader of the dead-letter topic, which takes everything, once it has refused this."""

    def __init__(self, *refusals):
        self.refusals = list(refusals)
        self.values = []

    async def send(self, _leader, request, **_how):
        if self.refusals:
            refused = PartitionProduceResponse(error_code=self.refusals.pop(0))
            topic = TopicProduceResponse(partition_responses=[refused])
            return ProduceResponse(responses=[topic])
        batch = request.topic_data[0].partition_data[0].records
        self.values += [record.value for record in iterate_records(batch, 0)]
        taken = TopicProduceResponse(partition_responses=[PartitionProduceResponse()])
        return ProduceResponse(responses=[taken])


def write(source, *refusals):
    """Write the letter of the source's record; return the values of the letters that were taken."""
    peers = Peers(*refusals)
    values = {
        dead_letters.DEAD_LETTER_AUTO_CREATE: False,
        "errors.deadletterqueue.topic.name.prefix": "dlq.",
    }
    topic = SimpleNamespace(name=TOPIC, topic_id=None, partitions={0: SimpleNamespace(leader=2)})
    config = {dead_letters.ALLOWED: True, "max.message.bytes": 1_000_000}
    node = SimpleNamespace(
        config=SimpleNamespace(node_id=1, values=values),
        clock=ManualClock(),
        peers=peers,
        replicas=SimpleNamespace(effective_config=lambda _topic: config),
        metadata=SimpleNamespace(topics={TOPIC: topic}),
    )
    settings = ShareSettings(
        limits=ShareLimits(deliveries_max=5, locks_max=10, lock_ms=1000, has_dead_letters=True),
        dead_letter_topic=TOPIC,
        copies_records=True,
    )
    writer = DeadLetterWriter(node, lambda _group: settings)
    assert asyncio.run(asyncio.wait_for(writer.write("g", source, LETTERS), 30))
    return peers.values


def test_a_letter_waits_for_a_record_that_the_disk_refuses():
    # Its directory failed, or descriptors are short: a later read, or another replica, has it.
    assert write(Source(ErrorCode.KAFKA_STORAGE_ERROR)) == [b"a"]


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE])
def test_a_record_that_is_gone_leaves_a_letter_without_it(code):
    assert write(Source(code)) == [None]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
)
def test_a_letter_that_its_leader_refuses_is_written_again(code):
    assert write(Source(), code) == [b"a"]
