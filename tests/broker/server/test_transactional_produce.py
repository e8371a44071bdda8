"""A producer's requests are appended in their order, although the first waits for a coordinator."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.markers import Marker
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.verification import ONGOING, TRUSTED
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace_broker.protocol.types import ProducerEpoch
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.partitions.marker_writes import write_marker
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from headrace_broker.server.transactions.transactional_produce import (
    TransactionalProduce,
    admitted,
)
from support.log import START_MS, ManualClock

PRODUCER = 7


class Coordinator:
    """Answers when the test says so; each question has an answer of its own."""

    def __init__(self):
        self.turns = {}
        self.answers = []

    def ask(self, _name, _identity, partitions, _question):
        loop = asyncio.get_running_loop()
        asked = [loop.create_future() for _ in partitions]
        self.answers += asked
        return asked


def batch_of(sequence, epoch=0):
    return build_batch(
        [NewRecord(key=None, value=b"v", timestamp=START_MS)],
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def request_of(sequence):
    records = batch_of(sequence)
    data = PartitionProduceData(index=0, records=memoryview(records))
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(transactional_id="app", acks=-1, topic_data=[topic])


def test_a_request_that_finds_the_transaction_open_does_not_overtake_one_that_waits(tmp_path):
    async def run():
        log = PartitionLog.open(tmp_path, LogConfig(), clock=ManualClock())
        appended = []
        coordinator = Coordinator()
        values = {"transaction.partition.verification.enable": True}
        node = SimpleNamespace(
            clock=SystemClock(), config=SimpleNamespace(values=values), verifier=coordinator
        )
        partition = SimpleNamespace(topic="t", log=log, leading=object())
        running = []

        def arrive(sequence):
            request = request_of(sequence)
            produce = TransactionalProduce(node, 12, request)

            def append():
                (data,) = request.topic_data[0].partition_data
                admission = produce.admissions[id(data)]
                log.append_as_leader(data.records, 0, now_ms=START_MS, verification=admission)
                appended.append(sequence)

            if produce.begin(lambda _topic, _data: partition):
                append()
            else:
                produce.wait()
                running.append(asyncio.ensure_future(produce.finish(append)))
            return produce

        arrive(0)
        arrive(1)
        first, second = coordinator.answers
        first.set_result(ErrorCode.NONE)
        await asyncio.sleep(0.01)
        assert appended == [0]
        third = arrive(2)
        assert ONGOING in third.admissions.values(), "the transaction is open"
        await asyncio.sleep(0.01)
        assert appended == [0], "the second has to come first"
        second.set_result(ErrorCode.NONE)
        await asyncio.gather(*running)
        assert appended == [0, 1, 2]
        assert not coordinator.turns
        arrive(3)
        assert appended == [0, 1, 2, 3], "nobody waits: at once"
        log.abandon()

    asyncio.run(run())


def led(log):
    """Return a partition that is led here, as far as a marker asks."""

    def append(batch, _acks, now_ms, *, origin):
        return log.append_as_leader(batch, 0, now_ms=now_ms, origin=origin)

    return SimpleNamespace(log=log, check_leader=lambda _epoch: None, append=append)


def end_with(log, epoch, *, bumped):
    marker = Marker(
        producer_id=PRODUCER,
        producer_epoch=ProducerEpoch(epoch),
        coordinator_epoch=0,
        commits=True,
        bumped_epoch=bumped,
    )
    write_marker(led(log), marker, START_MS)


@pytest.mark.parametrize("wrote", [True, False])
def test_the_marker_of_a_transaction_leaves_the_question_of_the_next_one_alone(tmp_path, wrote):
    """EndTxn is answered before the markers are written: the next transaction may ask first."""
    log = PartitionLog.open(tmp_path, LogConfig(), clock=ManualClock())
    begin = partial(log.append_as_leader, leader_epoch=0, now_ms=START_MS)
    if wrote:
        begin(batch_of(0), verification=TRUSTED)
    asked = log.producers.verifications.ask(PRODUCER, 1, 0, START_MS)
    end_with(log, 1, bumped=True)
    begin(batch_of(0, epoch=1), verification=asked)
    assert log.producers.ongoing
    log.abandon()


@pytest.mark.parametrize(("epoch", "bumped"), [(0, False), (1, True)])
def test_a_marker_takes_back_what_its_own_transaction_asked(tmp_path, epoch, bumped):
    log = PartitionLog.open(tmp_path, LogConfig(), clock=ManualClock())
    asked = log.producers.verifications.ask(PRODUCER, 0, 0, START_MS)
    end_with(log, epoch, bumped=bumped)
    with pytest.raises(ApiError) as caught:
        log.append_as_leader(batch_of(0), 0, now_ms=START_MS, verification=asked)
    allowed = {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH}
    assert caught.value.code in allowed, "KAFKA-14884"
    log.abandon()


def test_what_follows_a_request_that_met_no_coordinator_is_sent_again_with_it(tmp_path):
    """A success, or a gap, would make librdkafka lose the first record or give the epoch up."""

    async def run():
        host = ReplicaHost(1)
        log = PartitionLog.open(tmp_path, LogConfig(), clock=ManualClock())
        partition = Partition("t", None, 0, log, host)
        image = PartitionImage(leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
        partition.apply(image, 1)
        coordinator = Coordinator()
        values = {"transaction.partition.verification.enable": True}
        node = SimpleNamespace(
            clock=SystemClock(), config=SimpleNamespace(values=values), verifier=coordinator
        )

        async def arrive(sequence, answer):
            request = request_of(sequence)
            produce = TransactionalProduce(node, 12, request)
            assert not produce.begin(lambda _topic, _data: partition)
            produce.wait()

            def append():
                (data,) = request.topic_data[0].partition_data
                admission = admitted(produce.admissions, data)
                return partition.append(data.records, -1, START_MS, admission)

            coordinator.answers[-1].set_result(answer)
            try:
                await produce.finish(append)
            except ApiError as error:
                return error.code
            return ErrorCode.NONE

        codes = [
            await arrive(0, ErrorCode.COORDINATOR_NOT_AVAILABLE),
            await arrive(1, ErrorCode.NONE),
            await arrive(0, ErrorCode.NONE),
        ]
        assert codes == [
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NONE,
        ]
        log.abandon()

    asyncio.run(run())
