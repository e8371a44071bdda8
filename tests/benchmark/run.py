"""`python tests/benchmark/run.py`: measure Headrace beside Apache Kafka. See `--help`."""

import runpy
import sys
from pathlib import Path

# Neither tests/ nor tests/benchmark/ is installed; both are importable from here on.
sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("benchmark.main", run_name="__main__")
