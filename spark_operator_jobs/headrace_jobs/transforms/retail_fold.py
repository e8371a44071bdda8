"""Stock, reorders, prices and sold deliveries of a group of products: one step of the fold.

Owns the meaning of a sale, a shipment and a product's row. They come in the order of their event
times (`ordered_fold.py`), so the results do not depend on the order of arrival:

- **stock** of a product in a store: shipped minus sold. It may be negative: a recorded sale is a
  fact, and a wrong count must be visible.
- a **reorder** when stock falls to the product's threshold; the next one after it was above.
- a **price** after each window of demand that changes it: 5 per cent up when many were sold, down
  when few were, within 80 to 150 per cent of the list price. A window without a sale changes none.
- **sold**: each sale with the shipments of its product to its store in the time before it.

The product's row is the newest that is valid at an event's time, of a compacted topic. Events of a
product without one wait for it as long as a shipment waits for sales. Knows no Spark, no clock and
no IO.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headrace_jobs.transforms.ordered_fold import Event, OrderSpec, OrderState, Record, take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace_jobs.transforms.ordered_fold import Taken

__all__ = ["RESULT_COLUMNS", "RetailSpec", "RetailStep", "fold_retail"]

#: The columns of each result besides `output, product, event_us`; the others are null.
RESULT_COLUMNS = {
    "stock": ("store", "stock"),
    "reorder": ("store", "number", "quantity", "stock"),
    "price": ("number", "units", "percent", "price_cents"),
    "sold": ("store", "name", "sale_id", "quantity", "shipment_id", "shipped_us"),
}
COLUMNS = ("output", "product", "event_us", *dict.fromkeys(sum(RESULT_COLUMNS.values(), ())))

SHIPMENT, SALE, PRODUCT = "shipment", "sale", "product"
# The names of the bodies' fields, and of the frame's columns.
BODY = ("product", "store", "quantity")
ROW = ("name", "price_cents", "reorder_below", "reorder_quantity")

_STEP_PERCENT = 5
_PERCENT_MIN, _PERCENT_MAX = 80, 150


@dataclass(frozen=True, kw_only=True)
class RetailSpec:
    """How long events wait, and the thresholds of demand.

    `window_us`: the interval of demand. `busy` units in a window or more raise the price, `quiet`
    or fewer lower it. `join_us`: a sale is joined with the shipments of this long before it.
    `future_us`: a time further than this after the record's own is malformed (None: none is); it
    would make other stores' events of its partition late.
    """

    lateness_us: int
    window_us: int
    join_us: int
    busy: int
    quiet: int
    future_us: int | None = 60_000_000

    def __post_init__(self) -> None:
        """Refuse a join with unbounded state. Raises `ValueError`."""
        if self.join_us <= 0 or self.window_us <= 0:
            raise ValueError(
                "a join keeps rows for the time in which they can match, and a window until its"
                " end: both must be longer than nothing and have an end"
            )

    @property
    def order(self) -> OrderSpec:
        """The order of events: a shipment comes before a sale of the same moment."""
        return OrderSpec(
            sources=(SHIPMENT, SALE), lateness_us=self.lateness_us, remember_us=self.join_us
        )


@dataclass(kw_only=True)
class _Shelf:
    stock: int = 0
    is_armed: bool = False
    reorders: int = 0


@dataclass(kw_only=True)
class _Product:
    """A product's state. `versions`: its rows as `valid_from_us, offset, row`, sorted."""

    versions: list[list[Any]] = field(default_factory=list)
    waiting: list[Event] = field(default_factory=list)
    shelves: dict[str, _Shelf] = field(default_factory=dict)
    #: `event_us, id, store`, in the order of time.
    shipments: list[list[Any]] = field(default_factory=list)
    window_us: int | None = None
    units: int = 0
    percent: int = 100
    prices: int = 0


@dataclass(frozen=True, kw_only=True)
class RetailStep:
    """The result of one step: the state's bytes, results (`COLUMNS`) and rejected rows."""

    state: bytes
    results: pd.DataFrame
    late: pd.DataFrame
    partitions: pd.DataFrame
    open_rows: int


def fold_retail(
    state: bytes | None,
    rows: pd.DataFrame,
    *,
    spec: RetailSpec,
    now_ms: int,
    is_silent: bool = False,
) -> RetailStep:
    """Take a group's rows: `source, id, event_us, topic, partition, offset, turn` and the fields.

    Rows with a `turn`, and those without an id, only show their partition's progress. `is_silent`:
    all topics were silent for the idle timeout; nothing waits for the slower one.
    """
    order, products = _read(state)
    given = list(_records(rows))
    for record in given:
        if record.source == PRODUCT and record.id is not None:
            _add_version(products.setdefault(record.body["product"], _Product()), record)
    events = [record for record in given if record.source != PRODUCT]
    taken = take(order, events, spec=spec.order, now_ms=now_ms, is_silent=is_silent)
    by_product: dict[str, list[Event]] = defaultdict(list)
    for event in taken.released:
        by_product[event.body["product"]].append(event)
    results: list[dict[str, Any]] = []
    for name in sorted(products.keys() | by_product.keys()):
        product = products.setdefault(name, _Product())
        results += _Fold(name, product, spec).run(by_product[name], order.horizon_us)
    waiting = sum(len(product.waiting) for product in products.values())
    return RetailStep(
        state=_written(order, products),
        results=pd.DataFrame(results, columns=list(COLUMNS), dtype=object),
        late=_late(rows, taken.late),
        partitions=_partitions(rows, taken),
        open_rows=len(order.held) + waiting,
    )


class _Fold:
    """Applies events to one product."""

    def __init__(self, name: str, product: _Product, spec: RetailSpec) -> None:
        self._name = name
        self._product = product
        self._spec = spec

    def run(self, events: Sequence[Event], horizon_us: int) -> Iterator[dict[str, Any]]:
        """Apply waiting and new events, in order; yield the results."""
        product, changed = self._product, {}
        waiting = [*product.waiting, *events]
        for index, event in enumerate(waiting):
            if not product.versions and event.event_us >= horizon_us - self._spec.join_us:
                product.waiting = waiting[index:]
                break
            yield from self._close_window(event.event_us)
            yield from self._apply(event)
            changed[event.body["store"]] = event.event_us
        else:
            product.waiting = []
            yield from self._close_window(horizon_us)
        for store, event_us in sorted(changed.items()):
            yield self._result("stock", event_us, store=store, stock=product.shelves[store].stock)
        self._forget(horizon_us)

    def _apply(self, event: Event) -> Iterator[dict[str, Any]]:
        product, store, quantity = self._product, event.body["store"], event.body["quantity"]
        shelf = product.shelves.setdefault(store, _Shelf())
        if self._spec.order.sources[event.rank] == SHIPMENT:
            shelf.stock += quantity
            product.shipments.append([event.event_us, event.id, store])
        else:
            shelf.stock -= quantity
            product.window_us = event.event_us - event.event_us % self._spec.window_us
            product.units += quantity
            yield from self._joined(event)
        yield from self._reordered(event, shelf)

    def _joined(self, sale: Event) -> Iterator[dict[str, Any]]:
        since_us, row = sale.event_us - self._spec.join_us, self._row(sale.event_us)
        for shipped_us, shipment, store in self._product.shipments:
            if store == sale.body["store"] and since_us <= shipped_us:
                yield self._result(
                    "sold",
                    sale.event_us,
                    store=store,
                    name=row.get("name"),
                    sale_id=sale.id,
                    quantity=sale.body["quantity"],
                    shipment_id=shipment,
                    shipped_us=shipped_us,
                )

    def _reordered(self, event: Event, shelf: _Shelf) -> Iterator[dict[str, Any]]:
        """Reorder once each time that stock falls to the threshold."""
        row = self._row(event.event_us)
        if not row:
            return
        if shelf.stock > row["reorder_below"]:
            shelf.is_armed = True
        elif shelf.is_armed:
            shelf.is_armed = False
            shelf.reorders += 1
            yield self._result(
                "reorder",
                event.event_us,
                store=event.body["store"],
                number=shelf.reorders,
                quantity=row["reorder_quantity"],
                stock=shelf.stock,
            )

    def _close_window(self, until_us: int) -> Iterator[dict[str, Any]]:
        product, spec = self._product, self._spec
        if product.window_us is None or product.window_us + spec.window_us > until_us:
            return
        start_us, units = product.window_us, product.units
        product.window_us, product.units = None, 0
        row = self._row(start_us + spec.window_us)
        step = _STEP_PERCENT * ((units >= spec.busy) - (units <= spec.quiet))
        percent = min(max(product.percent + step, _PERCENT_MIN), _PERCENT_MAX)
        if row and percent != product.percent:
            product.percent = percent
            product.prices += 1
            yield self._result(
                "price",
                start_us + spec.window_us,
                number=product.prices,
                units=units,
                percent=percent,
                price_cents=row["price_cents"] * percent // 100,
            )

    def _row(self, at_us: int) -> dict[str, Any]:
        """Return the newest row valid at a time, or the oldest one; empty if there is none."""
        versions = self._product.versions
        valid = [row for valid_from_us, _, row in versions if valid_from_us <= at_us]
        found: dict[str, Any] = valid[-1] if valid else versions[0][-1] if versions else {}
        return found

    def _forget(self, horizon_us: int) -> None:
        """Drop state that no later event can need."""
        product = self._product
        begin_us = min((event.event_us for event in product.waiting), default=horizon_us)
        since_us = begin_us - self._spec.join_us
        product.shipments = [each for each in product.shipments if each[0] >= since_us]
        # An earlier window ends at most one window length later.
        valid = [each for each in product.versions if each[0] <= begin_us - self._spec.window_us]
        product.versions = product.versions[max(len(valid) - 1, 0) :]

    def _result(self, output: str, event_us: int, **columns: Any) -> dict[str, Any]:
        return {"output": output, "product": self._name, "event_us": event_us, **columns}


def _add_version(product: _Product, record: Record) -> None:
    row = {name: record.body[name] for name in ROW}
    version = [record.event_us, record.offset, row]
    others = [each for each in product.versions if each[:2] != version[:2]]
    product.versions = sorted([*others, version], key=lambda each: (each[0], each[1]))


def _records(rows: pd.DataFrame) -> Iterator[Record]:
    names = ("source", "partition", "offset", "event_us", "id", "turn", *BODY, *ROW)
    columns = [rows[name].tolist() for name in names]
    for index, values in enumerate(zip(*columns, strict=True)):
        source, partition, offset, event_us, found, turn, *fields = values
        is_event = turn == 0 and isinstance(found, str)
        yield Record(
            source=source,
            partition=int(partition),
            offset=int(offset),
            event_us=int(event_us),
            id=found if is_event else None,
            body=dict(zip((*BODY, *ROW), fields, strict=True)) if is_event else {},
            row=index,
        )


def _late(rows: pd.DataFrame, late: dict[int, int]) -> pd.DataFrame:
    found = rows.iloc[list(late)]
    return found.assign(watermark_us=np.array(list(late.values()), dtype=np.int64))


def _partitions(rows: pd.DataFrame, taken: Taken) -> pd.DataFrame:
    """Count what came of the group's own rows. A row without an id is counted: it has a time."""
    is_late, is_duplicate = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    is_late[list(taken.late)] = True
    is_duplicate[taken.duplicates] = True
    own = pd.DataFrame(
        {
            "topic": rows["topic"],
            "source": rows["source"],
            "partition": rows["partition"],
            "counted": ~(is_late | is_duplicate),
            "late": is_late,
            "duplicate": is_duplicate,
        }
    )[rows["turn"].to_numpy() == 0]
    at = ["topic", "source", "partition"]
    counts = own.groupby(at)[["counted", "late", "duplicate"]].sum().reset_index()
    marks = [
        taken.watermarks_us.get((source, partition))
        for source, partition in zip(counts["source"], counts["partition"], strict=True)
    ]
    return counts.drop(columns="source").assign(
        watermark_us=pd.Series(marks, index=counts.index, dtype="float64")
    )


def _read(state: bytes | None) -> tuple[OrderState, dict[str, _Product]]:
    if state is None:
        return OrderState(), {}
    document = json.loads(state)
    products = {}
    for name, each in document["products"].items():
        shelves = {store: _Shelf(**shelf) for store, shelf in each.pop("shelves").items()}
        waiting = [Event(*event) for event in each.pop("waiting")]
        products[name] = _Product(shelves=shelves, waiting=waiting, **each)
    return OrderState.from_json(document["order"]), products


def _written(order: OrderState, products: dict[str, _Product]) -> bytes:
    document = {
        "order": order.to_json(),
        "products": {name: asdict(product) for name, product in products.items()},
    }
    return json.dumps(document).encode()
