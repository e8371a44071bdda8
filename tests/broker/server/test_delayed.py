"""Delayed operations are answered once, each in its place, and one's trouble is no other's."""

import asyncio

import pytest

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace_broker.server.network.delayed import DelayedOperation, Purgatory
from support.delayed import KeptAnswers
from support.waiting import until

VERSION = 12
ANSWER = ProduceResponse(responses=[])
WRONG = ProduceResponse(
    responses=[TopicProduceResponse(partition_responses=[PartitionProduceResponse(index="x")])]
)


class Expiring(DelayedOperation):
    """Counts how often its time was over."""

    __slots__ = ("expired", "trouble")

    def __init__(self, trouble=None):
        super().__init__(VERSION, 1)
        self.expired, self.trouble = 0, trouble

    def expire(self):
        self.expired += 1
        if self.trouble is not None:
            raise self.trouble
        if self.complete():
            self.send(ANSWER)


@pytest.fixture
def connection():
    return KeptAnswers(ApiKey.PRODUCE)


def test_what_is_complete_does_not_expire(connection):
    async def scenario():
        purgatory = Purgatory()
        first, second = connection.admit(Expiring()), connection.admit(Expiring())
        for operation in (first, second):
            operation.delay(purgatory, 20)
        assert first.complete()
        first.send(ANSWER)
        assert not first.complete()
        await until(lambda: second.expired)
        assert (first.expired, second.expired) == (0, 1)
        assert connection.settled == [first, second]

    asyncio.run(scenario())


def test_an_operation_that_cannot_expire_ends_its_own_connection_only(connection):
    async def scenario():
        purgatory, trouble = Purgatory(), RuntimeError("a bug")
        bad, good = connection.admit(Expiring(trouble)), connection.admit(Expiring())
        for operation in (bad, good):
            operation.delay(purgatory, 20)
        await until(lambda: good.expired)
        assert connection.failed == [(bad, trouble)]
        assert connection.settled == [good]
        later = connection.admit(Expiring())
        later.delay(purgatory, 20)
        await until(lambda: later.expired)

    asyncio.run(scenario())


def test_an_answer_that_cannot_be_encoded_is_no_trouble_of_who_completes_it(connection):
    operation = connection.admit(Expiring())
    operation.send(WRONG)
    assert [failed for failed, _ in connection.failed] == [operation]
    assert not connection.settled


def test_an_answer_that_is_there_before_its_place_is_sent_when_the_place_is(connection):
    operation = Expiring()
    operation.send(ANSWER)
    connection.admit(operation)
    assert connection.settled == [operation]
    assert operation.parts


def test_who_is_gone_is_not_answered(connection):
    operation = connection.admit(Expiring())
    operation.abandon()
    operation.send(ANSWER)
    operation.fail(RuntimeError())
    assert not connection.settled
    assert not connection.failed
