"""The job `cpu-load`: CPU readings in, average and maximum for each event-time window out.

Delivery is at least once, from reading to writing: the checkpoint and the output topic are two
stores (see `headrace_jobs.sinks.kafka`). Records of one window carry their window as a key a reader
can keep the newest of.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from headrace_jobs import logs
from headrace_jobs.durations import spark_interval
from headrace_jobs.jobs.arguments import add_common_arguments, common_settings, duration
from headrace_jobs.jobs.runner import run_query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

__all__ = ["KEY_COLUMNS", "main"]

QUERY_NAME = "cpu_load"
KEY_COLUMNS = ("hostname", "cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until it is stopped. Returns the exit status; bad arguments exit with 2."""
    parser = _parser(os.environ)
    parsed = parser.parse_args(arguments)
    _check_windows(parser, parsed)
    logs.configure()

    def pipeline(records: DataFrame) -> DataFrame:
        return _cpu_load(
            records,
            window=spark_interval(parsed.window),
            slide=spark_interval(parsed.slide) if parsed.slide else None,
            watermark=spark_interval(parsed.watermark),
        )

    return run_query(
        common_settings(parsed),
        QUERY_NAME,
        pipeline=pipeline,
        key_columns=KEY_COLUMNS,
        rejected=_rejected,
    )


def _rejected(records: DataFrame) -> DataFrame:
    from headrace_jobs.transforms.cpu_load import rejected_records

    return rejected_records(records)


def _cpu_load(records: DataFrame, *, window: str, slide: str | None, watermark: str) -> DataFrame:
    """Chain the job's transforms, with the observations that metrics are made of."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    from headrace_jobs.progress.listener import OBSERVED_INPUT
    from headrace_jobs.transforms.cpu_load import (
        parse_readings,
        usage_windows,
        well_formed_readings,
    )

    parsed = parse_readings(records).observe(
        OBSERVED_INPUT, F.sum(F.col("malformed").cast("long")).alias("malformed")
    )
    return usage_windows(
        well_formed_readings(parsed), window=window, slide=slide, watermark=watermark
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cpu-load", description="Average and maximum CPU usage in event-time windows."
    )
    add_common_arguments(parser, environment)
    windows = parser.add_argument_group("windows")
    windows.add_argument(
        "--window", type=duration, default="10s", help="size of a window (default: 10s)"
    )
    windows.add_argument(
        "--slide", type=duration, default=None, help="windows begin this often (default: its size)"
    )
    windows.add_argument(
        "--watermark",
        type=duration,
        default="10s",
        help="how late a reading may come, in event time (default: 10s)",
    )
    return parser


def _check_windows(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    if parsed.window <= 0:
        parser.error("argument --window: must be longer than nothing")
    if parsed.slide is not None and not 0 < parsed.slide <= parsed.window:
        parser.error("argument --slide: must be longer than nothing and no longer than --window")


if __name__ == "__main__":
    sys.exit(main())
