"""kill -9 in the middle of work: what was acknowledged is there once, in order, after the restart.

`HEADRACE_FAULTS_RECORDS` sets how many records the streams have (`make faults`: a million).
"""

import json
import os
import random
import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic

from support.kafka_peer import run_tool, start_tool
from support.processes import wait_until
from support.wire import RawConnection

_RECORDS = int(os.environ.get("HEADRACE_FAULTS_RECORDS", "200000"))
_SECONDS = 240
_TOPIC = "killed"
_NOT_YET = (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)


def _read_all(bootstrap: str, partition: int = 0) -> list[bytes]:
    """Every value of a partition, by offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False}
    )
    try:
        place = TopicPartition(_TOPIC, partition, 0)
        # A broker answers before its partitions have leaders again.
        ends: list[int] = []

        def is_led() -> bool:
            with suppress(KafkaException):
                ends.append(consumer.get_watermark_offsets(place, timeout=30)[1])
            return bool(ends)

        wait_until(is_led, 30, "the partition to have a leader")
        end = ends[-1]
        consumer.assign([place])
        values: list[bytes] = []
        while len(values) < end:
            messages = consumer.consume(min(10_000, end - len(values)), timeout=30)
            assert messages, f"{len(values)} of {end} records came"
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                assert message.offset() == len(values), "offsets are dense"
                values.append(message.value())
        return values
    finally:
        consumer.close()


def _assert_once_in_order(values: list[bytes], acknowledged: set[int]) -> None:
    numbers = [int(value) for value in values]
    missing = acknowledged.difference(numbers)
    assert not missing, f"{len(missing)} acknowledged records are lost, such as {min(missing)}"
    assert len(set(numbers)) == len(numbers), "a record is there twice"
    assert numbers == sorted(numbers), "the order changed"


def _kill_and_restart(broker, rng: random.Random) -> None:
    broker.kill()
    time.sleep(rng.uniform(0, 0.5))
    broker.restart()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_idempotent_producers_acknowledged_records_survive_kills(broker, create_topic):
    """confluent-kafka, acks=all, five requests in flight; three kills at random moments."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - a failure is replayed by it
    rng = random.Random(seed)
    create_topic(broker.bootstrap, _TOPIC)
    acknowledged: set[int] = set()
    failed: list[str] = []

    def delivered(error, message):
        if error is None:
            acknowledged.add(int(message.value()))
        else:
            failed.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "delivery.timeout.ms": 120_000,
            "queue.buffering.max.messages": 20_000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    kills_at = sorted(rng.randrange(_RECORDS // 20, _RECORDS * 19 // 20) for _ in range(3))
    for number in range(_RECORDS):
        while True:
            try:
                producer.produce(_TOPIC, b"%d" % number, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        if kills_at and number == kills_at[0]:
            kills_at.pop(0)
            _kill_and_restart(broker, rng)
    assert producer.flush(_SECONDS) == 0

    assert failed == []
    assert len(acknowledged) == _RECORDS
    values = _read_all(broker.bootstrap)
    _assert_once_in_order(values, acknowledged)
    assert len(values) == _RECORDS


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(1200)
def test_javas_verifiable_producers_acknowledged_records_survive_a_kill(
    broker, create_topic, tmp_path
):
    create_topic(broker.bootstrap, _TOPIC)
    log = tmp_path / "producer.log"
    config = tmp_path / "producer.properties"
    # The tool's own default is no retries at all.
    settings = ["enable.idempotence=true", "retries=2147483647", "delivery.timeout.ms=120000"]
    config.write_text("\n".join(settings))
    where = ["--bootstrap-server", broker.bootstrap, "--topic", _TOPIC, "--acks", "-1"]
    counts = ["--max-messages", str(_RECORDS), "--command-config", str(config)]
    producer = start_tool("verifiable-producer", log, *where, *counts)
    try:
        # An event takes about 150 bytes.
        wait_until(lambda: log.stat().st_size > _RECORDS * 15, 60, "the first tenth")
        broker.kill()
        broker.restart()
        wait_until(lambda: not producer.is_running, _SECONDS, "the end of the producer")
    finally:
        producer.stop()
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    acknowledged = {int(e["value"]) for e in events if e["name"] == "producer_send_success"}
    failed = [event for event in events if event["name"] == "producer_send_error"]
    assert failed == []
    assert len(acknowledged) == _RECORDS
    _assert_once_in_order(_read_all(broker.bootstrap), acknowledged)


@pytest.mark.slow
def test_a_reader_of_many_batches_goes_on_after_a_kill(broker, create_topic):
    create_topic(broker.bootstrap, _TOPIC)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
    for number in range(20_000):
        producer.produce(_TOPIC, b"%d" % number)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "fetch.message.max.bytes": 8192,
            "queued.max.messages.kbytes": 64,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    numbers: list[int] = []
    killed = False
    deadline = time.monotonic() + 60
    while len(numbers) < 20_000 and time.monotonic() < deadline:
        messages = consumer.consume(100, timeout=1)
        numbers += [int(message.value()) for message in messages if message.error() is None]
        if not killed and len(numbers) > 5000:
            broker.kill()
            broker.restart()
            killed = True
    consumer.close()
    assert numbers == list(range(20_000))


def _commit(connection: RawConnection, group: str, partition: int, offset: int) -> None:
    """Commit once, outside any generation; retry only while the coordinator is not there yet."""
    committed = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=f"at {offset}"
    )
    topic = OffsetCommitRequestTopic(name=_TOPIC, partitions=(committed,))
    request = OffsetCommitRequest(group_id=group, member_id="", topics=(topic,))
    for _ in range(100):
        code = connection.call(request).topics[0].partitions[0].error_code
        if code is ErrorCode.none:
            return
        assert code in _NOT_YET, code
        time.sleep(0.1)
    raise AssertionError("the coordinator never came")


def _committed(
    bootstrap: str, group: str, partitions: tuple[int, ...]
) -> dict[int, tuple[int, str | None]]:
    """Return offset and metadata by partition, asked for byte by byte.

    The admin client of confluent-kafka 2.16 reads metadata up to a zero byte that may be missing.
    """
    topic = OffsetFetchRequestTopic(name=_TOPIC, partition_indexes=partitions)
    request = OffsetFetchRequest(group_id=group, topics=(topic,))
    for _ in range(300):
        with RawConnection(bootstrap) as connection:
            response = connection.call(request)
        if response.error_code is ErrorCode.none:
            places = response.topics[0].partitions
            assert {place.error_code for place in places} == {ErrorCode.none}
            return {
                place.partition_index: (place.committed_offset, place.metadata) for place in places
            }
        assert response.error_code in _NOT_YET, response.error_code
        time.sleep(0.1)
    raise AssertionError("the coordinator never came")


def test_committed_offsets_survive_a_kill_while_committing(broker, create_topic):
    """Whatever commit was answered last is what the group finds, with its metadata."""
    create_topic(broker.bootstrap, _TOPIC, partitions=3)
    answered = dict.fromkeys(range(3), -1)
    asked = dict(answered)
    first = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "committers"})
    first.committed([TopicPartition(_TOPIC, 0)], 30)  # who looks for a coordinator creates it
    first.close()
    with RawConnection(broker.bootstrap) as connection:
        killer = threading.Timer(1.0, broker.kill)
        killer.start()
        with suppress(ConnectionError):  # the commit that the kill interrupts
            for offset in range(1_000_000):
                partition = offset % 3
                asked[partition] = offset
                _commit(connection, "committers", partition, offset)
                answered[partition] = offset
        killer.join()
    broker.restart()

    found = _committed(broker.bootstrap, "committers", tuple(answered))
    assert min(answered.values()) > 0, "the kill came before the first commits"
    for partition, (offset, metadata) in found.items():
        assert offset in (answered[partition], asked[partition])
        assert metadata == f"at {offset}"


def test_topics_and_settings_survive_a_kill(broker, create_topic):
    create_topic(broker.bootstrap, _TOPIC, partitions=4, **{"retention.ms": "123456789"})
    create_topic(broker.bootstrap, "deleted")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["deleted"])["deleted"].result(30)
    broker.kill()
    broker.restart()
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    assert len(topics[_TOPIC].partitions) == 4
    assert "deleted" not in topics
    where = ["--bootstrap-server", broker.bootstrap, "--entity-type", "topics"]
    assert "retention.ms=123456789" in run_tool(
        "configs", *where, "--entity-name", _TOPIC, "--describe"
    )


def test_a_second_kill_during_recovery_loses_nothing(broker, create_topic):
    create_topic(broker.bootstrap, _TOPIC)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(20_000):
        producer.produce(_TOPIC, b"%d" % number)
    assert producer.flush(60) == 0
    for _ in range(3):
        broker.kill()
        broker.restart()
    values = _read_all(broker.bootstrap)
    _assert_once_in_order(values, set(range(20_000)))
