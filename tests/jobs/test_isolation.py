"""A job reads what is committed: an exactly-once job's topic has batches that were aborted."""

import uuid
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from headrace_jobs.jobs.replay_late import _whole_input
from headrace_jobs.progress.group import GroupClient
from headrace_jobs.sources.kafka import KafkaSource, read_stream


@pytest.fixture
def topic(broker, new_topic):
    """Records `good` of two transactions, `bad` of two that were aborted, `open` of another."""
    name = new_topic(1)
    settings = {"bootstrap.servers": broker.bootstrap}
    producer = Producer(settings | {"transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    for value in ("good", "bad", "good", "bad"):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(name, value)
        assert producer.flush(30) == 0
        (producer.commit_transaction if value == "good" else producer.abort_transaction)(30)
    producer.begin_transaction()
    producer.produce(name, "open")
    assert producer.flush(30) == 0
    yield name
    producer.abort_transaction(30)


def values(frame):
    return [bytes(row.value).decode() for row in frame.select("value").collect()]


@pytest.mark.spark
def test_a_query_reads_no_record_of_an_aborted_transaction(spark, broker, topic, tmp_path):
    source = KafkaSource(bootstrap_servers=broker.bootstrap, topic=topic)
    found = []
    query = (
        read_stream(spark, source)
        .writeStream.foreachBatch(lambda batch, _: found.extend(values(batch)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert found == ["good"] * 6


@pytest.mark.spark
def test_late_records_results_are_of_no_record_of_an_aborted_transaction(spark, broker, topic):
    settings = SimpleNamespace(
        bootstrap_servers=broker.bootstrap, input_topics=(topic,), fail_on_data_loss=True
    )
    client = GroupClient(broker.bootstrap, client_id="tests")
    try:
        assert values(_whole_input(spark, settings, client)) == ["good"] * 6
    finally:
        client.close()
