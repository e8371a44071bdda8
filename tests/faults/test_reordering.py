"""M6: what a lost request does to the order of a producer's records, and what idempotence does.

The proxy loses a Produce request of a producer that has several in flight, so that its retry comes
after its successors. With idempotence, or with one request in flight, the order stays 1, 2, 3.
"""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from support.tcp_proxy import Fate

_PRODUCE = 0
_TOPIC = "ordered"
_SECONDS = 30


def _produce(address, numbers, **settings):
    """Send each number in a request of its own, as many in flight as the settings allow."""
    failures = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "acks": "all",
            "retry.backoff.ms": 50,
            "reconnect.backoff.ms": 10,
            "log_level": 0,
            **settings,
        }
    )
    for number in numbers:
        producer.produce(
            _TOPIC,
            b"%d" % number,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(_SECONDS) == 0
    assert failures == []


def _read(address):
    consumer = Consumer({"bootstrap.servers": address, "group.id": "check", "log_level": 0})
    try:
        place = TopicPartition(_TOPIC, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
        consumer.assign([place])
        found = []
        while len(found) < end:
            for message in consumer.consume(end - len(found), timeout=_SECONDS):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                found.append(int(message.value()))
        return found
    finally:
        consumer.close()


class _LoseOnce:
    """Loses the n-th Produce request once: with its connection, or without a word."""

    def __init__(self, number, fate):
        self.number, self.fate = number, fate

    def __call__(self, request):
        if request.api_key == _PRODUCE and request.number == self.number:
            return self.fate, 0
        return Fate.PASS, 0


def test_without_idempotence_a_lost_request_arrives_after_its_successor(proxied, create_topic):
    """The request vanishes while its connection lives; its retry comes last: 2, 3, 1."""
    proxy = proxied(_LoseOnce(1, Fate.SILENCE))
    create_topic(proxy.address, _TOPIC)
    _produce(
        proxy.address,
        [1, 2, 3],
        **{
            "enable.idempotence": False,
            "max.in.flight": 5,
            "request.timeout.ms": 1000,
            "socket.timeout.ms": 1500,
        },
    )
    found = _read(proxy.address)
    assert sorted(set(found)) == [1, 2, 3], "nothing is lost"
    assert found.index(1) > found.index(2), "the retry came after its successor"


# A leader that is not new takes any first sequence of a producer that it does not know, so a first
# request that vanishes while its successors arrive is an error later and not a retry.
_LOSSES = [
    (number, fate)
    for number in (1, 2, 5)
    for fate in (Fate.DROP_REQUEST, Fate.DROP_RESPONSE, Fate.RESET, Fate.SILENCE)
    if (number, fate) != (1, Fate.SILENCE)
]


@pytest.mark.parametrize(("number", "fate"), _LOSSES)
def test_with_idempotence_the_order_is_kept_and_nothing_is_doubled(
    proxied, create_topic, fate, number
):
    proxy = proxied(_LoseOnce(number, fate))
    create_topic(proxy.address, _TOPIC)
    _produce(
        proxy.address,
        range(1, 11),
        **{"enable.idempotence": True, "socket.timeout.ms": 1500, "request.timeout.ms": 1000},
    )
    assert _read(proxy.address) == list(range(1, 11))


@pytest.mark.parametrize("fate", [Fate.DROP_REQUEST, Fate.RESET])
def test_with_one_request_in_flight_the_order_is_kept(proxied, create_topic, fate):
    proxy = proxied(_LoseOnce(2, fate))
    create_topic(proxy.address, _TOPIC)
    _produce(proxy.address, [1, 2, 3, 4, 5], **{"enable.idempotence": False, "max.in.flight": 1})
    assert _read(proxy.address) == [1, 2, 3, 4, 5]


def test_without_idempotence_a_lost_answer_doubles_a_record(proxied, create_topic):
    """What idempotence is for: the broker cannot know that it saw this record before."""
    proxy = proxied(_LoseOnce(2, Fate.DROP_RESPONSE))
    create_topic(proxy.address, _TOPIC)
    _produce(proxy.address, [1, 2, 3], **{"enable.idempotence": False, "max.in.flight": 1})
    assert _read(proxy.address) == [1, 2, 2, 3]


def test_two_producers_of_different_speed_interleave_and_each_keeps_its_order(
    proxied, create_topic
):
    """One takes a slow route with large batches, the other sends at once."""
    slow_requests = iter(range(1_000_000))

    def plan(request):
        is_slow = request.api_key == _PRODUCE and next(slow_requests) % 3 == 0
        return Fate.PASS, 0.02 if is_slow else 0

    proxy = proxied(plan)
    create_topic(proxy.address, _TOPIC)
    fast = Producer({"bootstrap.servers": proxy.address, "linger.ms": 0})
    slow = Producer({"bootstrap.servers": proxy.address, "linger.ms": 30})
    for number in range(200):
        fast.produce(_TOPIC, b"%d" % number, partition=0)
        slow.produce(_TOPIC, b"%d" % (1000 + number), partition=0)
        fast.poll(0.002)
    assert fast.flush(_SECONDS) == slow.flush(_SECONDS) == 0
    found = _read(proxy.address)
    assert [number for number in found if number < 1000] == list(range(200))
    assert [number for number in found if number >= 1000] == list(range(1000, 1200))
