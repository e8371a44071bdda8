"""What tests of bad input need: a healthy client beside the attack, and a bound on memory."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from confluent_kafka import Producer
from kio.schema.fetch.v11.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

from support.headrace_broker import HeadraceBroker
from support.wire import RawConnection

MEMORY_BYTES = 150_000_000  # what an attack may add to the broker's memory
_PATIENCE_SECONDS = 15  # for one record; on a quiet machine it takes less than one


class HealthyClient:
    """Writes a record every few milliseconds and notes how long the slowest took."""

    def __init__(self, bootstrap, topic):
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
        self._topic = topic
        self.slowest_seconds = 0.0
        self.written = 0
        self._failure = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)
        assert self._failure is None, f"a healthy client failed: {self._failure}"
        assert self.written > 0, "a healthy client wrote nothing"
        assert self.slowest_seconds < _PATIENCE_SECONDS, (
            f"a healthy client waited {self.slowest_seconds:.1f} s"
        )

    def _delivered(self, error, _):
        self._failure = self._failure or error

    def _run(self):
        while not self._stop.is_set() or not self.written:
            began = time.monotonic()
            self._producer.produce(self._topic, b"healthy", on_delivery=self._delivered)
            if self._producer.flush(20):
                self._failure = "not delivered in 20 s"
                return
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            self.written += 1
            self._stop.wait(0.01)


@contextmanager
def unharmed(broker: HeadraceBroker, topic: str) -> Iterator[None]:
    """Assert that a healthy client is served throughout, and that memory stays bounded."""
    before = broker.rss_bytes()
    with HealthyClient(broker.bootstrap, topic):
        yield
    assert broker.is_running, broker.output_tail()
    grown = broker.rss_bytes() - before
    assert grown < MEMORY_BYTES, f"the broker's memory grew by {grown} bytes"


def produce_request(topic: str, batch: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch)
    topics = (TopicProduceData(name=topic, partition_data=(data,)),)
    return ProduceRequest(acks=-1, timeout=timedelta(seconds=10), topic_data=topics)


def produce_error(bootstrap: str, topic: str, batch: bytes) -> str:
    """Return the error of a batch, or `closed` when the connection was."""
    with RawConnection(bootstrap) as connection:
        try:
            response = connection.call(produce_request(topic, batch))
        except ConnectionError:
            return "closed"
        return response.responses[0].partition_responses[0].error_code.name


def fetch_request(topic: str, **changes: object) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    settings = {
        "max_wait": timedelta(0),
        "min_bytes": 0,
        "max_bytes": 1 << 24,
        "session_id": 0,
        "session_epoch": -1,
        **changes,
    }
    return FetchRequest(
        replica_id=-1,
        isolation_level=0,
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
        forgotten_topics_data=(),
        rack_id="",
        **settings,
    )
