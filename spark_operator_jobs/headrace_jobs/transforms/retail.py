"""Turns sales, shipments and products into stock, reorders, prices and sold deliveries.

Values are JSON objects. A sale: `{"sale_id": "s-1", "store": "north", "product": "p-01",
"quantity": 2, "occurred_at": 1767225600000}`; a shipment has `shipment_id` in its place. A product,
in a compacted topic: `{"product": "p-01", "name": "Tea", "price_cents": 450, "reorder_below": 20,
"reorder_quantity": 40, "valid_from": 1767225600000}`. Times are milliseconds or ISO 8601. A record
`{"heartbeat": true, "occurred_at": …}` reports the progress of its partition. `retail_fold.py`
defines the results.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

from headrace_jobs.transforms.json_text import with_json
from headrace_jobs.transforms.key_groups import GroupProcessor, fold_groups
from headrace_jobs.transforms.retail_fold import (
    BODY,
    PRODUCT,
    ROW,
    SALE,
    SHIPMENT,
    RetailSpec,
    RetailStep,
    fold_retail,
)
from headrace_jobs.transforms.times import event_time, judge_future

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from pyspark.sql import Column, DataFrame

__all__ = ["retail_results"]

# Topics are slow compared with CPU readings, and held events wait for the slowest partition.
TICK_RECORDS = 32

# A sum of these never outgrows 64 bits.
_QUANTITY_MAX = 10**9
_PRICE_CENTS_MAX = 10**12

_EVENT = "store STRING, product STRING, quantity LONG, heartbeat BOOLEAN, occurred_at STRING"
_VALUES = {
    SALE: f"sale_id STRING, {_EVENT}",
    SHIPMENT: f"shipment_id STRING, {_EVENT}",
    PRODUCT: "product STRING, name STRING, price_cents LONG, reorder_below LONG,"
    " reorder_quantity LONG, valid_from STRING",
}
_RESULTS = (
    "output STRING, product STRING, event_us LONG, store STRING, stock LONG, number LONG,"
    " quantity LONG, units LONG, percent LONG, price_cents LONG, name STRING, sale_id STRING,"
    " shipment_id STRING, shipped_us LONG"
)


def retail_results(
    sales: DataFrame, shipments: DataFrame, products: DataFrame, spec: RetailSpec
) -> DataFrame:
    """Return the results of streams of Kafka's records, together with rejected records.

    Returns `output` (`stock`, `reorder`, `price`, `sold`), the columns of each, and `tagged.SIDE`.
    """
    parts = ((SALE, sales), (SHIPMENT, shipments), (PRODUCT, products))
    every = reduce(
        lambda one, other: one.unionByName(other),
        (_judged(kind, part, spec.future_us) for kind, part in parts),
    )
    schema: T.StructType = T.StructType.fromDDL(_RESULTS)  # type: ignore[assignment] # any type has it
    out = fold_groups(
        every,
        keys=("product",),
        columns=("source", "id", *BODY[1:], *ROW),
        results=schema,
        processor=lambda columns: _RetailProcessor(spec, columns),
        is_update=False,
    )
    plain = [field.name for field in schema if not field.name.endswith("_us")]
    return out.select(
        *plain,
        F.timestamp_micros("event_us").alias("event_time"),
        F.timestamp_micros("shipped_us").alias("shipped_at"),
        *(F.col(name) for name in out.columns if name.startswith("_")),
    )


def _judged(kind: str, records: DataFrame, future_us: int | None) -> DataFrame:
    """Return Kafka's columns, the fields of all kinds, `source, id, event_time` and `reason`."""
    schema: T.StructType = T.StructType.fromDDL(_VALUES[kind])  # type: ignore[assignment] # as above
    parsed = with_json(records, schema, "parsed")

    def parsed_field(name: str, type_name: str) -> Column:
        has_it = name in schema.fieldNames()
        return F.col(f"parsed.{name}") if has_it else F.lit(None).cast(type_name)

    numbers = ("quantity", "price_cents", "reorder_below", "reorder_quantity")
    own_id = {SALE: "sale_id", SHIPMENT: "shipment_id", PRODUCT: "product"}[kind]
    time = "valid_from" if kind == PRODUCT else "occurred_at"
    rows = parsed.select(
        *records.columns,
        F.lit(kind).alias("source"),
        F.when(~_is_heartbeat(kind), F.col(f"parsed.{own_id}")).alias("id"),
        *(parsed_field(name, "string").alias(name) for name in ("product", "store", "name")),
        *(parsed_field(name, "long").alias(name) for name in numbers),
        _is_heartbeat(kind).alias("heartbeat"),
        (_is_heartbeat(kind) | (F.col("offset") % TICK_RECORDS == 0)).alias("is_tick"),
        event_time(F.col(f"parsed.{time}")).alias("event_time"),
    )
    judged = rows.withColumn("reason", _reason(kind, own_id, time))
    if kind != PRODUCT:  # which moves no clock, and may be valid from next month on
        judged = judge_future(judged, future_us)
    # Other kinds have no such number, and the fold does not look at theirs.
    return judged.withColumns({name: F.coalesce(name, F.lit(0)) for name in numbers})


def _is_heartbeat(kind: str) -> Column:
    if kind == PRODUCT:
        return F.lit(False)  # noqa: FBT003 - Spark's API
    return F.coalesce(F.col("parsed.heartbeat"), F.lit(False))  # noqa: FBT003 - Spark's API


def _reason(kind: str, own_id: str, time: str) -> Column:
    """Return why a record is malformed; null when it is not."""
    fields = ("price_cents", "reorder_below", "reorder_quantity") if kind == PRODUCT else ()
    positive = () if kind == PRODUCT else ("quantity",)
    bounds = dict.fromkeys((*positive, *fields), _QUANTITY_MAX)
    if kind == PRODUCT:
        bounds["price_cents"] = _PRICE_CENTS_MAX
    texts = (own_id, "name") if kind == PRODUCT else (own_id, "product", "store")
    rules = [
        (F.col("value").isNotNull(), "it has no value"),
        (F.col("event_time").isNotNull(), f"{time} is neither ISO 8601 nor milliseconds"),
        *((_has_text("id" if name == own_id else name), f"{name} is missing") for name in texts),
        *((F.col(name) > 0, f"{name} is no number above 0") for name in positive),
        *((F.col(name) >= 0, f"{name} is no number from 0") for name in fields),
        *((F.col(name) <= most, f"{name} is more than {most}") for name, most in bounds.items()),
    ]
    broken = [
        F.when(~F.coalesce(holds, F.lit(False)), F.lit(reason))  # noqa: FBT003 - Spark's API
        for holds, reason in rules
    ]
    # A heartbeat has only a time.
    return F.when(F.col("heartbeat"), F.coalesce(*broken[:2])).otherwise(F.coalesce(*broken))


def _has_text(name: str) -> Column:
    return F.length(F.trim(F.col(name))) > 0


class _RetailProcessor(GroupProcessor):
    wants_ticks = True

    def __init__(self, spec: RetailSpec, columns: Sequence[str]) -> None:
        super().__init__(columns)
        self._spec = spec

    def fold(
        self, state: bytes | None, rows: pd.DataFrame, *, now_ms: int, is_silent: bool
    ) -> tuple[bytes, RetailStep]:
        """Fold events into the state of their products."""
        named = rows.assign(topic=rows["record_topic"])
        step = fold_retail(state, named, spec=self._spec, now_ms=now_ms, is_silent=is_silent)
        return step.state, step
