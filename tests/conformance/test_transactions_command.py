"""`headrace transactions` beside Kafka's `kafka-transactions`, on transactions that hang."""

import json
import os
import time
import uuid
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.produce.v9 import request as produce

from support.batches import BatchFields, NewRecord, build_batch
from support.command_line import run_headrace
from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KafkaPeer, run_tool
from support.wire import RawConnection

SECONDS = 60
TRANSACTIONAL = 0x10
HOUR_MS = 3_600_000
UNVERIFIED = {"transaction.partition.verification.enable": "false"}
SMALL = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    """A broker on which an old client can leave a transaction hanging."""
    directory = tmp_path_factory.mktemp("unverified")
    settings = UNVERIFIED | SMALL
    if os.environ.get("HEADRACE_CONFORMANCE_PEER") == "kafka":
        peer = KafkaPeer(directory, settings)
    else:
        peer = HeadraceBroker(directory, settings)
    with peer:
        yield peer.bootstrap


@pytest.fixture
def name():
    return f"app-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def headrace(bootstrap):
    def run(*arguments):
        return run_headrace("transactions", *arguments, "--bootstrap-server", bootstrap)

    return run


def good(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def open_transaction(bootstrap, topic, name):
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(SECONDS)
    return producer


def leave_hanging(bootstrap, topic, age_ms):
    """Write a transactional batch to a partition that the coordinator does not know of."""
    with RawConnection(bootstrap) as connection:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout=timedelta(seconds=60)
        )
        given = connection.call(request)
        fields = BatchFields(
            attributes=TRANSACTIONAL,
            base_timestamp=int(time.time() * 1000) - age_ms,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=0,
        )
        data = produce.PartitionProduceData(
            index=0, records=build_batch([NewRecord(value=b"hangs")], fields)
        )
        topics = (produce.TopicProduceData(name=topic, partition_data=(data,)),)
        answered = connection.call(
            produce.ProduceRequest(
                transactional_id="old-client",
                acks=-1,
                timeout=timedelta(seconds=10),
                topic_data=topics,
            )
        )
        (answer,) = answered.responses
        (partition,) = answer.partition_responses
        assert partition.error_code is ErrorCode.none, partition
        return given.producer_id


def committed_values(bootstrap, topic, count):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, 20)
    consumer.close()
    return [message.value() for message in messages]


def test_an_open_transaction_is_listed_described_and_aborted_by_its_id(
    bootstrap, new_topic, name, headrace
):
    topic = new_topic()
    producer = open_transaction(bootstrap, topic, name)
    (line,) = [
        line
        for line in good(headrace("list", "--pattern", "app-.*")).splitlines()
        if line.startswith(name)
    ]
    assert "Ongoing" in line
    assert name not in good(headrace("list", "--older-than", "10m"))
    listed = good(headrace("list", "--older-than", "0s"))
    assert name in listed
    assert "Empty" not in listed, "nothing is open there"
    assert name not in good(headrace("list", "--state", "Empty"))
    described = json.loads(good(headrace("describe", name, "-o", "json")))
    assert described["partitions"] == [{"topic": topic, "partition": 0}]
    assert name in good(headrace("list", "--producer-id", described["producerId"]))
    assert "dry run" in headrace("abort", name).stderr
    assert json.loads(good(headrace("describe", name, "-o", "json")))["state"] == "Ongoing"
    good(headrace("abort", name, "--execute"))
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    again = headrace("abort", name, "--execute")
    assert again.returncode == 1
    assert "has no transaction" in again.stderr


@pytest.mark.java
@pytest.mark.parametrize("finder", ["headrace", "kafka"])
def test_a_hanging_transaction_is_found_and_its_readers_go_on_after_the_abort(
    bootstrap, new_topic, name, headrace, finder
):
    topic = new_topic()
    producer_id = leave_hanging(bootstrap, topic, HOUR_MS)
    open_transaction(bootstrap, new_topic(), name)  # which must not be taken for one
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"waits", partition=0)
    plain.flush(SECONDS)

    def kafka(*arguments):
        return run_tool("transactions", "--bootstrap-server", bootstrap, *arguments)

    place = ["--topic", topic, "--partition", "0", "--start-offset", "0"]
    if finder == "kafka":
        found = kafka("find-hanging", "--topic", topic).splitlines()
        columns = dict(zip(found[0].split(), found[1].split(), strict=True))
        assert (columns["ProducerId"], columns["StartOffset"]) == (str(producer_id), "0")
        kafka("abort", *place)
        assert len(kafka("find-hanging", "--topic", topic).splitlines()) == 1
    else:
        (found,) = json.loads(good(headrace("list", "--hanging", "-o", "json")))["items"]
        assert (found["topic"], found["producerId"]) == (topic, producer_id)
        assert "dry run" in headrace("abort", *place).stderr
        good(headrace("abort", *place, "--execute"))
        assert json.loads(good(headrace("list", "--hanging", "-o", "json")))["items"] == []
    assert committed_values(bootstrap, topic, 1) == [b"waits"]


def test_a_marker_is_not_written_into_a_live_transaction_unless_forced(
    bootstrap, new_topic, name, headrace
):
    topic = new_topic()
    open_transaction(bootstrap, topic, name)
    place = ["--topic", topic, "--partition", 0, "--start-offset", 0]
    refused = headrace("abort", *place, "--execute")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    good(headrace("abort", *place, "--execute", "--force"))
    gone = headrace("abort", *place, "--execute")
    assert gone.returncode == 1
    assert "open: none" in gone.stderr


@pytest.mark.parametrize(
    ("wrong", "status", "said"),
    [
        (["describe", "nobody"], 1, "does not exist"),
        (["list", "--state", "Sleeping"], 2, "Sleeping"),
        (["list", "--hanging", "--pattern", "x"], 2, "--hanging"),
        (["list", "--pattern", "("], 2, "--pattern ("),
        (["abort"], 2, "--start-offset"),
        (["abort", "--topic", "t"], 2, "together"),
        (["abort", "--topic", "absent", "--partition", 0, "--start-offset", 0], 1, "absent"),
    ],
)
def test_a_mistake_is_reported(headrace, wrong, status, said):
    done = headrace(*wrong)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
