"""The job `retail`: sales and shipments in; stock, reorders, prices and sold deliveries out.

The same program handles past and live data: it holds events until all topics have passed their
time, so a rewind, a backfill and the live run give the same results. Exactly once into each output:

- topics `PREFIX-reorders`, `PREFIX-prices` and `PREFIX-stock`; `HEADRACE_RETAIL_TOPICS` is the
  prefix, `retail` without it;
- a Delta table of what was sold of which shipment, in the folder `HEADRACE_RETAIL_FILES`, or
  beside the checkpoint;
- the table `HEADRACE_RETAIL_TABLE` (`retail_stock`) of PostgreSQL, where `HEADRACE_RETAIL_DSN` says
  which database.

Sales and shipments may be out of order by `--lateness`; later ones go to the dead letters.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_jobs.declaration import Delivery, Job, Parameter, Topic
from headrace_jobs.jobs.arguments import duration
from headrace_jobs.jobs.declared import run_declared
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.only import Only
from headrace_jobs.sinks.postgres import PostgresTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from headrace_jobs.sinks.protocol import Sink

__all__ = ["JOB"]

_STOCK = ("product", "store", "stock", "event_time")
_REORDER = ("product", "store", "number", "quantity", "stock", "event_time")
_PRICE = ("product", "number", "units", "percent", "price_cents", "event_time")
_SOLD = (
    *("sale_id", "shipment_id", "product", "name", "store", "quantity"),
    *("event_time", "shipped_at"),
)


def _retail(
    sales: DataFrame,
    shipments: DataFrame,
    products: DataFrame,
    **parameters: Any,
) -> DataFrame:
    from headrace_jobs.transforms.retail import retail_results
    from headrace_jobs.transforms.retail_fold import RetailSpec

    return retail_results(sales, shipments, products, RetailSpec(**_durations(parameters)))


def _durations(parameters: Mapping[str, Any]) -> dict[str, int]:
    return {
        "lateness_us": parameters["lateness"] * 1000,
        "window_us": parameters["window"] * 1000,
        "join_us": parameters["join_within"] * 1000,
        "busy": parameters["busy"],
        "quiet": parameters["quiet"],
        "future_us": parameters["future"] * 1000,
    }


def _check(parameters: Mapping[str, Any]) -> None:
    for name in ("window", "join_within"):
        if parameters[name] <= 0:
            flag = name.replace("_", "-")
            raise ValueError(f"argument --{flag}: must be longer than nothing")
    if parameters["quiet"] >= parameters["busy"]:
        raise ValueError("argument --quiet: must be less than --busy")


def _sinks(environment: Mapping[str, str]) -> tuple[Sink, ...]:
    prefix = environment.get("HEADRACE_RETAIL_TOPICS") or "retail"
    beside = Path(environment.get("HEADRACE_CHECKPOINT_DIR") or "checkpoint").parent / "sold"
    files = environment.get("HEADRACE_RETAIL_FILES") or str(beside)
    dsn = environment.get("HEADRACE_RETAIL_DSN")
    table = environment.get("HEADRACE_RETAIL_TABLE") or "retail_stock"
    topics = {"stock": (_STOCK, 2), "reorder": (_REORDER, 3), "price": (_PRICE, 1)}
    names = {"stock": "stock", "reorder": "reorders", "price": "prices"}
    found: list[Sink] = [
        Only(
            rows=f"output = '{output}'",
            columns=columns,
            sink=KafkaSink(topic=f"{prefix}-{names[output]}", key_columns=columns[:keys]),
        )
        for output, (columns, keys) in topics.items()
    ]
    found.append(Only(rows="output = 'sold'", columns=_SOLD, sink=FileTable(path=files)))
    if dsn is not None:
        stock = PostgresTable(table=table, key=_STOCK[:2], dsn=dsn)
        found.append(Only(rows="output = 'stock'", columns=_STOCK, sink=stock))
    return tuple(found)


JOB = Job(
    name="retail",
    description="Stock, reorders, prices and sold deliveries from sales and shipments.",
    sources=(
        Topic("retail-sales", name="sales"),
        Topic("retail-shipments", name="shipments"),
        Topic("retail-products", name="products"),
    ),
    transform=_retail,
    sinks=_sinks(os.environ),
    delivery=Delivery.EXACTLY_ONCE,
    parameters=(
        Parameter(
            name="lateness",
            parse=duration,
            default="10s",
            help="how late a record may come, in event time (default: 10s)",
        ),
        Parameter(
            name="window",
            parse=duration,
            default="30s",
            help="demand is looked at, and prices change, this often (default: 30s)",
        ),
        Parameter(
            name="join-within",
            parse=duration,
            default="10m",
            help="a sale is joined with shipments of so long before it (default: 10m)",
        ),
        Parameter(
            name="busy",
            parse=int,
            default="25",
            help="units in a window that raise the price (default: 25)",
        ),
        Parameter(
            name="quiet",
            parse=int,
            default="5",
            help="units in a window, or fewer, that lower it (default: 5)",
        ),
        Parameter(
            name="future",
            parse=duration,
            default="1m",
            help="a sale or shipment further than this after its record is malformed (default: 1m)",
        ),
    ),
    check=_check,
)

if __name__ == "__main__":
    sys.exit(run_declared(JOB))
