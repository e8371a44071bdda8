"""Offsets as Spark writes them, lag, durations, checkpoints: the pure parts of progress."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_jobs.durations import parse_duration, parse_moment
from headrace_jobs.progress.checkpoint import CheckpointError, committed_position, starting_position
from headrace_jobs.progress.offsets import (
    LagClock,
    TopicPartition,
    end_offsets,
    lag_records,
    parse_offsets,
    span,
)

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_spark_offsets_are_parsed_and_its_placeholders_are_not_offsets():
    text = '{"t":{"0":17,"1":-2},"u":{"3":-1}}'
    assert parse_offsets(text) == {FIRST: 17}
    assert parse_offsets(None) == {}


@pytest.mark.parametrize("text", ["[]", '{"t":7}', '{"t":{"x":1}}', "{", '{"t":{"0":null}}'])
def test_what_is_no_kafka_offset_is_an_error_that_shows_it(text):
    with pytest.raises(ValueError, match="not the offsets"):
        parse_offsets(text)


def test_a_topic_read_twice_has_the_offset_that_both_readers_passed():
    assert end_offsets(['{"t":{"0":5}}', '{"t":{"0":3,"1":9}}']) == {FIRST: 3, SECOND: 9}


def test_a_batch_has_at_most_the_records_between_its_offsets():
    end = '{"t":{"0":17,"1":4}}'
    assert span('{"t":{"0":10,"1":4}}', end) == 7
    assert span('{"t":{"0":10}}', end) == 11  # the other partition is new
    assert span(None, end) == 21
    assert span("None", end) == 21  # as a progress report of pyspark says it
    assert span('{"t":{"0":20,"1":4}}', end) == 0  # the topic was made anew
    assert span(None, None) == 0


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.integers(0, 99), st.integers(0))))
def test_every_offset_survives_sparks_json(topics):
    expected = {
        TopicPartition(topic, index): offset
        for topic, partitions in topics.items()
        for index, offset in partitions.items()
    }
    assert parse_offsets(json.dumps(topics)) == expected


@given(
    st.dictionaries(st.builds(TopicPartition, st.just("t"), st.integers(0, 5)), st.integers(0, 99)),
    st.dictionaries(st.builds(TopicPartition, st.just("t"), st.integers(0, 5)), st.integers(0, 99)),
)
def test_lag_is_never_negative(committed, latest):
    assert all(lag >= 0 for lag in lag_records(committed, latest).values())


def test_lag_counts_the_records_of_all_partitions_of_a_topic():
    assert lag_records({FIRST: 5, SECOND: 7}, {FIRST: 8, SECOND: 6}) == {"t": 3}


def test_lag_in_seconds_is_the_age_of_the_first_unprocessed_record():
    clock = LagClock()
    clock.sample({FIRST: 10}, now_seconds=100.0)
    clock.sample({FIRST: 10}, now_seconds=105.0)
    clock.sample({FIRST: 20}, now_seconds=110.0)
    clock.sample({FIRST: 30}, now_seconds=120.0)
    assert clock.lag_seconds({FIRST: 30}, now_seconds=125.0) == {"t": 0.0}
    assert clock.lag_seconds({FIRST: 20}, now_seconds=125.0) == {"t": 5.0}
    assert clock.lag_seconds({FIRST: 10}, now_seconds=125.0) == {"t": 15.0}
    assert clock.lag_seconds({FIRST: 0}, now_seconds=125.0) == {"t": 25.0}


def test_a_topic_that_was_recreated_starts_its_lag_again():
    clock = LagClock()
    clock.sample({FIRST: 1_000}, now_seconds=100.0)
    clock.sample({FIRST: 1}, now_seconds=200.0)
    assert clock.lag_seconds({FIRST: 0}, now_seconds=203.0) == {"t": 3.0}


def test_a_new_checkpoint_has_no_position_and_begins_where_the_topic_does(tmp_path):
    assert committed_position(str(tmp_path / "none")) == {}
    assert committed_position("s3a://bucket/checkpoint") == {}
    assert starting_position({FIRST: 4, SECOND: 0}, {}) == {FIRST: 4, SECOND: 0}


def test_a_checkpoint_stands_at_its_last_committed_batch_not_at_the_one_it_only_planned(tmp_path):
    for folder, batches in (("offsets", (8, 9, 10)), ("commits", (8, 9))):
        (tmp_path / folder).mkdir()
        for batch in batches:
            text = f'v1\n{{}}\n{{"t":{{"0":{batch}00}}}}\n'
            (tmp_path / folder / str(batch)).write_text(text)
    (tmp_path / "commits" / ".9.crc").write_text("")
    position = committed_position(f"file://{tmp_path}")
    assert position == {FIRST: 900}
    assert starting_position({FIRST: 0, SECOND: 0}, position) == {FIRST: 900, SECOND: 0}


def checkpoint_with(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def test_the_offset_log_of_named_sources_is_read(tmp_path):
    # As Spark 4.3 writes it.
    text = 'v2\n{"batchWatermarkMs":0}\nb_first:{"t":{"0":5}}\na_second:{"u":{"3":7}}'
    checkpoint = checkpoint_with(tmp_path, offsets_0=text, commits_0="v1\n{}")
    assert committed_position(checkpoint) == {FIRST: 5, TopicPartition("u", 3): 7}


def test_before_its_first_batch_is_committed_a_query_stands_where_its_source_began(tmp_path):
    began = 'v1\n{"t":{"0":3,"1":4}}'
    checkpoint = checkpoint_with(tmp_path, sources_0_0=began, offsets_0='v1\n{}\n{"t":{"0":9}}')
    assert committed_position(checkpoint) == {FIRST: 3, SECOND: 4}


@pytest.mark.parametrize("text", ["", "v1\n{}\n{", 'v1\n{}\n{"t":7}', "v7\n{}\n{}"])
def test_a_checkpoint_that_cannot_be_read_is_no_new_one(tmp_path, text):
    checkpoint = checkpoint_with(tmp_path, offsets_0=text, commits_0="v1\n{}")
    with pytest.raises(CheckpointError, match="offsets/0"):
        committed_position(checkpoint)


def test_a_checkpoint_without_the_entry_of_its_last_batch_is_no_new_one(tmp_path):
    with pytest.raises(CheckpointError, match="offsets/0 cannot be read"):
        committed_position(checkpoint_with(tmp_path, commits_0="v1\n{}"))


def test_partitions_that_were_added_begin_at_their_beginning_whatever_a_new_query_does():
    latest, earliest = {FIRST: 9, SECOND: 8}, {FIRST: 0, SECOND: 1}
    assert starting_position(latest, {FIRST: 5}, added=earliest) == {FIRST: 5, SECOND: 1}
    assert starting_position(latest, {}, added=earliest) == latest


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10s", 10_000),
        ("500ms", 500),
        ("1.5m", 90_000),
        ("2 hours", 7_200_000),
        ("1 Day", 86_400_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text, milliseconds):
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["10", "s", "-1s", "10x", "", "1s 2s"])
def test_what_is_no_duration_is_an_error_that_says_what_is(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00", "2026-01-31T12"],
)
def test_a_moment_is_iso_8601_in_utc_unless_it_says_otherwise(text):
    assert parse_moment(text) == 1_769_860_800_000


@pytest.mark.parametrize("text", ["", "yesterday", "12:00", "1769860800000", "1969-12-31", "15m"])
def test_what_is_no_moment_is_an_error_that_shows_one(text):
    with pytest.raises(ValueError, match="2026-01-31T12:00:00Z"):
        parse_moment(text)
