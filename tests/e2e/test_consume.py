"""`headrace consume` outlives what comes late, and reads every compression; so does `produce`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from support.command_line import run_headrace
from support.headrace_broker import HeadraceBroker
from support.processes import ManagedProcess, wait_until

pytestmark = pytest.mark.cluster

HEADRACE = str(Path(sys.executable).parent / "headrace")


def headrace(broker: HeadraceBroker, *arguments: str, stdin: str = "") -> str:
    done = run_headrace(*arguments, "--bootstrap-server", broker.bootstrap, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def consumer(broker: HeadraceBroker, log: Path) -> ManagedProcess:
    command = [HEADRACE, "consume", "late", "--follow", "--from", "earliest", "--group", "app"]
    return ManagedProcess([*command, "--bootstrap-server", broker.bootstrap], log)


def test_it_waits_for_brokers_and_for_its_topic(tmp_path: Path) -> None:
    broker = HeadraceBroker(tmp_path / "broker", {"auto.create.topics.enable": "false"})
    log = tmp_path / "consumer.log"
    reader = consumer(broker, log)
    try:
        wait_until(lambda: "no answer" in log.read_text() or not reader.is_running, 60)
        assert reader.is_running, log.read_text()
        with broker:
            wait_until(lambda: "does not exist" in log.read_text() or not reader.is_running, 60)
            assert reader.is_running, log.read_text()
            create_topic(broker, "late", partitions=6)
            records = [f"order-{number}" for number in range(20)]
            headrace(broker, "produce", "late", stdin="".join(f"{each}\n" for each in records))
            wait_until(lambda: set(records) <= set(log.read_text().split("\n")), 90, "the records")
            assert reader.is_running
    finally:
        reader.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceBroker]:
    with HeadraceBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_it_reads_what_another_client_has_packed(broker: HeadraceBroker, codec: str) -> None:
    topic = f"theirs-{codec}"
    create_topic(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
    wanted = [f"order {number} {'x' * 200}" for number in range(500)]
    for value in wanted:
        producer.produce(topic, value.encode())
    assert producer.flush(60) == 0
    assert headrace(broker, "consume", topic).splitlines() == wanted


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_others_read_what_produce_has_packed(broker: HeadraceBroker, codec: str) -> None:
    topic = f"ours-{codec}"
    create_topic(broker, topic, partitions=1)
    wanted = [f"order {number} {'x' * 200}" for number in range(500)]
    lines = "".join(f"{each}\n" for each in wanted)
    headrace(broker, "produce", topic, "--compression-type", codec, stdin=lines)
    size = (broker.log_directory / f"{topic}-0" / f"{0:020}.log").stat().st_size
    assert (size < len(lines) / 4) == (codec != "none"), size
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []

    def read() -> bool:
        found.extend(message.value().decode() for message in consumer.consume(500, 1))
        return len(found) >= len(wanted)

    try:
        wait_until(read, 60, "all records")
    finally:
        consumer.close()
    assert found == wanted


def create_topic(broker: HeadraceBroker, name: str, *, partitions: int) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        admin.close()


def test_read_committed_leaves_out_what_transactions_aborted_or_have_open(
    broker: HeadraceBroker,
) -> None:
    create_topic(broker, "whole", partitions=2)
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "job"}
    producer = Producer(settings)
    producer.init_transactions(60)
    for value in ("committed", "aborted", "open"):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("whole", value.encode(), partition=partition)
        assert producer.flush(60) == 0
        if value == "committed":
            producer.commit_transaction(60)
        elif value == "aborted":
            producer.abort_transaction(60)
    read = headrace(broker, "consume", "whole", "--isolation-level", "read_committed")
    assert read.splitlines() == ["committed"] * 2
    # As Kafka's tools do, where nothing is asked for.
    assert sorted(headrace(broker, "consume", "whole").splitlines()) == sorted(
        ["committed", "aborted", "open"] * 2
    )
    producer.abort_transaction(60)
    read = headrace(broker, "consume", "whole", "--isolation-level", "read_committed")
    assert read.splitlines() == ["committed"] * 2
