"""One Spark session for all tests of jobs, and one broker: ours, or Apache Kafka as a check.

`HEADRACE_CONFORMANCE_PEER=kafka` runs these tests against Apache Kafka, as in `conformance/`.
"""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_jobs.jars import resolve
from headrace_jobs.session import LOG4J_CONFIGURATION, STATE_SETTINGS, WORKER_DAEMON
from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KafkaPeer
from support.opensearch import OpenSearchServer, running_opensearch
from support.peer import Peer
from support.postgres import PostgresServer, running_postgres
from support.shared_classes import shared_class_options

JAVA_OPTIONS = (
    f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()} "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory):
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    shared, java_options = shared_class_options()
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {java_options}")
        .config("spark.driver.extraClassPath", shared[-1] if shared else "")
        .config("spark.jars", ",".join(map(str, resolve())))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config(map=WORKER_DAEMON)
        .getOrCreate()
    )
    for key, value in STATE_SETTINGS.items():
        session.conf.set(key, value)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    directory = tmp_path_factory.mktemp("broker")
    is_kafka = os.environ.get("HEADRACE_CONFORMANCE_PEER") == "kafka"
    found: Peer = KafkaPeer(directory) if is_kafka else HeadraceBroker(directory)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def new_topic(broker: Peer) -> Callable[[int], str]:
    """Return a function that creates a topic with a name of its own."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(partitions: int = 1) -> str:
        name = f"jobs-{uuid.uuid4().hex[:10]}"
        # Their records may be of any day: retention by time would take those of a week ago.
        kept = {"retention.ms": "-1"}
        admin.create_topics([NewTopic(name, partitions, 1, config=kept)])[name].result(30)
        return name

    return create


@pytest.fixture
def group_offsets(broker: Peer) -> Callable[[str], dict[tuple[str, int], int]]:
    """Return a function that asks the broker for a group's offsets, through librdkafka."""

    def read(group: str) -> dict[tuple[str, int], int]:
        # A client of its own: one that saw the broker die waits long before it asks again.
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        wanted = ConsumerGroupTopicPartitions(group)
        found = admin.list_consumer_group_offsets([wanted])[group].result(30)
        partitions: list[TopicPartition] = found.topic_partitions
        return {(at.topic, at.partition): at.offset for at in partitions if at.offset >= 0}

    return read


@pytest.fixture
def example_application() -> Path:
    root = Path(__file__).parents[2]
    return root / "manifests/examples/cpu-load/spark-application.yaml"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def opensearch() -> Iterator[OpenSearchServer]:
    with running_opensearch() as server:
        yield server
