"""The HTTP side of a real broker, read by prometheus-client's own parser."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.metadata.v4.request import MetadataRequest, MetadataRequestTopic
from kio.schema.produce.v9 import request as produce
from prometheus_client.parser import text_string_to_metric_families

from support.batches import NewRecord, build_batch
from support.headrace_broker import HeadraceBroker
from support.processes import wait_until
from support.wire import RawConnection


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceBroker]:
    with HeadraceBroker(tmp_path_factory.mktemp("http")) as running:
        _wait_http(running)
        yield running


def _wait_http(broker: HeadraceBroker) -> None:
    for _ in range(200):
        try:
            if get(broker, "/readyz")[0] == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the HTTP side did not come up")


def get(broker: HeadraceBroker, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def samples(broker: HeadraceBroker) -> dict[str, float]:
    """Every sample by `name{labels}`."""
    return {
        f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}": sample.value
        for family in text_string_to_metric_families(get(broker, "/metrics")[1])
        for sample in family.samples
    }


def test_a_running_broker_is_healthy_and_ready(broker: HeadraceBroker) -> None:
    assert get(broker, "/healthz") == (200, "ok\n")
    assert get(broker, "/readyz") == (200, "ok\n")
    assert get(broker, "/nothing")[0] == 404


def test_metrics_tell_requests_offsets_sizes_and_the_lag_of_groups(broker: HeadraceBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2"})
    for number in range(10):
        producer.produce("measured", value=b"x" * 100, partition=0, timestamp=1_000 * (number + 1))
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "meter"})
    consumer.commit(offsets=[TopicPartition("measured", 0, 4)], asynchronous=False)
    consumer.close()
    found = samples(broker)
    at = '{"partition": "0", "topic": "measured"}'
    assert found[f"kafka_topic_partition_current_offset{at}"] == 10
    assert found[f"kafka_topic_partition_oldest_offset{at}"] == 0
    assert found[f"headrace_broker_log_size_bytes{at}"] > 1000
    assert found['headrace_broker_requests_total{"api": "Produce"}'] >= 1
    assert found['headrace_broker_request_duration_seconds_count{"api": "Produce"}'] >= 1
    group = '{"consumergroup": "meter", "topic": "measured"}'
    lag = '{"consumergroup": "meter", "partition": "0", "topic": "measured"}'
    assert found[f"kafka_consumergroup_lag{lag}"] == 6
    assert found[f"kafka_consumergroup_lag_sum{group}"] == 6
    # The record at the committed offset was written in 1970: the age is that of the record.
    assert found[f"kafka_consumergroup_group_lag_seconds{group}"] > 1e9


def test_a_group_that_caught_up_has_no_lag(broker: HeadraceBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("caught-up", value=b"x", partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "swift"})
    consumer.commit(offsets=[TopicPartition("caught-up", 0, 1)], asynchronous=False)
    consumer.close()
    found = samples(broker)
    group = '{"consumergroup": "swift", "topic": "caught-up"}'
    assert found[f"kafka_consumergroup_lag_sum{group}"] == 0
    assert found[f"kafka_consumergroup_group_lag_seconds{group}"] == 0


def test_a_partition_with_fewer_replicas_than_the_least_in_sync_ones_lacks_none(
    broker: HeadraceBroker,
) -> None:
    """A write needs all replicas there, not more: no alert on what is as whole as it can be."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic("single", 1, 1, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["single"].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("single", value=b"x")
    assert producer.flush(30) == 0
    found = samples(broker)
    assert found["headrace_broker_under_min_isr_partitions{}"] == 0
    assert found["headrace_broker_at_min_isr_partitions{}"] == 0


def test_the_errors_that_alerts_rest_on_are_there_before_they_happen(
    broker: HeadraceBroker,
) -> None:
    rules = Path(__file__).parents[3] / "manifests/monitoring/rules-slo.yaml"
    (codes,) = set(re.findall(r'error=~"([A-Z_|]+)"', rules.read_text()))
    found = samples(broker)
    for code in codes.split("|"):
        at = f'{{"api": "Produce", "error": "{code}"}}'
        assert found[f"headrace_broker_request_errors_total{at}"] == 0


def test_answers_with_errors_are_counted_by_api_and_code(broker: HeadraceBroker) -> None:
    """Alerts on failed writes rest on this, and whoever asks why clients fail."""
    before = samples(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(name, 3, 1) for name in ("refusing", "written")]
    for future in admin.create_topics(topics).values():
        future.result(30)
    with RawConnection(broker.bootstrap) as connection:
        for topic, indexes in (("written", (0,)), ("refusing", (7, 8, 9)), ("refusing", (0, 9))):
            data = tuple(
                produce.PartitionProduceData(index=index, records=build_batch([NewRecord()]))
                for index in indexes
            )
            connection.call(
                produce.ProduceRequest(
                    acks=-1,
                    timeout=timedelta(seconds=10),
                    topic_data=(produce.TopicProduceData(name=topic, partition_data=data),),
                )
            )
        connection.call(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        connection.call(
            MetadataRequest(
                topics=(MetadataRequestTopic(name="a b"),), allow_auto_topic_creation=False
            )
        )
    after = samples(broker)

    def grew(api: str, error: str) -> float:
        name = f'headrace_broker_request_errors_total{{"api": "{api}", "error": "{error}"}}'
        return after.get(name, 0) - before.get(name, 0)

    # Two answers, however many of their partitions were refused.
    assert grew("Produce", "UNKNOWN_TOPIC_OR_PARTITION") == 2
    assert grew("Metadata", "INVALID_TOPIC_EXCEPTION") == 1
    assert not [name for name in after if "request_errors" in name and "NONE" in name]


def test_a_malformed_frame_is_counted(broker: HeadraceBroker) -> None:
    before = samples(broker)["headrace_broker_malformed_requests_total{}"]
    with socket.create_connection(("127.0.0.1", broker.port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert raw.recv(100) == b""
    assert samples(broker)["headrace_broker_malformed_requests_total{}"] == before + 1


def test_a_balanced_cluster_has_an_empty_plan_and_bad_brokers_are_typed_errors(
    broker: HeadraceBroker,
) -> None:
    status, body = get(broker, "/api/v1/balance")
    planned = json.loads(body)
    assert status == 200
    assert planned["moves"] == planned["leaderMoves"] == []
    assert len(planned["hash"]) == 16
    for query, expected, code in (("x", 400, "INVALID_BROKER_ID"), ("9", 404, "BROKER_NOT_FOUND")):
        status, body = get(broker, f"/api/v1/balance?drain={query}")
        assert (status, json.loads(body)["error"]["code"]) == (expected, code)


def test_probes_get_through_however_many_connections_others_hold(broker: HeadraceBroker) -> None:
    held = [socket.create_connection(("127.0.0.1", broker.http_port), 10) for _ in range(300)]
    try:
        assert get(broker, "/healthz") == (200, "ok\n")
        descriptors = Path(f"/proc/{broker.pid}/fd")
        wait_until(
            lambda: sum(1 for _ in descriptors.iterdir()) < 200, 10, "the oldest to be closed"
        )
        assert held[0].recv(1) == b""
        held[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert held[-1].recv(1) == b"H"
    finally:
        for each in held:
            each.close()
