"""Event-time windows, one step after the other: what is counted, what is late, what is written.

Against an oracle that takes one record at a time and knows no batches, no arrays and no state.
"""

from collections import defaultdict
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_jobs.transforms.window_fold import (
    NEVER_US,
    FoldState,
    WindowSpec,
    fold,
    tables_to_bytes,
)

SECOND = 1_000_000
COLUMNS = ["host", "partition", "offset", "event_us", "usage"]


def spec(**changes):
    settings = {
        "keys": ("host",),
        "aggregates": {"total": ("usage", "sum"), "top": ("usage", "max"), "n": ("usage", "count")},
        "window_us": 10 * SECOND,
        "slide_us": 10 * SECOND,
        "lateness_us": 10 * SECOND,
    }
    return WindowSpec(**settings | changes)


def frame(records):
    """Records as (host, partition, offset, seconds, usage)."""
    rows = [(host, at, offset, int(t * SECOND), usage) for host, at, offset, t, usage in records]
    found = pd.DataFrame(rows, columns=COLUMNS)
    return found.astype(dict.fromkeys(COLUMNS[1:], "int64"))


class Run:
    """Folds batches, with the state through its bytes each time, as a checkpoint would have it."""

    def __init__(self, **changes):
        self.spec = spec(**changes)
        self.stored = None
        self.windows = {}
        self.written = []
        self.revisions = []
        self.late = set()
        self.partly_late = set()
        self.counted = 0
        self.partitions = {}

    def take(self, records, now_ms=0, **more):
        state = None if self.stored is None else FoldState.from_bytes(self.stored)
        step = fold(state, frame(records), spec=self.spec, now_ms=now_ms, **more)
        self.stored = step.state.to_bytes()
        for row in step.results.itertuples():
            window = (row.host, row.start_us // SECOND)
            self.written.append(window)
            self.revisions.append((window, row.revision))
            self.windows[window] = (row.total, row.top, row.n)
        for row in step.late.itertuples():
            (self.partly_late if row.is_counted else self.late).add((row.partition, row.offset))
        self.counted += step.partitions["counted"].sum()
        for row in step.partitions.itertuples():
            if row.watermark_us > NEVER_US:
                self.partitions[row.partition] = row.watermark_us / SECOND
        return self


def oracle(records, *, slide=10, jump=60):
    """Windows of ten seconds that are closed in the end, and which (partition, offset) are late.

    And which of them are in some of their windows alone.
    """
    seen = defaultdict(list)
    windows = defaultdict(list)
    late, partly_late = set(), set()
    for host, at, offset, t, usage in sorted(records, key=lambda record: record[1:3]):
        top = sorted([*seen[host, at], t])[-2:]
        seen[host, at] = top
        clock = top[-1] if len(top) > 1 and top[-1] - top[0] <= jump else top[0]
        watermark = clock - 10 if len(top) > 1 else float("-inf")
        starts = [start for start in range(t // slide * slide - 10, t + 1, slide) if start + 10 > t]
        is_open = [start for start in starts if start + 10 > watermark]
        for start in is_open:
            windows[host, start].append(usage)
        if not is_open:
            late.add((at, offset))
        elif len(is_open) < len(starts):
            partly_late.add((at, offset))
    closed = {}
    for (host, start), values in windows.items():
        clocks = [top for (whose, _), top in seen.items() if whose == host]
        marks = [
            (top[-1] if top[-1] - top[0] <= jump else top[0]) - 10
            if len(top) > 1
            else float("-inf")
            for top in clocks
        ]
        if start + 10 <= min(marks):
            closed[host, start] = (sum(values), max(values), len(values))
    return closed, late, partly_late


@st.composite
def logs(draw):
    """Records of hosts with partitions of their own, disordered, and where batches are cut."""
    records = []
    for at in range(draw(st.integers(1, 3))):
        times = draw(st.lists(st.integers(0, 200), max_size=25))
        if draw(st.booleans()):
            times.sort()
        records += [
            (f"h{at}-{draw(st.integers(0, 1))}", at, offset, t, draw(st.integers(0, 100)))
            for offset, t in enumerate(times)
        ]
    return records


def in_batches(records, draw_cut):
    """Cut each partition at the same fractions of its own length."""
    by_partition = defaultdict(list)
    for record in records:
        by_partition[record[1]].append(record)
    while any(by_partition.values()):
        batch = []
        for rest in by_partition.values():
            size = draw_cut(len(rest))
            batch += rest[:size]
            del rest[:size]
        yield batch


@settings(max_examples=12)
@given(logs(), st.data(), st.sampled_from([10, 5]))
def test_however_batches_are_cut_the_windows_and_the_late_are_those_of_the_log(log, data, slide):
    run = Run(slide_us=slide * SECOND)
    for batch in in_batches(log, lambda size: data.draw(st.integers(0, size)) or min(size, 1)):
        data.draw(st.randoms()).shuffle(batch)
        run.take(batch)
    assert (run.windows, run.late, run.partly_late) == oracle(log, slide=slide)
    assert len(run.written) == len(set(run.written))  # each once
    assert run.counted + len(run.late) == len(log)  # and nothing is lost without a word


def test_a_partition_that_is_ahead_makes_nobody_else_late():
    run = Run()
    run.take([("fast", 0, i, i * 10, 1) for i in range(100)])
    run.take([("slow", 1, i, i, 1) for i in range(100)])
    assert run.late == set()
    assert run.windows["slow", 0] == (10, 1, 10)
    assert run.partitions == {0: 980, 1: 89}


def test_a_clock_an_hour_ahead_makes_no_other_key_of_its_partition_late():
    run = Run()
    run.take([(f"h{i % 2}", 0, i, i // 2 + (3540 if i % 2 else 0), 1) for i in range(200)])
    assert run.late == set()
    assert run.windows["h0", 70] == (10, 1, 10)


def test_one_reading_far_ahead_does_not_make_its_own_key_late_but_two_are_believed():
    run = Run()
    run.take([("h", 0, i, 3600 if i == 50 else i, 1) for i in range(100)])
    assert run.late == set()
    run.take([("h", 0, 100, 3601, 1), ("h", 0, 101, 100, 1)])
    assert run.late == {(0, 101)}


def test_a_late_row_has_the_watermark_that_it_missed():
    rows = [("h", 0, 0, 30, 1), ("h", 0, 1, 31, 1), ("h", 0, 2, 9, 1), ("h", 0, 3, 20, 1)]
    step = fold(None, frame(rows), spec=spec(), now_ms=0)
    assert step.late[["offset", "watermark_us"]].to_numpy().tolist() == [[2, 21 * SECOND]]
    assert step.partitions.to_dict("records") == [
        {
            "topic": "",
            "partition": 0,
            "counted": 3,
            "late": 1,
            "partly_late": 0,
            "watermark_us": 21 * SECOND,
        }
    ]


def test_a_key_in_two_partitions_waits_for_the_slower_one_until_it_is_idle():
    run = Run()
    run.take([("h", 1, 0, 0, 1), ("h", 1, 1, 1, 1)], now_ms=0)
    run.take([("h", 0, i, i, 1) for i in range(60)], now_ms=30_000)
    assert run.written == []
    run.take([("h", 0, 60, 60, 1)], now_ms=60_000)
    assert run.windows["h", 0] == (12, 1, 12)
    # What comes for a window that the others closed meanwhile is late, and told.
    assert run.take([("h", 1, 2, 2, 1)], now_ms=60_001).late == {(1, 2)}


def test_a_silent_key_is_written_after_a_while_and_again_when_more_comes():
    run = Run(idle_ms=60_000)
    run.take([("h", 0, 0, 1, 5), ("h", 0, 1, 2, 5)], now_ms=0)
    assert run.take([], now_ms=59_999).written == []
    assert run.take([], now_ms=60_000).windows == {("h", 0): (10, 5, 2)}
    assert run.take([], now_ms=61_000).written == [("h", 0)]  # once
    run.take([("h", 0, 2, 3, 5), ("h", 0, 3, 30, 5)], now_ms=70_000)
    assert run.windows["h", 0] == (15, 5, 3)
    assert run.late == set()
    # Where rows are only appended, the greatest revision of a window is right.
    assert run.revisions == [(("h", 0), 0), (("h", 0), 1)]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_clock_that_is_set_back_keeps_no_window_open(is_silent):
    """A driver on another node, an hour behind: nobody is heard from in the future."""
    run = Run(idle_ms=60_000)
    run.take([("h", 0, 0, 1, 5), ("h", 0, 1, 2, 5)], now_ms=3_600_000)
    run.take([], now_ms=1_000, is_silent=is_silent)
    assert run.written == ([("h", 0)] if is_silent else [])
    assert run.take([], now_ms=61_000).written == [("h", 0)]


@settings(max_examples=12)
@given(logs(), st.data())
def test_wherever_topics_were_silent_the_last_revisions_are_those_of_all_that_counted(log, data):
    run = Run()
    for now, batch in enumerate(
        in_batches(log, lambda size: data.draw(st.integers(0, size)) or min(size, 1))
    ):
        run.take(batch, now_ms=now)
        if data.draw(st.booleans()):
            run.take([], now_ms=now, is_silent=True)
    run.take([], now_ms=1000, is_silent=True)
    counted = defaultdict(list)
    for host, at, offset, t, usage in log:
        if (at, offset) not in run.late:
            counted[host, t // 10 * 10].append(usage)
    expected = {at: (sum(each), max(each), len(each)) for at, each in counted.items()}
    assert (run.windows, run.late) == (expected, oracle(log)[1])
    revisions = defaultdict(list)
    for window, revision in run.revisions:
        revisions[window].append(revision)
    assert all(each == list(range(len(each))) for each in revisions.values())


def test_in_a_silence_a_key_that_has_a_record_now_is_not_written():
    run = Run().take([("a", 0, 0, 1, 1), ("b", 0, 1, 1, 1)], now_ms=1)
    run.take([("a", 0, 2, 2, 1)], now_ms=2, is_silent=True)
    assert run.written == [("b", 0)]


def test_state_of_a_program_that_counted_no_revisions_is_read():
    run = Run()
    run.take([("h", 0, 0, 1, 5)], now_ms=0)
    state = FoldState.from_bytes(run.stored)
    old = tables_to_bytes(state.keys, state.clocks, state.windows.drop(columns="revision"))
    read = FoldState.from_bytes(old).windows
    pd.testing.assert_frame_equal(read, state.windows, check_like=True)


def test_a_key_is_forgotten_after_its_retention_and_the_others_are_not():
    run = Run(retention_ms=1000)
    run.take([(host, 0, offset, offset, 1) for offset, host in enumerate("abc")], now_ms=0)
    run.take([("b", 0, 3, 3, 1)], now_ms=500)
    run.take([], now_ms=1200)
    state = FoldState.from_bytes(run.stored)
    assert state.keys["host"].tolist() == ["b"]
    assert state.windows["n"].tolist() == [2]
    assert state.clocks["key_id"].tolist() == [0]
    assert run.take([("b", 0, 4, 40, 1), ("b", 0, 5, 41, 1)], now_ms=1300).windows["b", 0][2] == 2


def test_with_update_a_window_is_written_whenever_it_changed():
    run = Run(is_update=True)
    run.take([("a", 0, 0, 1, 1), ("b", 0, 1, 1, 1)])
    run.take([("a", 0, 2, 2, 3)])
    assert run.written == [("a", 0), ("b", 0), ("a", 0)]
    assert run.windows["a", 0] == (4, 3, 2)


def test_integers_past_the_53_bits_of_a_float_are_kept():
    run = Run(
        aggregates={"total": ("usage", "sum"), "top": ("usage", "max"), "n": ("usage", "count")}
    )
    big = 2**53 + 1
    run.take([("a", 0, 0, 1, big), ("b", 1, 0, 1, 1)])
    run.take([("a", 0, 1, 30, 0), ("a", 0, 2, 31, 0)])
    assert run.windows["a", 0] == (big, big, 1)
    assert np.issubdtype(FoldState.from_bytes(run.stored).windows["total"].dtype, np.integer)


@pytest.mark.parametrize("count", [0, 1])
def test_a_group_without_rows_has_a_state_that_can_be_gone_on_with(count):
    run = Run()
    run.take([])
    run.take([("h", 0, index, 1, 1) for index in range(count)])
    assert run.counted == count


def test_integer_keys_that_a_null_had_made_floats_are_integers_again():
    """A state of a program that handed them over as floats beside a null."""
    rows = frame([(2**53 + 1, 0, 0, 1, 1)])
    first = fold(None, frame([(5.0, 0, 0, 1, 1)]), spec=spec(), now_ms=0).state
    step = fold(FoldState.from_bytes(first.to_bytes()), rows, spec=spec(), now_ms=1)
    assert FoldState.from_bytes(step.state.to_bytes()).keys["host"].tolist() == [5, 2**53 + 1]


def test_a_reading_that_misses_some_of_its_windows_is_kept_and_counted_by_itself():
    times = [0, 25, 49, 8, 400, 401]
    log = [("h", 0, offset, t, 1) for offset, t in enumerate(times)]
    run = Run(window_us=60 * SECOND)
    run.take(log[:3])
    assert run.partly_late == set()
    step = fold(FoldState.from_bytes(run.stored), frame(log[3:]), spec=run.spec, now_ms=0)
    # Its windows from -50 to 0 had an end at 10 to 60, and the watermark was at 39.
    found = step.late[["offset", "watermark_us", "is_counted"]].to_numpy().tolist()
    assert found == [[3, 39 * SECOND, True]]
    assert step.partitions[["counted", "late", "partly_late"]].to_numpy().tolist() == [[3, 0, 1]]


DAY_MS = 86_400_000


def test_a_job_that_was_down_for_longer_than_the_retention_forgets_nobody():
    run = Run()
    run.take([("a", 0, 0, 1, 5), ("b", 0, 1, 1, 5), ("b", 0, 2, 2, 5)], now_ms=0)
    # The backlog's first batch has one of the keys.
    run.take([("a", 0, 3, 3, 1)], now_ms=8 * DAY_MS)
    run.take([("b", 0, 4, 3, 1), ("b", 0, 5, 40, 1), ("b", 0, 6, 41, 1)], now_ms=8 * DAY_MS + 1000)
    assert run.windows["b", 0] == (11, 5, 3)


def test_a_key_is_forgotten_after_a_retention_in_which_the_job_ran():
    run = Run(retention_ms=5 * 60_000).take([("a", 0, 0, 1, 5)], now_ms=0)
    for minute in range(1, 6):
        run.take([], now_ms=minute * 60_000)
        assert len(FoldState.from_bytes(run.stored).keys) == (minute < 5)


def test_a_state_that_knew_when_keys_were_seen_goes_on():
    spec_ = spec(retention_ms=1000)
    rows = [("a", 0, 0, 1, 5)], [("b", 0, 1, 1, 5)]
    state = fold(None, frame(rows[0]), spec=spec_, now_ms=0).state
    state = fold(state, frame(rows[1]), spec=spec_, now_ms=600).state
    keys = state.keys.drop(columns=["silent_ms", "at_ms"])
    old = FoldState.from_bytes(tables_to_bytes(keys, state.clocks, state.windows))
    pd.testing.assert_frame_equal(old.keys, state.keys)
    step = fold(old, frame([]), spec=spec_, now_ms=1000)
    assert step.state.keys["host"].tolist() == ["b"]


def test_sums_are_of_64_bits_and_a_greater_one_is_an_error():
    rows = frame([("a", 0, 0, 1, 2**31 - 1), ("a", 0, 1, 1, 2**31 - 1)])
    step = fold(None, rows.astype({"usage": "int32"}), spec=spec(is_update=True), now_ms=0)
    assert step.results["total"].tolist() == [2**32 - 2]
    step = fold(step.state, frame([("a", 0, 2, 1, 2**62)]), spec=spec(is_update=True), now_ms=1)
    assert step.results["total"].tolist() == [2**62 + 2**32 - 2]
    with pytest.raises(OverflowError, match="the sum total of a window is beyond 64 bits"):
        fold(step.state, frame([("a", 0, 3, 1, 2**62)]), spec=spec(is_update=True), now_ms=2)


def test_sums_of_decimals_are_exact():
    rows = frame([("a", 0, 0, 1, 1), ("a", 0, 1, 1, 1)])
    big = Decimal("12345678901234567890123456789012345.01")
    step = fold(None, rows.assign(usage=[big, big]), spec=spec(is_update=True), now_ms=0)
    assert step.results["total"].tolist() == [Decimal("24691357802469135780246913578024690.02")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # In past rows Spark refuses these windows; live, rows between them were in none.
        ({"window_us": 10, "slide_us": 20}, "slide_us: from 1 to window_us"),
        ({"window_us": 0}, "slide_us: from 1 to window_us"),
        ({"slide_us": 0}, "slide_us: from 1 to window_us"),
        ({"lateness_us": -1}, "lateness_us is 0 or more"),
        ({"retention_ms": 0}, "idle_ms and retention_ms are more than 0"),
        # Of past rows it is an average.
        ({"aggregates": {"mean": ("usage", "avg")}}, "mean: 'avg' is none of sum, min, max, count"),
        ({"keys": ()}, "keys: a tuple of one column or more"),
        ({"keys": "host"}, "keys: a tuple of one column or more"),
        ({"keys": ("partition",)}, "partition: the fold has such a column itself"),
        ({"keys": ("_host",)}, "_host: the fold has such a column itself"),
        ({"aggregates": {"top": ("offset", "max")}}, "offset: the fold has such a column itself"),
        ({"aggregates": {"start_us": ("usage", "min")}}, "start_us: the fold has such a column"),
        ({"aggregates": {"host": ("usage", "min")}}, "host: two columns of the results have that"),
    ],
)
def test_windows_that_rows_would_be_lost_of_are_refused_where_they_are_declared(changes, reason):
    with pytest.raises(ValueError, match=reason):
        spec(**changes)


def test_columns_of_other_frames_may_have_any_name():
    aggregates = {"partition": ("revision", "max"), "offsets": ("offset", "count")}
    assert spec(keys=("topic", "event_time"), aggregates=aggregates).aggregates == aggregates


def test_a_key_is_not_forgotten_before_its_windows_are_written():
    run = Run(retention_ms=30_000, idle_ms=60_000)
    run.take([("a", 0, 0, 1, 5), ("a", 0, 1, 2, 5)], now_ms=0)
    run.take([("b", 0, 2, 1, 1)], now_ms=30_000)
    assert FoldState.from_bytes(run.stored).keys["host"].tolist() == ["b"]
    assert run.windows == {("a", 0): (10, 5, 2)}


def of_topics(records):
    """Records as (topic, host, partition, offset, seconds, usage)."""
    found = frame([record[1:] for record in records])
    return found.assign(record_topic=[record[0] for record in records])


def test_a_topic_that_is_ahead_makes_no_record_of_another_topic_late():
    ahead = [("a", "h", 0, i, i * 10, 1) for i in range(20)]
    behind = [("b", "h", 0, i, i, 1) for i in range(20)]
    step = fold(None, of_topics([*ahead, *behind]), spec=spec(), now_ms=0)
    assert len(step.late) == 0
    # It waits for the slower one.
    assert step.results.empty
    assert step.partitions["watermark_us"].tolist() == [180 * SECOND, 9 * SECOND]


@settings(max_examples=40)
@given(logs(), logs())
def test_each_partition_of_each_topic_has_a_clock_of_its_own(one, other):
    """Also where the same key is in the same partition of two topics.

    In one batch: who waits for a place of a key that nobody has seen yet closes no window.
    """
    by_topic = {"a": one, "b": other}
    log = [(topic, *record) for topic, each in by_topic.items() for record in each]
    step = fold(None, of_topics(log), spec=spec(), now_ms=0)
    windows = {
        (row.host, row.start_us // SECOND): (row.total, row.top, row.n)
        for row in step.results.itertuples()
    }
    late = {(row.record_topic, row.partition, row.offset) for row in step.late.itertuples()}
    counts = defaultdict(int)
    for row in step.partitions.itertuples():
        counts[row.topic] += row.counted + row.late
    # An oracle with a number of its own for each partition of each topic.
    numbered = [(host, at + 10 * (topic == "b"), *rest) for topic, host, at, *rest in log]
    expected = oracle(numbered)
    assert (windows, late) == (
        expected[0],
        {("b" if at >= 10 else "a", at % 10, offset) for at, offset in expected[1]},
    )
    assert counts == {topic: len(each) for topic, each in by_topic.items() if each}


def test_a_state_that_took_all_for_one_topic_is_gone_on_with_as_that_topics():
    rows = frame([("h", 0, 0, 40, 1), ("h", 0, 1, 41, 1)])
    state = fold(None, rows, spec=spec(), now_ms=0).state
    clocks = state.clocks.drop(columns="topic")
    old = FoldState.from_bytes(tables_to_bytes(state.keys, clocks, state.windows))
    quiet = fold(old, frame([]), spec=spec(), now_ms=1).state
    step = fold(quiet, of_topics([("a", "h", 0, 2, 5, 1)]), spec=spec(), now_ms=2)
    assert len(step.late) == 1
    assert step.state.clocks[["topic", "partition"]].to_numpy().tolist() == [["a", 0]]
