"""What a job's driver is started with in a test, as a process of its own."""

import os
import shlex
import sys
from pathlib import Path

import pyspark

from headrace_jobs.jars import resolve
from headrace_jobs.session import LOG4J_CONFIGURATION
from support.shared_classes import shared_class_options

_JAVA_OPTIONS = (
    f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()} "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)
_TESTS = Path(__file__).parents[1]


def python_path() -> str:
    """Return where a driver finds `support`, and whatever the tests themselves are of."""
    return os.pathsep.join(filter(None, [str(_TESTS), os.environ.get("PYTHONPATH")]))


def driver_environment(master: str = "local[2]") -> dict[str, str]:
    """Return the environment: a small Spark on this machine, and `support` to be imported.

    `local-cluster[1,1,512]` has an executor that is a process of its own.
    """
    shared, java_options = shared_class_options()
    submit = [
        *shared,
        *("--master", master, "--driver-memory", "512m"),
        # A local-cluster does not look at --executor-memory.
        *("--conf", "spark.executor.memory=512m"),
        *("--conf", f"spark.executor.extraJavaOptions={_JAVA_OPTIONS}"),
        *("--jars", ",".join(map(str, resolve()))),
        *("--driver-java-options", f"{_JAVA_OPTIONS} {java_options}"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.ui.showConsoleProgress=false", "pyspark-shell"),
    ]
    return {
        "PYTHONPATH": python_path(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join(submit),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
