"""Python workers are forked from a process that has imported what they need."""

import os
import sys

import psutil
import pytest

pytestmark = pytest.mark.spark


def test_workers_begin_with_pandas_imported_and_share_it(spark):
    def look(_: object) -> list[tuple[list[str], bool, float]]:
        parent = psutil.Process(os.getppid())
        shared = psutil.Process().memory_full_info()
        return [(parent.cmdline(), "pandas" in sys.modules, shared.uss / shared.rss)]

    ((command, has_pandas, own),) = (
        spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    )
    assert "headrace_jobs.worker_daemon" in command
    assert has_pandas
    assert own < 0.7
