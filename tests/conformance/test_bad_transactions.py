"""Transactional requests that no good client sends: typed errors, and nobody else is disturbed.

`HEADRACE_CONFORMANCE_PEER=kafka` says what Apache Kafka answers to the same.
"""

import uuid
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from kio.schema.add_partitions_to_txn.v3.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.produce.v12.request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

from support.batches import BatchFields, NewRecord, build_batch
from support.headrace_broker import HeadraceBroker
from support.processes import wait_until
from support.wire import RawConnection

SECONDS = 30
WAIT = {"coordinator_load_in_progress", "coordinator_not_available", "not_coordinator"}


@pytest.fixture
def connection(bootstrap):
    with RawConnection(bootstrap, SECONDS) as opened:
        yield opened


def init(connection, name, producer=(-1, -1), timeout_ms=60_000):
    """Return the error's name, the producer id and its epoch."""
    if name is not None:
        connection.call(FindCoordinatorRequest(key_type=1, coordinator_keys=(name,)))
    request = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout=timedelta(milliseconds=timeout_ms),
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    answers = []

    def is_loaded():
        answers.append(connection.call(request))
        return answers[-1].error_code.name not in WAIT

    wait_until(is_loaded, SECONDS, "a coordinator")
    return answers[-1].error_code.name, answers[-1].producer_id, answers[-1].producer_epoch


def end(connection, name, producer_id, epoch):
    request = EndTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
    )
    return connection.call(request).error_code.name


def add(connection, name, producer_id, epoch, topic):
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=(AddPartitionsToTxnTopic(name=topic, partitions=(0,)),),
    )
    answer = connection.call(request)
    (result,) = answer.results_by_topic_v3_and_below
    (partition,) = result.results_by_partition
    return partition.partition_error_code.name


@pytest.fixture
def name():
    return f"bad-{uuid.uuid4().hex[:8]}"


def test_an_id_of_another_cluster_is_answered_so(connection, new_topic, name):
    topic = new_topic()
    error, producer_id, epoch = init(connection, name)
    assert error == "none"
    assert end(connection, f"{name}-elsewhere", 4711, 3) == "invalid_producer_id_mapping"
    assert add(connection, f"{name}-elsewhere", 4711, 3, topic) == "invalid_producer_id_mapping"
    assert end(connection, name, producer_id + 4711, epoch) == "invalid_producer_id_mapping"
    assert add(connection, name, producer_id + 4711, epoch, topic) == "invalid_producer_id_mapping"
    assert init(connection, name, (producer_id + 4711, epoch))[0] == "producer_fenced"
    assert add(connection, name, producer_id, epoch, topic) == "none", "its own producer goes on"


def test_an_epoch_from_the_future_is_fenced(connection, new_topic, name):
    topic = new_topic()
    _, producer_id, epoch = init(connection, name)
    assert end(connection, name, producer_id, epoch + 9) == "producer_fenced"
    assert add(connection, name, producer_id, epoch + 9, topic) == "producer_fenced"
    assert init(connection, name, (producer_id, epoch + 9))[0] == "producer_fenced"
    assert add(connection, name, producer_id, epoch, topic) == "none"


def produce(connection, name, producer_id, epoch, topic, sequence=0):
    """Send one transactional record by Produce 12, which begins the transaction by itself."""
    fields = BatchFields(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, attributes=0x10
    )
    data = PartitionProduceData(index=0, records=build_batch([NewRecord(value=b"value")], fields))
    request = ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout=timedelta(seconds=SECONDS),
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )
    (answer,) = connection.call(request).responses
    return answer.partition_responses[0].error_code.name


def test_a_write_of_an_epoch_from_the_future_keeps_nobody_out(connection, new_topic, name):
    topic = new_topic()
    _, producer_id, epoch = init(connection, name)
    assert produce(connection, name, producer_id, epoch + 3, topic) == "invalid_producer_epoch"
    assert produce(connection, name, producer_id, epoch, topic) == "none"
    assert produce(connection, name, producer_id, epoch + 3, topic) == "invalid_producer_epoch"
    assert produce(connection, name, producer_id, epoch, topic, sequence=1) == "none"
    assert end(connection, name, producer_id, epoch) == "none"


def commit_offsets(connection, name, producer_id, epoch, topic, group):
    connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=(group or "any",)))
    position = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    request = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(position,)),),
    )
    answers = []

    def is_loaded():
        answers.append(connection.call(request).topics[0].partitions[0].error_code.name)
        return answers[-1] not in WAIT

    wait_until(is_loaded, SECONDS, "a coordinator")
    return answers[-1]


def test_offsets_of_an_epoch_from_the_future_keep_nobody_out(connection, new_topic, name):
    topic, group = new_topic(), f"group-of-{name}"
    _, producer_id, epoch = init(connection, name)
    refused = commit_offsets(connection, name, producer_id, epoch + 3, topic, group)
    assert refused == "invalid_producer_epoch"
    assert commit_offsets(connection, name, producer_id, epoch, topic, group) == "none"
    assert end(connection, name, producer_id, epoch) == "none"


def test_offsets_need_a_group_and_an_epoch(connection, new_topic, name):
    topic = new_topic()
    _, producer_id, epoch = init(connection, name)
    found = commit_offsets(connection, name, producer_id, epoch, topic, "")
    assert found == "invalid_group_id"
    found = commit_offsets(connection, name, producer_id, -1, topic, "group")
    assert found == "invalid_producer_epoch"


@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
def test_a_client_adds_no_topic_of_the_clusters_own(connection, new_topic, name, internal):
    topic = new_topic()
    _, producer_id, epoch = init(connection, name)
    # Both topics are there once somebody has committed in a transaction.
    commit_offsets(connection, name, producer_id, epoch, topic, "group")
    assert add(connection, name, producer_id, epoch, internal) == "topic_authorization_failed"


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_half_an_identity_is_refused(connection, name, producer_id, epoch):
    assert init(connection, None, (producer_id, epoch))[0] == "invalid_request"
    assert init(connection, name, (producer_id, epoch))[0] == "invalid_request"


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001, 2**31 - 1])
def test_an_impossible_timeout_is_refused(connection, name, timeout_ms):
    assert init(connection, name, timeout_ms=timeout_ms)[0] == "invalid_transaction_timeout"
    assert init(connection, name, timeout_ms=900_000)[0] == "none"


def test_more_ids_than_allowed_are_refused_until_some_expire(tmp_path):
    settings = {
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "headrace.max.transactional.ids": "5",
        "transactional.id.expiration.ms": "3000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with HeadraceBroker(tmp_path, settings) as broker, RawConnection(broker.bootstrap) as opened:
        said = [init(opened, f"id-{number}")[0] for number in range(200)]
        assert said.count("none") >= 5
        assert set(said) == {"none", "policy_violation"}
        wait_until(lambda: init(opened, "late")[0] == "none", SECONDS, "room for one more")
        # Whoever has no id is not disturbed meanwhile.
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("plain", b"value")
        assert producer.flush(SECONDS) == 0
