"""`make conformance-suites`: the test suites of other people's clients, against our broker.

`python tests/conformance/suites/run.py [kgo] [librdkafka] [--only NAME]`; `--peer kafka` runs them
against Apache Kafka, which says what they can show at all.
"""

import runpy
import sys
from pathlib import Path

# Neither tests/ nor this folder is installed; both are importable from here on.
sys.path[0] = str(Path(__file__).resolve().parents[2])
runpy.run_module("conformance.suites.main", run_name="__main__")
