"""The Spark session of a job, with the Kafka connector's jars; an error names what is missing.

A job is started in one of three ways: by `headrace_jobs.launch` (`PYSPARK_SUBMIT_ARGS` names the
jars), by a user's spark-submit (the image has the jars, or `spark.jars` names them), or by plain
Python; then the jars are resolved here.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_jobs.jars import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = [
    "LOG4J_CONFIGURATION",
    "STATE_SETTINGS",
    "WORKER_DAEMON",
    "SessionError",
    "open_session",
]

LOG4J_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

_KAFKA_SOURCE_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

# `transformWithState` supports only RocksDB, where the disk bounds the state and not the heap; with
# the changelog a batch uploads only its changes.
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

#: Beside the file with the address of the metrics: where Spark's own pages are, if they are on.
PAGES_ADDRESS_FILE = "spark-ui.address"

#: Which process Python workers are forked from, where workers are sure to have our packages.
WORKER_DAEMON = {"spark.python.daemon.module": "headrace_jobs.worker_daemon"}

# The checkpoint fixes them, so they limit how far a job can scale: as many as there are groups of
# keys (`transforms.key_groups`). Spark's default, 200, costs 200 tasks in each batch.
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SHUFFLE_PARTITIONS = "16"


class SessionError(Exception):
    """No session can be started here; the message says what is missing."""


def open_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start the session; `settings` are Spark's. Raises `SessionError` and `JarError`."""
    from pyspark.sql import SparkSession

    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise SessionError("Spark needs Java 17 or later: put java on PATH or set JAVA_HOME.")

    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    if _is_started_plainly():
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Sinks and decoders run in Python workers; another installation's workers lack the
        # packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for key, value in _plain_settings().items():
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    for key, value in STATE_SETTINGS.items():
        session.conf.set(key, value)
    if not session.sparkContext.getConf().contains(_SHUFFLE_PARTITIONS):
        session.conf.set(_SHUFFLE_PARTITIONS, SHUFFLE_PARTITIONS)
    if not _has_class(session, _KAFKA_SOURCE_CLASS):
        session.stop()
        raise SessionError(
            "Spark has no Kafka connector. `python -m headrace_jobs.jars` prints the jars it "
            "needs: put them into the image's /opt/spark/jars, or name them in spark.jars."
        )
    return session


def _is_started_plainly() -> bool:
    return "PYSPARK_GATEWAY_PORT" not in os.environ and "PYSPARK_SUBMIT_ARGS" not in os.environ


def _plain_settings() -> dict[str, str]:
    log4j = f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()}"
    return {
        **WORKER_DAEMON,
        "spark.jars": ",".join(str(path) for path in resolve()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": log4j,
    }


def _has_class(session: SparkSession, name: str) -> bool:
    """Whether the driver's class loader (which has `spark.jars` too) finds a class."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - pyspark offers no public way to the JVM
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)  # noqa: FBT003 - Java's signature
    except Py4JJavaError:
        return False
    return True
