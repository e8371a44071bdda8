"""The job `cpu-load`: CPU readings in, average and maximum for each event-time window out.

Delivery is at least once: the checkpoint and the output topic are two stores (see
`headrace_jobs.sinks.kafka`). A window's records have the window in their key, so a reader can keep
the newest one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from headrace_jobs.declaration import Job, Parameter, Topic
from headrace_jobs.jobs.arguments import duration
from headrace_jobs.jobs.declared import run_declared
from headrace_jobs.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["JOB", "KEY_COLUMNS"]

KEY_COLUMNS = ("hostname", "cpu")


def _cpu_load(
    records: DataFrame, *, window: int, slide: int | None, watermark: int, output_mode: str
) -> DataFrame:
    from headrace_jobs.transforms.cpu_load import live_usage_windows, past_usage_windows

    if not records.isStreaming:
        return past_usage_windows(records, window_ms=window, slide_ms=slide)
    return live_usage_windows(
        records,
        window_ms=window,
        slide_ms=slide,
        watermark_ms=watermark,
        is_update=output_mode == "update",
    )


def _check_windows(parameters: Mapping[str, Any]) -> None:
    window, slide = parameters["window"], parameters["slide"]
    if window <= 0:
        raise ValueError("argument --window: must be longer than nothing")
    if slide is not None and not 0 < slide <= window:
        raise ValueError(
            "argument --slide: must be longer than nothing and no longer than --window"
        )


JOB = Job(
    name="cpu-load",
    description="Average and maximum CPU usage in event-time windows.",
    sources=(Topic(),),
    transform=_cpu_load,
    sinks=(KafkaSink(key_columns=KEY_COLUMNS, number_columns=("cpu",)),),
    result_key=("window_start", *KEY_COLUMNS),
    parameters=(
        Parameter(
            name="window", parse=duration, default="10s", help="size of a window (default: 10s)"
        ),
        Parameter(
            name="slide", parse=duration, help="windows begin this often (default: its size)"
        ),
        Parameter(
            name="watermark",
            parse=duration,
            default="10s",
            help="how late a reading may come, in event time (default: 10s)",
        ),
    ),
    check=_check_windows,
)

if __name__ == "__main__":
    sys.exit(run_declared(JOB))
