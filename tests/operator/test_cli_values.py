import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from headrace_cli.commands.consume import record_json
from headrace_cli.commands.cpu_load import readings
from headrace_cli.commands.produce import split_line
from headrace_cli.errors import BadInputError
from headrace_cli.positions import Position, PositionKind, parse_duration, parse_position
from headrace_cli.up.views import format_seconds, parse_result

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def at(moment: datetime) -> Position:
    return Position(kind=PositionKind.TIMESTAMP, value=int(moment.timestamp() * 1000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position(kind=PositionKind.EARLIEST)),
        ("latest", Position(kind=PositionKind.LATEST)),
        ("42", Position(kind=PositionKind.OFFSET, value=42)),
        ("offset:42", Position(kind=PositionKind.OFFSET, value=42)),
        ("-10", Position(kind=PositionKind.SHIFT, value=-10)),
        ("shift:10", Position(kind=PositionKind.SHIFT, value=10)),
        ("15m", at(NOW - timedelta(minutes=15))),
        ("duration:1h30m", at(NOW - timedelta(minutes=90))),
        ("2026-01-31T11:00:00Z", at(NOW - timedelta(hours=1))),
        ("2026-01-31T11:00:00", at(NOW - timedelta(hours=1))),
        ("timestamp:2026-01-31T12:00:00+01:00", at(NOW - timedelta(hours=1))),
        ("timestamp:1000", Position(kind=PositionKind.TIMESTAMP, value=1000)),
    ],
)
def test_positions_are_read_as_people_write_them(text: str, expected: Position) -> None:
    assert parse_position(text, now=NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "offset:x", "shift:", "duration:fast", "1x"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_position(text, now=NOW)


def test_durations_are_read() -> None:
    assert parse_duration("90s") == timedelta(seconds=90)
    assert parse_duration("1h30m") == timedelta(minutes=90)
    assert parse_duration("250ms") == timedelta(milliseconds=250)
    assert parse_duration("45") == timedelta(seconds=45)


def test_a_reading_has_the_fields_that_the_job_expects() -> None:
    first, second = readings([1.5, 100.0], "web-1", datetime(2026, 1, 31, 12, 0, 0, 7000, UTC))
    assert json.loads(first) == {
        "hostname": "web-1",
        "cpu": 0,
        "usage": 1.5,
        "occurred_at": "2026-01-31T12:00:00.007Z",
    }
    assert json.loads(second)["cpu"] == 1


def test_lines_are_split_at_the_first_separator() -> None:
    assert split_line(b"a:b:c", ":") == (b"a", b"b:c")
    assert split_line(b"a:b", None) == (None, b"a:b")
    assert split_line(b"a:", ":") == (b"a", None)
    with pytest.raises(BadInputError):
        split_line(b"ab", ":")


def test_a_record_that_is_not_text_keeps_its_bytes() -> None:
    record = SimpleNamespace(
        topic="t", partition=0, offset=1, timestamp=0, key=None, value=b"\xff", headers=[]
    )
    assert json.loads(record_json(record)) == {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "timestamp": "1970-01-01T00:00:00.000Z",
        "key": None,
        "value_base64": "/w==",
    }


def test_a_windows_ends_become_one_cell() -> None:
    value = {
        "window_start": "2026-01-31T12:00:00.000Z",
        "window_end": "2026-01-31T12:00:10.000Z",
        "hostname": "vm",
        "cpu": 0,
        "usage_avg": 12.34,
    }
    row = parse_result(json.dumps(value).encode())
    assert row is not None
    assert list(row.cells) == ["window", "host", "cpu", "avg"]
    assert row.cells["avg"] == "12.3%"
    assert parse_result(b"not json") is None
    assert parse_result(None) is None


def test_spans_are_short() -> None:
    assert [format_seconds(value) for value in (42, 185, 3725)] == ["42s", "3m05s", "1h02m"]
