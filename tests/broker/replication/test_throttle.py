"""Throttled replication."""

from headrace_broker.replication.throttle import Throttle, names_replica


def test_without_a_rate_nothing_waits():
    throttle = Throttle()
    throttle.record(1 << 40)
    assert not throttle.is_exceeded(0)


def test_bytes_beyond_the_rate_are_paid_back_by_time():
    throttle = Throttle()
    throttle.set_rate(1000)
    assert not throttle.is_exceeded(0)
    throttle.record(3000)
    assert throttle.is_exceeded(0)
    assert throttle.is_exceeded(1900)
    assert throttle.is_exceeded(1950)
    assert not throttle.is_exceeded(2100)


def test_a_list_names_replicas_one_by_one_or_all():
    assert names_replica(["*"], 3, 1)
    assert names_replica(["2:1", "3:1"], 3, 1)
    assert not names_replica(["3:2"], 3, 1)
