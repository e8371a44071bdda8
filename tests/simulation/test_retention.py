"""What retention may take away, as the simulator judges it, of a real log."""

from types import SimpleNamespace

import pytest

from headrace_broker.log import partition_log
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from simulation.history import History
from simulation.invariants.retention import Retention
from simulation.observing import observed
from support.log import START_MS, ManualClock, batch_of

_NOW_MS = START_MS + 10_000
_RETENTION_MS = 3000
_SIZES_AND_AGES = [(200, 2000), (4000, 9000), (500, 1000), (200, 500)]
"""Each is a segment with one record. The second was sent late: it is the oldest."""


@pytest.fixture
def log(tmp_path):
    settings = {"retention_bytes": 3000, "retention_ms": _RETENTION_MS}
    log = PartitionLog.open(tmp_path / "events-0", LogConfig(**settings), clock=ManualClock())
    for size, age_ms in _SIZES_AND_AGES:
        batch = batch_of(b"x" * size, base_timestamp=_NOW_MS - age_ms)
        log.append_as_leader(batch, 0, now_ms=_NOW_MS)
        log.roll(_NOW_MS)
    log.high_watermark = log.log_end_offset
    yield log
    log.abandon()


def _violations(log):
    """Let retention go over a log whose records a client has read; return what was found."""
    history = History(lambda: _NOW_MS)
    for offset, (_, age_ms) in enumerate(_SIZES_AND_AGES):
        history.times.setdefault(("events", 0), {})[offset] = _NOW_MS - age_ms
    partition = SimpleNamespace(topic_id=None, topic="events", index=0, log=log)
    node = SimpleNamespace(
        broker=SimpleNamespace(replicas=[partition]),
        clock=SimpleNamespace(latest_ms=lambda: _NOW_MS),
    )
    with observed(history):
        log.apply_retention(_NOW_MS)
    Retention(SimpleNamespace(), history).check_node(node)
    return {violation.split(":")[0] for violation in history.violations}


def test_what_is_old_may_go_above_what_was_too_much(log):
    assert _violations(log) == set()
    assert log.log_start_offset == 2


@pytest.mark.parametrize(
    ("retention_bytes", "retention_ms", "number"),
    [(-1, _RETENTION_MS, 1), (3000, -1, 2), (3000, _RETENTION_MS, 3), (3000, _RETENTION_MS, 4)],
)
def test_nothing_else_may_go(log, monkeypatch, retention_bytes, retention_ms, number):
    log.config = LogConfig(retention_bytes=retention_bytes, retention_ms=retention_ms)
    monkeypatch.setattr(
        partition_log, "removable_segments", lambda segments, *_, **__: list(segments)[:number]
    )
    assert _violations(log) == {"retention-took", "vanished"}
