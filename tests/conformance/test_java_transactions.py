"""Kafka's own client and tools, with transactions whose epoch moves each time (KIP-890)."""

import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.kafka_peer import run_tool, start_tool
from support.processes import wait_until

pytestmark = pytest.mark.java
SECONDS = 30


@pytest.fixture
def name():
    return f"java-{uuid.uuid4().hex[:8]}"


def test_a_java_producer_commits_many_transactions_and_a_java_consumer_reads_them(
    bootstrap, new_topic, name, peer
):
    topic = new_topic(2)
    where = ["--bootstrap-server", bootstrap, "--topic", topic]
    sizes = ["--num-records", "20000", "--record-size", "100", "--throughput", "20000"]
    how = ["--transactional-id", name, "--transaction-duration-ms", "20"]
    printed = run_tool("producer-perf", *where, *sizes, *how)
    assert "20000 records sent" in printed
    show = ["--from-beginning", "--max-messages", "20000", "--isolation-level", "read_committed"]
    assert (
        len(run_tool("console-consumer", *where, *show, "--timeout-ms", "30000").splitlines())
        == 20_000
    )
    logs = sorted(peer.log_directory.glob("__transaction_state-*/*.log"))
    written = [str(path) for path in logs if path.stat().st_size]
    dumped = run_tool(
        "dump-log", "--transaction-log-decoder", "--print-data-log", "--files", ",".join(written)
    )
    states = [line for line in dumped.splitlines() if f'"transactionalId":"{name}"' in line]
    assert len(states) > 20
    assert any('"transactionStatus":4' in line for line in states), "CompleteCommit"


def test_the_transactions_tool_lists_describes_and_aborts(bootstrap, new_topic, name):
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"hangs", partition=0)
    producer.flush(SECONDS)

    def tool(*arguments):
        return run_tool("transactions", "--bootstrap-server", bootstrap, *arguments)

    assert any(name in line and "Ongoing" in line for line in tool("list").splitlines())
    assert name not in tool("list", "--duration-filter", "600000")
    assert name in tool("list", "--transactional-id-pattern", "java-.*")
    described = tool("describe", "--transactional-id", name)
    assert f"{topic}-0" in described
    producers = tool("describe-producers", "--topic", topic, "--partition", "0").splitlines()
    columns = dict(zip(producers[0].split(), producers[1].split(), strict=True))
    assert columns["CurrentTransactionStartOffset"] == "0"
    tool("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
    consumer.close()
    assert (low, high) == (0, 2), "the record and its marker"


@pytest.mark.parametrize(
    "mode", [[], ["--group-mode", "--use-group-metadata"]], ids=["own", "group"]
)
def test_kafkas_message_copier_copies_each_record_once_though_it_is_killed(
    bootstrap, new_topic, name, tmp_path, mode
):
    source, target, count = new_topic(), new_topic(), 3000
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(source, str(number).encode(), partition=0)
    assert producer.flush(SECONDS) == 0
    options = ["--broker-list", bootstrap, "--input-topic", source, "--input-partition", "0"]
    options += ["--output-topic", target, "--transactional-id", name, "--consumer-group", name]
    # In its own mode it asks for its position before it ends the transaction of the one before it:
    # offsets that are pending there are waited for until that transaction is out of time.
    options += ["--transaction-timeout", "10000"]
    options += ["--transaction-size", "30", "--enable-random-aborts", *mode]
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{name}-reader",
            "isolation.level": "read_committed",
        }
    )
    reader.assign([TopicPartition(target, 0, 0)])
    copied = []

    def has_copied(wanted, copier):
        for message in reader.consume(1000, 0.2):
            assert message.error() is None, message.error()
            copied.append(int(message.value()))
        return len(copied) >= wanted or not copier.is_running

    try:
        for wanted in (count // 10, count // 3, count):
            copier = start_tool("message-copier", tmp_path / "copier.log", *options)
            wait_until(lambda n=wanted, c=copier: has_copied(n, c), 4 * SECONDS, f"{wanted} copies")
            assert len(copied) >= wanted, copier.output_tail()
            copier.kill()
        assert reader.consume(1, 2) == [], "nothing comes after that"
    finally:
        reader.close()
    assert copied == list(range(count))
