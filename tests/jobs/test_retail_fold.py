"""Retail without Spark: any cut of the log into batches gives what the oracle says of all of it."""

import json
import random

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_cli.retail_events import Shop, shop_day
from headrace_jobs.transforms.ordered_fold import OrderSpec, OrderState, Record, take
from headrace_jobs.transforms.retail_fold import RESULT_COLUMNS, RetailSpec, fold_retail
from support.retail import BUSY, JOIN, LATENESS, OPENS_MS, QUIET, WINDOW, cut, logs, oracle

SPEC = RetailSpec(
    lateness_us=LATENESS * 1_000_000,
    window_us=WINDOW * 1_000_000,
    join_us=JOIN * 1_000_000,
    busy=BUSY,
    quiet=QUIET,
)
FIELDS = ("product", "store", "quantity", "name", "price_cents", "reorder_below")
FIELDS += ("reorder_quantity",)
GROUPS = 3
TICK_RECORDS = 32


def row(kind, partition, offset, text):
    """What the job's transform makes of a record."""
    value = json.loads(text)
    time = value.get("occurred_at", value.get("valid_from"))
    own_id = value.get("product") if kind == "product" else value.get(f"{kind}_id")
    found = {"source": kind, "topic": f"t-{kind}", "partition": partition, "offset": offset}
    found |= {"id": own_id, "event_us": time * 1000, "turn": 0}
    return found | {name: value.get(name) for name in FIELDS}


def of_group(batch, group):
    """The rows that a group of keys gets: its own, and ticks."""
    rows = []
    for kind, partition, offset, text in batch:
        found = row(kind, partition, offset, text)
        key = found["product"]
        if (int(key[2:]) % GROUPS if key else 0) == group:
            rows.append(found)
        if offset % TICK_RECORDS == 0 or key is None:
            rows.append(found | {"turn": group + 1})
    return pd.DataFrame(rows, columns=list(row("sale", 0, 0, '{"occurred_at": 0}')))


def run(batches, now_ms=lambda number: 1 + number):
    """Fold batches in every group; returns the results and the counts."""
    states, results, counts = dict.fromkeys(range(GROUPS)), [], []
    for number, batch in enumerate(batches):
        for group in range(GROUPS):
            rows = of_group(batch, group)
            if len(rows):
                step = fold_retail(states[group], rows, spec=SPEC, now_ms=now_ms(number))
                states[group] = step.state
                results += step.results.to_dict("records")
                counts.append(step.partitions)
    return results, pd.concat(counts)


def tables(results):
    """Results as the oracle has them; of stock the last row of each shelf."""
    found = {name: set() for name in RESULT_COLUMNS}
    stock = {}
    for each in results:
        at = each["event_us"] // 1000
        if each["output"] == "stock":
            stock[each["product"], each["store"]] = (each["stock"], at)
        elif each["output"] == "reorder":
            names = ("product", "store", "number", "quantity", "stock")
            found["reorder"].add((*(each[name] for name in names), at))
        elif each["output"] == "price":
            names = ("product", "number", "units", "percent", "price_cents")
            found["price"].add((*(each[name] for name in names), at))
        else:
            names = ("sale_id", "shipment_id", "product", "name", "store", "quantity")
            shipped = each["shipped_us"] // 1000
            found["sold"].add((*(each[name] for name in names), at, shipped))
    return found | {"stock": {(*shelf, *last) for shelf, last in stock.items()}}


def values(log):
    return {kind: [text for part in parts for _, text in part] for kind, parts in log.items()}


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), sales=st.integers(1, 150))
def test_whatever_the_cut_into_batches_the_results_are_those_of_the_oracle(seed, sales):
    shop = Shop(seed=seed, sales=sales, products=5, sales_per_second=4)
    log = logs(shop_day(shop, begin_ms=OPENS_MS))
    results, counts = run(cut(log, random.Random(seed)))
    assert tables(results) == oracle(values(log))
    numbers = [
        (each["product"], each["store"], each["number"])
        for each in results
        if each["output"] == "reorder"
    ]
    assert len(numbers) == len(set(numbers))
    assert counts["late"].sum() == 0
    records = sum(len(texts) for texts in values(log).values())
    assert counts["counted"].sum() + counts["duplicate"].sum() == records


def test_a_day_of_the_shop_has_what_it_is_for():
    log = logs(shop_day(Shop(seed=7, sales=700), begin_ms=OPENS_MS))
    expected = oracle(values(log))
    assert all(len(rows) > 5 for rows in expected.values())
    _, counts = run(cut(log, random.Random(1)))
    assert counts["duplicate"].sum() > 5
    same = logs(shop_day(Shop(seed=7, sales=700), begin_ms=OPENS_MS))
    assert same == log


def test_a_restart_after_an_hour_is_no_silence_of_the_sources():
    log = logs(shop_day(Shop(seed=3, sales=120), begin_ms=OPENS_MS))
    results, counts = run(
        cut(log, random.Random(3)), now_ms=lambda number: 1 + number // 9 * 3_600_000
    )
    assert tables(results) == oracle(values(log))
    assert counts["late"].sum() == 0


def test_a_join_without_a_bound_is_refused():
    with pytest.raises(ValueError, match="a join keeps rows for the time"):
        RetailSpec(lateness_us=1, window_us=1, join_us=0, busy=2, quiet=1)


ORDER = OrderSpec(sources=("a", "b"), lateness_us=10, remember_us=100, idle_ms=30_000, jump_us=50)


def records(*each):
    """Records as (source, offset, time), each with an id of its own."""
    return [
        Record(source, 0, offset, at, f"{source}{offset}", {}, row)
        for row, (source, offset, at) in enumerate(each)
    ]


def test_events_wait_for_the_slowest_source_and_leave_in_the_order_of_their_times():
    state = OrderState()
    taken = take(state, records(("a", 0, 100), ("a", 1, 120)), spec=ORDER, now_ms=1)
    assert taken.released == []
    taken = take(state, records(("b", 0, 105), ("b", 1, 125)), spec=ORDER, now_ms=2)
    assert [event.id for event in taken.released] == ["a0", "b0"]
    again = OrderState.from_json(state.to_json())
    assert again == state


def test_what_is_behind_its_own_partition_is_late_and_what_is_known_a_duplicate():
    state = OrderState()
    given = records(("a", 0, 100), ("a", 1, 120), ("a", 2, 109), ("a", 3, 110))
    taken = take(state, given, spec=ORDER, now_ms=1)
    assert taken.late == {2: 110}
    taken = take(state, [given[0]._replace(offset=4)], spec=ORDER, now_ms=2)
    assert taken.duplicates == [0]
    assert taken.late == {}


def test_a_silent_source_holds_the_others_up_for_its_time_of_batches_alone():
    state = OrderState()
    take(state, records(("a", 0, 100), ("a", 1, 120)), spec=ORDER, now_ms=1)
    for number in range(1, 4):
        later = records(("a", number + 1, 120))
        taken = take(state, later, spec=ORDER, now_ms=1 + number * 3_600_000)
        assert bool(taken.released) is (number == 3), number


def test_when_all_sources_are_silent_what_is_held_leaves_and_older_events_are_late():
    state = OrderState()
    take(state, records(("a", 0, 100), ("a", 1, 120)), spec=ORDER, now_ms=1)
    taken = take(state, [], spec=ORDER, now_ms=2)
    assert taken.released == []
    taken = take(state, [], spec=ORDER, now_ms=3, is_silent=True)
    assert [event.id for event in taken.released] == ["a0", "a1"]
    taken = take(state, records(("b", 0, 119), ("b", 1, 121)), spec=ORDER, now_ms=4)
    assert taken.late == {0: 121}
    assert [event.id for event in state.held] == ["b1"]


def test_in_a_silence_one_time_far_ahead_is_not_believed():
    state = OrderState()
    given = records(("a", 0, 100), ("b", 0, 100), ("a", 1, 10_000))
    take(state, given, spec=ORDER, now_ms=1)
    taken = take(state, [], spec=ORDER, now_ms=2, is_silent=True)
    assert [event.id for event in taken.released] == ["a0", "b0"]
    assert take(state, records(("b", 1, 130)), spec=ORDER, now_ms=3).late == {}


def test_one_time_far_ahead_moves_no_clock_until_a_second_confirms_it():
    state = OrderState()
    given = records(("a", 0, 100), ("b", 0, 100), ("a", 1, 10_000), ("b", 1, 130), ("a", 2, 125))
    ticks = [given[2]._replace(id=None)]
    taken = take(state, [*given, *ticks], spec=ORDER, now_ms=1)
    assert taken.late == {}
    assert state.horizon_us == 115
    assert take(state, records(("a", 3, 10_001)), spec=ORDER, now_ms=1).late == {}
    assert state.horizon_us == 120
