"""The newest value of each key: any order of arrival gives one table."""

import base64
import dataclasses
import json
import os
import random
from datetime import datetime, timedelta

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.newest import JOB as NEWEST
from headrace_jobs.sinks.kafka import as_json_records
from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.newest import newest_by_key
from headrace_jobs.transforms.newest_fold import NewestSpec, fold_newest
from headrace_jobs.transforms.window_fold import tables_from_bytes, tables_to_bytes

SPEC = NewestSpec(keys=("key",), value_columns=("value",), ttl_ms=1_000)
NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")


def frame(events):
    """Events as (key, partition, offset, time)."""
    rows = [(key, f"{at}-{offset}", at, offset, t) for key, at, offset, t in events]
    found = pd.DataFrame(rows, columns=["key", "value", "partition", "offset", "event_us"])
    return found.astype(dict.fromkeys(("partition", "offset", "event_us"), "int64"))


def run(batches, now_ms=lambda number: number):
    """Fold batches; returns the table that upserts of the results leave, and the upserts."""
    state, table, upserts = None, {}, []
    for number, batch in enumerate(batches):
        step = fold_newest(state, frame(batch), spec=SPEC, now_ms=now_ms(number))
        state = step.state
        for row in step.results.itertuples():
            table[row.key] = row.value
            upserts.append((row.key, row.value))
    return table, upserts


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20), st.data())
def test_whatever_the_order_and_the_batches_the_newest_wins_and_ties_go_to_the_offset(log, data):
    events = [(key, 0, offset, t) for offset, (key, t) in enumerate(log)]
    expected = {}
    for key, at, offset, _ in sorted(events, key=lambda event: (event[3], event[2])):
        expected[key] = f"{at}-{offset}"
    shuffled = data.draw(st.permutations(events))
    cut = data.draw(st.integers(0, len(events)))
    # The second half comes twice, as a batch that runs again would.
    table, upserts = run([shuffled[:cut], shuffled[cut:], shuffled[cut:]])
    assert table == expected
    assert len(upserts) == len(set(upserts))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ttl_ms": 0}, "ttl_ms: longer than nothing, or each key expires as it comes"),
        ({"keys": "key"}, "keys: a tuple of one column or more"),
        ({"value_columns": ("offset",)}, "offset: the fold has such a column itself"),
        ({"value_columns": ("at_ms",)}, "at_ms: the fold has such a column itself"),
        ({"value_columns": ("_v",)}, "_v: the fold has such a column itself"),
        ({"value_columns": ("key",)}, "key: two columns of the results have that name"),
    ],
)
def test_a_table_that_would_keep_nothing_or_something_else_is_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(SPEC, **changes)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (("--ttl", "0s"), "argument --ttl: must be"),
        (("--key-field", ""), "argument --key-field: it is"),
    ],
)
def test_arguments_by_which_the_job_would_keep_nothing_are_refused(argument, reason, capsys):
    common = ("--bootstrap-servers", "x:1", "--input-topic", "a", "--output-topic", "b")
    with pytest.raises(SystemExit):
        parse_declared(NEWEST, (*common, "--checkpoint", "/nowhere", *argument))
    assert reason in capsys.readouterr().err


def test_an_event_that_is_older_than_what_its_key_has_changes_nothing():
    assert run([[("a", 0, 0, 5)], [("a", 0, 1, 4)]]) == ({"a": "0-0"}, [("a", "0-0")])


def test_a_key_that_is_silent_for_its_ttl_is_forgotten_and_an_old_event_keeps_it():
    times = [0, 600, 1_500, 3_000]
    batches = [[("a", 0, 0, 9)], [("a", 0, 1, 1)], [("a", 0, 2, 2)], [("a", 0, 3, 3)]]
    table, upserts = run(batches, now_ms=times.__getitem__)
    assert upserts == [("a", "0-0")]
    silent = [0, 1_000, 2_001, 2_002]
    batches = [[("a", 0, 0, 9)], [], [], [("a", 0, 3, 3)]]
    assert run(batches, now_ms=silent.__getitem__)[0] == {"a": "0-3"}
    assert table == {"a": "0-0"}


def test_a_key_that_is_forgotten_leaves_a_tombstone_once():
    state, told = None, []
    for now_ms, events in ((0, [("a", 0, 0, 9), ("b", 0, 1, 9)]), (900, [("b", 0, 2, 8)])):
        state = fold_newest(state, frame(events), spec=SPEC, now_ms=now_ms).state
    for now_ms in (1_000, 1_001):
        step = fold_newest(state, frame([]), spec=SPEC, now_ms=now_ms)
        state = step.state
        told.append(step.results[["key", "value"]].to_numpy().tolist())
    assert told == [[["a", None]], []]
    step = fold_newest(state, frame([("b", 0, 3, 10)]), spec=SPEC, now_ms=5_000)
    assert step.results["value"].tolist() == ["0-3"]


@pytest.mark.parametrize("has_time", [True, False])
def test_a_job_that_was_down_for_longer_than_the_ttl_forgets_nobody(has_time):
    spec, down_ms = dataclasses.replace(SPEC, ttl_ms=300_000), 10**9
    state = fold_newest(None, frame([("a", 0, 0, 9), ("b", 0, 1, 9)]), spec=spec, now_ms=1).state
    if not has_time:  # a state of a program that kept none
        state = tables_to_bytes(tables_from_bytes(state)[0].drop(columns="at_ms"))
    for now_ms, event in ((down_ms, ("a", 0, 2, 10)), (down_ms + 1, ("b", 0, 3, 8))):
        step = fold_newest(state, frame([event]), spec=spec, now_ms=now_ms)
        state = step.state
        # Neither a tombstone of b, nor an older value in its place.
        assert set(step.results["key"]) <= {"a"}
    # While the job runs, it does forget.
    for minute in range(1, 7):
        step = fold_newest(state, frame([]), spec=spec, now_ms=down_ms + minute * 60_000)
        state = step.state
    assert step.open_rows == 0


SCHEMA = "topic STRING, partition INT, offset LONG, key BINARY, value BINARY"


@pytest.mark.spark
def test_a_shuffled_stream_ends_with_the_table_of_the_past_and_bad_events_beside(spark, tmp_path):
    rng = random.Random(5)
    events = []
    for number in range(200):
        at = NOON + timedelta(seconds=rng.randrange(60))
        occurred_at = at.isoformat() if number % 2 else int(at.timestamp() * 1000)
        event = {"id": f"k/{number % 7}", "state": number, "occurred_at": occurred_at}
        events.append((number % 2, number // 2, json.dumps(event)))
    events.append((0, 500, '{"id": "k/1"}'))
    rng.shuffle(events)
    (tmp_path / "in").mkdir()
    for batch in range(2):
        lines = [
            json.dumps(
                {
                    "topic": "t",
                    "partition": at,
                    "offset": offset,
                    "value": base64.b64encode(value.encode()).decode(),
                }
            )
            for at, offset, value in events[batch::2]
        ]
        path = tmp_path / "in" / f"{batch}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_000_000 + batch * 10,) * 2)
    table, letters = {}, []

    def take(batch, _):
        batch.persist()
        found = tagged.results(batch)
        assert found.columns == ["key", "event_time", "value"]
        for row in as_json_records(found, ("key",), "value").collect():
            table[row.key] = row.value
        letters.extend(tagged.rejected(batch).collect())
        batch.unpersist()

    fields = {"key_field": "id", "time_field": "occurred_at", "ttl_ms": 10_000_000}
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    query = (
        newest_by_key(source.json(str(tmp_path / "in")), **fields)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(take)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    past = newest_by_key(spark.read.schema(SCHEMA).json(str(tmp_path / "in")), **fields)
    assert table == {row.key: row.value for row in past.collect()}
    assert sorted(table) == [f"k/{number}" for number in range(7)]
    (letter,) = letters
    assert letter.reason == "occurred_at is neither ISO 8601 nor milliseconds"


@pytest.mark.spark
def test_keys_of_several_columns_are_distinguished_whatever_is_in_them(spark):
    rows = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c")]
    frame = spark.createDataFrame(rows, "x STRING, y STRING")
    keys = [row.key for row in as_json_records(frame, ("x", "y")).collect()]
    assert keys == ["a%2Fb/c", "a/b%2Fc", "a%252Fb/c"]
