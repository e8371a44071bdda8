"""What `headrace jobs new` writes: a job that runs, a test that passes, and its manifest. Pure."""

from __future__ import annotations

import keyword
import sys
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["is_taken", "job_files"]

# Names that the test uses for something else.
_OF_THE_TEST = ("spark",)
# What YAML takes for something else than a text.
_OF_YAML = ("false", "no", "null", "off", "on", "true", "yes")

_JOB = '''"""The job `{name}`: counts the records of each key in windows of ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_jobs.declaration import Delivery, Job, Topic
from headrace_jobs.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECOND_US = 1_000_000


def {module}(records: DataFrame) -> DataFrame:
    """Return `window_start, window_end, name, records, revision`; `records` has Kafka's columns.

    Each name has a watermark of its own, ten seconds behind its newest record. What comes later is
    counted, and goes to --dead-letter-topic where that is given.
    """
    from pyspark.sql import functions as F
    from headrace_jobs.transforms.event_time import event_time_windows
    from headrace_jobs.transforms.window_fold import WindowSpec

    spec = WindowSpec(
        keys=("name",),
        aggregates={{"records": ("name", "count")}},
        window_us=10 * SECOND_US,
        slide_us=10 * SECOND_US,
        lateness_us=10 * SECOND_US,
    )
    return event_time_windows(
        records.withColumns(
            {{
                "name": F.coalesce(F.col("key").cast("string"), F.lit("")),
                "event_time": F.col("timestamp"),
                # Why a record cannot be counted; null where it can.
                "reason": F.lit(None).cast("string"),
            }}
        ),
        spec,
    )


JOB = Job(
    name="{name}",
    description="Counts the records of each key in windows of ten seconds.",
    sources=(Topic("{name}"),),
    transform={module},
    sinks=(KafkaSink(topic="{name}-out", key_columns=("name",)),),
    delivery=Delivery.AT_LEAST_ONCE,
)
'''

_TEST = '''"""The transform of `{name}`, on a frame that does not stream."""

import os
import sys
from datetime import datetime

import pytest

from {module} import JOB


@pytest.fixture(scope="session")
def spark():
    from pyspark.sql import SparkSession

    os.environ |= {{"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    yield session
    session.stop()


def test_the_job_is_declared():
    from headrace_jobs.declaration import problems

    assert problems(JOB) == []


def test_records_are_counted_by_key_and_window(spark):
    rows = [(b"a", datetime(2026, 1, 31, 12, 0, second)) for second in (1, 2, 11)]
    records = spark.createDataFrame(rows, "key BINARY, timestamp TIMESTAMP")
    found = sorted((row.name, row.records) for row in JOB.transform(records).collect())
    assert found == [("a", 1), ("a", 2)]
'''

_MANIFEST = """apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata:
  name: {name}
  labels:
    headrace.dev/cluster: main
spec:
  type: Python
  pythonVersion: "3"
  sparkVersion: 4.3.0
  mode: cluster
  # FROM headrace/jobs:0.1.0, with the module on PYTHONPATH: COPY {module}.py /opt/jobs/
  image: example/{name}:1
  # Headrace runs the JOB of the module that the first argument names. `headrace up` looks for it in
  # the folder that it was started in.
  mainApplicationFile: local:///opt/headrace/headrace_jobs/jobs/run.py
  arguments:
    - {module}
    - --bootstrap-servers
    - $(HEADRACE_BOOTSTRAP)
    - --group
    - {name}-job
    - --delivery
    - at-least-once
    - --generation
    - "1"
  sparkConf:
    spark.sql.session.timeZone: UTC
  restartPolicy:
    type: Always
  volumes:
    - name: checkpoint
      persistentVolumeClaim:
        claimName: {name}-checkpoint
  driver:
    cores: 1
    memory: 512m
    serviceAccount: spark
    env: &env
      - name: HEADRACE_BOOTSTRAP
        value: main-bootstrap:9092
      - name: HEADRACE_CHECKPOINT_DIR
        value: /var/lib/headrace/checkpoint
      - name: PYTHONPATH
        value: /opt/jobs
    volumeMounts: &mounts
      - name: checkpoint
        mountPath: /var/lib/headrace/checkpoint
  executor:
    instances: 1
    cores: 1
    memory: 512m
    env: *env
    volumeMounts: *mounts
---
apiVersion: headrace.dev/v1beta1
kind: Cluster
metadata:
  name: main
spec:
  pools:
    - name: brokers
      replicas: 1
      roles: [broker, controller]
      storage:
        size: 10Gi
  listeners:
    - name: plain
      port: 9092
  config:
    offsets.topic.replication.factor: 1
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}-checkpoint
spec:
  # On more than one node: a class that has it.
  accessModes: [ReadWriteMany]
  resources:
    requests:
      storage: 1Gi
---
apiVersion: headrace.dev/v1beta1
kind: Topic
metadata:
  name: {name}
spec:
  clusterRef:
    name: main
  partitions: 4
---
apiVersion: headrace.dev/v1beta1
kind: Topic
metadata:
  name: {name}-out
spec:
  clusterRef:
    name: main
  partitions: 4
---
apiVersion: headrace.dev/v1beta1
kind: ConsumerGroup
metadata:
  name: {name}-job
spec:
  clusterRef:
    name: main
  topics: [{name}]
  targetRef:
    apiVersion: sparkoperator.k8s.io/v1beta2
    kind: SparkApplication
    name: {name}
"""


def is_taken(name: str) -> bool:
    """Whether a job's module would have the name of something else, or none that Python takes."""
    module = name.replace("-", "_")
    is_known = module in sys.stdlib_module_names or module in (*_OF_THE_TEST, *_OF_YAML)
    # Pytest would take the job itself for a test.
    is_known = is_known or module.startswith("test_")
    places = [each for each in sys.path if each not in ("", str(Path.cwd()))]
    found = PathFinder.find_spec(module, places)
    # Without an origin it is a folder, which hides nothing.
    is_installed = found is not None and found.origin is not None
    return keyword.iskeyword(module) or is_known or is_installed


def job_files(name: str) -> dict[str, str]:
    """Return the files of a new job: their names, and what is in them."""
    module = name.replace("-", "_")
    templates = {f"{module}.py": _JOB, f"test_{module}.py": _TEST, "manifest.yaml": _MANIFEST}
    return {file: text.format(name=name, module=module) for file, text in templates.items()}
