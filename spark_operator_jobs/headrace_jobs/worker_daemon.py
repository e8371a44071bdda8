"""The process that Spark forks Python workers from, with pandas and the folds imported before.

Spark's own daemon imports nothing, so each of its workers imports pandas and Arrow for itself: 0.7
s of a processor and some 60 MiB for each task that runs at a time. Pages that were there before the
fork are shared.
"""

from __future__ import annotations

import gc

import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401 - imported for the workers
from pyspark.daemon import manager

import headrace_jobs.transforms.event_time
import headrace_jobs.transforms.ordered_fold  # noqa: F401 - the same

if __name__ == "__main__":
    gc.freeze()  # a collection would write to the shared pages
    manager()
