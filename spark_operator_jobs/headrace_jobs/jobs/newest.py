"""The job `newest`: full-state events in, the newest of each key out to a compacted topic.

The output's record key is the event's key alone, so compaction keeps one record for each key: the
newest by event time, in whatever order events arrived. Compaction keeps what was written last, so a
driver that hung and wakes must write nothing: the broker fences a transaction's producer alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from headrace_jobs.declaration import Delivery, Job, Parameter, Topic
from headrace_jobs.jobs.arguments import duration
from headrace_jobs.jobs.declared import run_declared
from headrace_jobs.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["JOB"]


def _newest(
    records: DataFrame, *, key_field: str, time_field: str, ttl: int, future: int
) -> DataFrame:
    from headrace_jobs.transforms.newest import newest_by_key

    return newest_by_key(
        records,
        key_field=key_field,
        time_field=time_field,
        ttl_ms=ttl,
        future_us=future * 1000,
    )


def _check(parameters: Mapping[str, Any]) -> None:
    if parameters["ttl"] <= 0:
        raise ValueError("argument --ttl: must be longer than nothing")
    for name in ("key_field", "time_field"):
        if not parameters[name]:
            raise ValueError(f"argument --{name.replace('_', '-')}: it is empty: name the field")


JOB = Job(
    name="newest",
    description="Keeps the newest event of each key, by event time.",
    sources=(Topic(),),
    transform=_newest,
    sinks=(KafkaSink(key_columns=("key",), value_column="value"),),
    delivery=Delivery.EXACTLY_ONCE,
    output_mode="update",
    parameters=(
        Parameter(name="key-field", default="id", help="the event's key (default: id)"),
        Parameter(
            name="time-field", default="occurred_at", help="its event time (default: occurred_at)"
        ),
        Parameter(
            name="ttl",
            parse=duration,
            default="7d",
            help="a key without events for so long is forgotten (default: 7d)",
        ),
        Parameter(
            name="future",
            parse=duration,
            default="1h",
            help="an event further than this after its record is malformed (default: 1h)",
        ),
    ),
    check=_check,
)

if __name__ == "__main__":
    sys.exit(run_declared(JOB))
