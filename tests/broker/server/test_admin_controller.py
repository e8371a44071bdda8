"""The controller's driver over a real log: order, durability, publication, failure."""

import asyncio
import contextlib
import uuid

import pytest

from headrace_broker.metadata.brokers.registration import Registration, decide_register_broker
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import Endpoint
from headrace_broker.metadata.records import ConfigRecord
from headrace_broker.metadata.topics import decide_create_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.quorum.metadata_batches import encode_batch
from headrace_broker.server.quorum.metadata_quorum import Identity, MetadataQuorum
from headrace_broker.server.quorum.raft_log import BATCH_BYTES_MAX
from support.metadata import creatable, decide_unfence, seeded_rng


def _registration(incarnation=1, previous_epoch=-1):
    return Registration(
        node_id=NodeId(1),
        incarnation_id=uuid.UUID(int=incarnation),
        endpoints=[Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092)],
        rack=None,
        log_dirs=[uuid.UUID(int=4)],
        previous_broker_epoch=previous_epoch,
    )


async def _register(driver, incarnation, *, clean):
    """Register a broker and let it serve, as its lifecycle would."""
    known = driver.image.brokers.get(NodeId(1))
    previous = known.epoch if clean and known is not None else -1
    registration = _registration(incarnation, previous)
    epoch = await driver.submit(
        lambda image: decide_register_broker(image, registration, driver.policy)
    )
    await driver.submit(
        lambda image: decide_unfence(image, registration.node_id, epoch, driver.policy)
    )


@contextlib.asynccontextmanager
async def _controller(directory, *, subscriber=None, failures=None, incarnation=1, clean=True):
    config = parse_config(
        f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={directory}\n"
        "offsets.topic.num.partitions=3\n"
    )
    identity = Identity(directory_id=uuid.UUID(int=4), cluster_id="c", ports={})
    quorum = MetadataQuorum(
        config,
        identity,
        clock=SystemClock(),
        rng=seeded_rng(incarnation),
        on_failure=(failures if failures is not None else []).append,
    )
    if subscriber is not None:
        quorum.controller.subscribe(subscriber)
    quorum.start()
    await _register(quorum.controller, incarnation, clean=clean)
    try:
        yield quorum.controller
    finally:
        await quorum.close()


def _create(driver, *topics):
    request = CreateTopicsRequest(topics=list(topics))
    return driver.submit(
        lambda image: decide_create_topics(image, request, driver.policy, driver.rng)
    )


def test_the_image_after_a_restart_is_the_one_before(tmp_path):
    async def run():
        async with _controller(tmp_path) as driver:
            await _create(driver, creatable("a", 3, retention_ms="5"), creatable("b"))
            await driver.allocate_producer_ids()
            before = driver.image
        async with _controller(tmp_path, incarnation=1) as driver:
            after = driver.image
        assert after.topics == before.topics
        assert after.configs == before.configs
        assert after.brokers == before.brokers
        assert after.next_producer_id == before.next_producer_id == 1000
        assert after.offset == before.offset + 1  # the record that begins the new epoch

    asyncio.run(run())


def test_an_answer_comes_after_the_change_was_published(tmp_path):
    applied = []

    async def subscriber(delta, image):
        await asyncio.sleep(0.01)
        applied.extend(name for name in delta.topics_changed if name in image.topics)

    async def run():
        async with _controller(tmp_path, subscriber=subscriber) as driver:
            await _create(driver, creatable("t"))
            assert applied == ["t"]

    asyncio.run(run())


def test_a_refusal_comes_after_what_it_rests_on_was_published(tmp_path):
    """It would tell of a topic that may yet be lost with this controller."""

    async def run():
        async with _controller(tmp_path) as driver:
            first = asyncio.ensure_future(_create(driver, creatable("t")))

            async def again():
                response = await _create(driver, creatable("t"))
                return response.topics[0].error_code, "t" in driver.image.topics

            second = asyncio.ensure_future(again())
            assert await second == (ErrorCode.TOPIC_ALREADY_EXISTS, True)
            await first

    asyncio.run(run())


def test_a_controller_that_leads_again_knows_what_was_decided_meanwhile(tmp_path):
    """What it knew when it led before is over."""

    async def run():
        async with _controller(tmp_path) as driver:
            epoch = driver.epoch
            driver.lost_leadership(epoch)
            record = ConfigRecord(
                resource_type=2, resource_name="another's", name="retention.ms", value="7"
            )
            offset = driver._quorum.append(encode_batch([record], 0), epoch)
            driver.became_leader(epoch, offset)
            known = await driver.submit(lambda image: MetadataDecision(records=[], response=image))
            assert driver.image.configs
            assert known.configs == driver.image.configs

    asyncio.run(run())


def test_of_many_at_once_each_sees_what_came_before_it(tmp_path):
    deltas = []

    async def run():
        async with _controller(
            tmp_path, subscriber=lambda delta, _: deltas.append(delta)
        ) as driver:
            responses = await asyncio.gather(*(_create(driver, creatable("t")) for _ in range(50)))
            codes = [response.topics[0].error_code for response in responses]
            assert codes == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 49
            blocks = await asyncio.gather(*(driver.allocate_producer_ids() for _ in range(50)))
            assert [start for start, _ in blocks] == list(range(0, 50_000, 1000))

    asyncio.run(run())
    assert sum("t" in delta.topics_changed for delta in deltas) == 1


def test_the_decisions_of_one_round_share_one_publication(tmp_path):
    deltas = []

    async def run():
        async with _controller(
            tmp_path, subscriber=lambda delta, _: deltas.append(delta)
        ) as driver:
            deltas.clear()
            await asyncio.gather(*(_create(driver, creatable(f"t{n}")) for n in range(20)))

    asyncio.run(run())
    assert len(deltas) <= 2
    assert sum(len(delta.topics_changed) for delta in deltas) == 20


def test_a_decision_that_raises_changes_nothing_and_stops_nobody(tmp_path):
    def refuse(_):
        raise ApiError(ErrorCode.POLICY_VIOLATION, "no")

    async def run():
        async with _controller(tmp_path) as driver:
            offset = driver.image.offset
            with pytest.raises(ApiError, match="no"):
                await driver.submit(refuse)
            with pytest.raises(ZeroDivisionError):
                await driver.submit(lambda _: 1 // 0)
            assert driver.image.offset == offset
            await _create(driver, creatable("t"))

    asyncio.run(run())


def test_a_change_too_large_for_one_batch_is_refused_before_it_is_written(tmp_path):
    record = ConfigRecord(
        resource_type=2, resource_name="t", name="x", value="v" * (BATCH_BYTES_MAX + 1)
    )

    async def run():
        async with _controller(tmp_path) as driver:
            size = driver._quorum.log.size_bytes
            with pytest.raises(ApiError) as refused:
                await driver.submit(lambda _: MetadataDecision(records=[record], response=None))
            assert refused.value.code is ErrorCode.POLICY_VIOLATION
            assert driver._quorum.log.size_bytes == size

    asyncio.run(run())


def test_a_subscriber_that_fails_stops_the_controller_and_the_outcome_is_unknown(tmp_path):
    failures = []

    def subscriber(delta, _):
        if "t" in delta.topics_changed:
            raise OSError(28, "No space left on device")

    async def run():
        async with _controller(tmp_path, subscriber=subscriber, failures=failures) as driver:
            with pytest.raises(ApiError) as unknown:
                await _create(driver, creatable("t"))
            assert unknown.value.code is ErrorCode.REQUEST_TIMED_OUT
            with pytest.raises(ApiError) as refused:
                await _create(driver, creatable("u"))
            assert refused.value.code is ErrorCode.NOT_CONTROLLER

    asyncio.run(run())
    assert [str(failure) for failure in failures] == [
        "the metadata could not be applied: [Errno 28] No space left on device"
    ]


def test_a_torn_batch_at_the_logs_end_takes_its_whole_decision_away(tmp_path):
    async def run():
        async with _controller(tmp_path) as driver:
            await _create(driver, creatable("kept", 2))
            size = driver._quorum.log.size_bytes
            await _create(driver, creatable("torn", 50))
        path = next((tmp_path / "__cluster_metadata-0").glob("*.log"))
        data = path.read_bytes()
        path.write_bytes(data[: size + (len(data) - size) // 2])
        async with _controller(tmp_path, incarnation=2) as driver:
            assert list(driver.image.topics) == ["kept"]
            await _create(driver, creatable("torn", 1))

    asyncio.run(run())


def test_a_leader_that_registers_again_begins_a_new_leader_epoch(tmp_path):
    async def leader_epoch(incarnation):
        async with _controller(tmp_path, incarnation=incarnation) as driver:
            if incarnation == 1:
                await _create(driver, creatable("t"))
            partition = driver.image.partition("t", 0)
            assert (partition.leader, partition.isr) == (1, (1,))
            return partition.leader_epoch

    async def run():
        assert await leader_epoch(1) < await leader_epoch(2)

    asyncio.run(run())


def test_the_offsets_topic_is_made_once_compacted_and_with_the_configured_partitions(tmp_path):
    async def run():
        async with _controller(tmp_path) as driver:
            await asyncio.gather(
                *(driver.ensure_internal_topic("__consumer_offsets") for _ in range(5))
            )
            topic = driver.image.topics["__consumer_offsets"]
            assert (len(topic.partitions), topic.is_internal) == (3, True)
            (config,) = driver.image.configs.values()
            assert config == {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": "104857600",
            }

    asyncio.run(run())


def test_a_closed_controller_refuses(tmp_path):
    async def run():
        async with _controller(tmp_path) as driver:
            pass
        with pytest.raises(ApiError) as refused:
            await _create(driver, creatable("t"))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    asyncio.run(run())
