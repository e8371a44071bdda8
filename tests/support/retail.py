"""A shop's day as a log, and what a batch over the whole of it says: the oracle.

The oracle knows no watermark, no state and no order of arrival: it sorts everything and counts.
"""

import json
import random
import zlib
from collections import defaultdict
from itertools import pairwise

PARTITIONS = 2
#: How long the job waits, in the tests: in seconds.
LATENESS, WINDOW, JOIN = 10, 30, 60
BUSY, QUIET = 25, 5
OPENS_MS = 1_767_225_600_000


def partition_of(key):
    return zlib.crc32(key.encode()) % PARTITIONS


def logs(sent, *, closes=True):
    """Return kind → partition → values, in the order of sending.

    `closes`: two heartbeats in each partition, from long after the day.
    """
    found = {kind: [[] for _ in range(PARTITIONS)] for kind in ("product", "shipment", "sale")}
    last = 0
    for record in sent:
        found[record.kind][partition_of(record.key)].append((record.key, record.value))
        last = max(last, json.loads(record.value).get("occurred_at", 0))
    for kind in ("shipment", "sale") if closes else ():
        for partition in found[kind]:
            for step in (600_000, 601_000):
                beat = {"heartbeat": True, "occurred_at": last + step}
                partition.append((None, json.dumps(beat)))
    return found


def oracle(values):
    """Return output → rows, from all values of each kind (`kind → [value]`), as sets of tuples."""
    events, table = {}, defaultdict(dict)
    for value in map(json.loads, values["product"]):
        table[value["product"]][value["valid_from"]] = value
    for kind in ("shipment", "sale"):
        for value in map(json.loads, values[kind]):
            if not value.get("heartbeat"):
                events[kind, value[f"{kind}_id"]] = value
    ordered = sorted(
        (value["occurred_at"], kind == "sale", name, value)
        for (kind, name), value in events.items()
    )

    def row(product, at):
        known = table.get(product, {})
        valid = [since for since in known if since <= at]
        return known[max(valid) if valid else min(known)]

    stock, at_last, reorders = defaultdict(int), {}, set()
    numbers, history = defaultdict(int), defaultdict(lambda: [False])
    for at, is_sale, _, value in ordered:
        shelf = value["product"], value["store"]
        stock[shelf] += -value["quantity"] if is_sale else value["quantity"]
        at_last[shelf] = at
        rule = row(shelf[0], at)
        history[shelf].append(stock[shelf] > rule["reorder_below"])
        before, now = history[shelf][-2:]
        if before and not now:
            numbers[shelf] += 1
            quantity = rule["reorder_quantity"]
            reorders.add((*shelf, numbers[shelf], quantity, stock[shelf], at))
    return {
        "stock": {(*shelf, count, at_last[shelf]) for shelf, count in stock.items()},
        "reorder": reorders,
        "price": _prices(ordered, row),
        "sold": _sold(ordered, row),
    }


def _prices(ordered, row):
    demand = defaultdict(lambda: defaultdict(int))
    for at, is_sale, _, value in ordered:
        if is_sale:
            demand[value["product"]][at // (WINDOW * 1000)] += value["quantity"]
    found = set()
    for product, windows in demand.items():
        percents = [100]
        for window, units in sorted(windows.items()):
            change = 5 if units >= BUSY else -5 if units <= QUIET else 0
            percents.append(min(150, max(80, percents[-1] + change)))
            if percents[-1] != percents[-2]:
                number = sum(one != other for one, other in pairwise(percents))
                end = (window + 1) * WINDOW * 1000
                cents = row(product, end)["price_cents"] * percents[-1] // 100
                found.add((product, number, units, percents[-1], cents, end))
    return found


def _sold(ordered, row):
    shipped = [(at, name, value) for at, is_sale, name, value in ordered if not is_sale]
    found = set()
    for at, is_sale, name, sale in ordered:
        for then, shipment, value in shipped if is_sale else ():
            is_same = all(value[field] == sale[field] for field in ("store", "product"))
            if is_same and at - JOIN * 1000 <= then <= at:
                product = sale["product"]
                found.add(
                    (
                        *(name, shipment, product, row(product, at)["name"]),
                        *(sale["store"], sale["quantity"], at, then),
                    )
                )
    return found


def cut(log, rng: random.Random):
    """Yield batches of a log: of each partition what comes next, some of them faster."""
    places = {(kind, at): 0 for kind, partitions in log.items() for at in range(len(partitions))}
    speeds = {place: rng.choice((1, 5, 40)) for place in places}
    # A table is small: a batch has all that there is of it.
    at_once = {place: len(log[place[0]][place[1]]) for place in places if place[0] == "product"}
    while any(at < len(log[kind][index]) for (kind, index), at in places.items()):
        batch = []
        for (kind, index), at in places.items():
            # As Spark does: at least one of each partition that has some.
            size = at_once.get((kind, index)) or rng.randint(1, speeds[kind, index])
            end = min(at + size, len(log[kind][index]))
            batch += [
                (kind, index, offset, log[kind][index][offset][1]) for offset in range(at, end)
            ]
            places[kind, index] = end
        rng.shuffle(batch)
        yield batch
