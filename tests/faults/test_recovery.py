"""After kill -9 a broker reads a busy log's tail again, and does other things meanwhile."""

import pytest

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log_directory import LogDirectory
from support.headrace_broker import HeadraceBroker
from support.log import ManualClock, append, batch_of, open_logs
from support.metrics import scrape, wait_metrics

_BATCHES = 60_000

pytestmark = pytest.mark.slow


def _write_as_if_killed(path, topic, count):
    """Append many small batches of an idempotent producer, and stop without closing anything."""
    directory = LogDirectory.open(path, node_id=1, cluster_id="", clock=ManualClock())
    log = directory.create(topic, 0, LogConfig())
    for number in range(count):
        append(log, batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=number))
    directory.abandon()


def _value(broker, name):
    return next(each.value for each in scrape(broker.http_port) if each.name == name)


def test_recovering_a_log_of_many_batches_does_not_hold_up_the_event_loop(tmp_path, create_topic):
    broker = HeadraceBroker(tmp_path / "broker")
    with broker:
        create_topic(broker.bootstrap, "busy")
    _write_as_if_killed(broker.log_directory, "busy", _BATCHES)
    with broker:
        wait_metrics(broker.http_port)
        # On one thread with the loop this took as long as the recovery: two seconds and more.
        assert _value(broker, "headrace_broker_event_loop_delay_seconds_max") < 0.5
    directory = LogDirectory.open(
        broker.log_directory, node_id=1, cluster_id="", clock=ManualClock()
    )
    open_logs(directory, LogConfig())
    log = directory.logs[TopicPartition("busy", 0)]
    assert log.log_end_offset == _BATCHES
    assert append(
        log, batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=_BATCHES - 1)
    ).is_duplicate
    directory.abandon()
