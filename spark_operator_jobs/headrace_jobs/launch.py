"""Runs a SparkApplication on this machine: `python -m headrace_jobs.launch FILE.yaml`.

Turns a `sparkoperator.k8s.io/v1beta2` resource, unchanged, into a command for PySpark's own
spark-submit with a local master, then execs that command. The caller is responsible for restarts.

A Python application runs as `python job.py` with spark-submit's options in `PYSPARK_SUBMIT_ARGS`,
so that Python is the parent and the JVM its child. So SIGTERM reaches the code that can stop
cleanly, the exit status is the job's, and a killed job takes its JVM with it (the JVM watches the
pipe).

This machine overrides the manifest's cluster settings: addresses of brokers, the checkpoint's path,
ports, the path of Headrace's code inside an image.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headrace_jobs import logs
from headrace_jobs.annotations import generation_arguments
from headrace_jobs.jars import JarError, resolve
from headrace_jobs.session import LOG4J_CONFIGURATION, PAGES_ADDRESS_FILE, WORKER_DAEMON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LaunchCommand", "LaunchError", "main", "render_command"]

API_VERSION = "sparkoperator.k8s.io/v1beta2"

_OUR_CODE = re.compile(r"local:///opt/headrace/(?:headrace_jobs/)?jobs/(\w+)\.py")
_OUR_JARS = re.compile(r"local:///opt/headrace/jars/.*")
# Kubernetes' syntax: $(NAME) is replaced, $$(NAME) is the text $(NAME).
_VARIABLE = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_BOOTSTRAP_VARIABLES = ("HEADRACE_BOOTSTRAP", "HEADRACE_BOOTSTRAP_SERVERS")

# Measured on two busy cores: session 7.6 s with the second compiler, 5.2 s without it, first query
# 10.3 s and 7.3 s. What it gives a job that runs on is in docs/spark.md; an application's own
# options in spec.driver.javaOptions come later and win.
_FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# Settings of how a cluster runs the application; a local master supports none of them.
_CLUSTER_SETTINGS = (
    "spark.kubernetes.",
    "spark.dynamicAllocation.",
    "spark.master",
    "spark.submit.",
)


class LaunchError(Exception):
    """This SparkApplication cannot run here; the message names the field and the reason."""


@dataclass(frozen=True, kw_only=True)
class LaunchCommand:
    """A command and its complete environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _LocalPlace:
    """What this machine provides to a job instead of the cluster."""

    bootstrap_servers: str | None
    data_directory: Path
    metrics_port: int = 0

    def checkpoint(self, name: str) -> Path:
        """Return the folder of the application's position and state."""
        return self.data_directory / name / "checkpoint"

    def metrics_address_file(self, name: str) -> Path:
        """Return the file that will have the URL of the application's metrics."""
        return self.data_directory / name / "metrics.address"

    def scratch(self, name: str) -> Path:
        """Return the folder for Spark's temporary files."""
        return self.data_directory / name / "scratch"


def render_command(
    application: Mapping[str, Any],
    *,
    bootstrap_servers: str | None,
    data_directory: Path,
    environment: Mapping[str, str],
    jars: Sequence[Path],
    metrics_port: int = 0,
) -> LaunchCommand:
    """Return the command that runs this SparkApplication here. Raises `LaunchError`.

    `jars` are those of `headrace_jobs.jars.resolve`. Starts nothing and writes nothing.
    """
    place = _LocalPlace(
        bootstrap_servers=bootstrap_servers,
        data_directory=data_directory,
        metrics_port=metrics_port,
    )
    identity = (application.get("apiVersion"), application.get("kind"))
    if identity != (API_VERSION, "SparkApplication"):
        raise LaunchError(f"not a SparkApplication of {API_VERSION}")
    name = application.get("metadata", {}).get("name")
    if not name:
        raise LaunchError("metadata.name is missing")
    spec = application.get("spec") or {}
    env = _environment(spec, name, place, environment)
    options = [*_submit_options(spec, name, place), *_jar_options(spec, jars)]
    code, is_ours = _application_file(spec)
    arguments = [_expand(str(argument), env) for argument in spec.get("arguments") or []]
    try:
        arguments += generation_arguments(application)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    if is_ours:
        arguments += _local_arguments(name, place)
    if spec.get("type", "Python") == "Python":
        env["PYSPARK_SUBMIT_ARGS"] = shlex.join([*options, "pyspark-shell"])
        return LaunchCommand(argv=(sys.executable, *code, *arguments), env=env)
    main_class = ["--class", spec["mainClass"]] if spec.get("mainClass") else []
    submit = str(_spark_home() / "bin/spark-submit")
    return LaunchCommand(argv=(submit, *options, *main_class, *code, *arguments), env=env)


def _environment(
    spec: Mapping[str, Any], name: str, place: _LocalPlace, environment: Mapping[str, str]
) -> dict[str, str]:
    """Merge this process's environment, the driver's from the spec, and this machine's settings."""
    driver = spec.get("driver") or {}
    env = dict(environment)
    env.update({key: str(value) for key, value in (driver.get("envVars") or {}).items()})
    for index, variable in enumerate(driver.get("env") or []):
        if "valueFrom" not in variable:
            env[variable["name"]] = _expand(str(variable.get("value") or ""), env)
        elif variable["name"] not in environment:
            raise LaunchError(
                f"spec.driver.env[{index}] ({variable['name']}) takes its value from the cluster "
                f"(valueFrom): set {variable['name']} in this environment to run here"
            )
    if place.bootstrap_servers is not None:
        env.update(dict.fromkeys(_BOOTSTRAP_VARIABLES, place.bootstrap_servers))
    env.update(
        HEADRACE_JOB_NAME=name,
        HEADRACE_CHECKPOINT_DIR=str(place.checkpoint(name)),
        SPARK_LOCAL_DIRS=str(place.scratch(name)),
        HEADRACE_METRICS_ADDRESS="127.0.0.1",
        HEADRACE_METRICS_PORT=str(place.metrics_port),
        HEADRACE_METRICS_ADDRESS_FILE=str(place.metrics_address_file(name)),
        SPARK_HOME=str(_spark_home()),
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONUNBUFFERED="1",
    )
    # Another installation's configuration would put its own class path and master first.
    for foreign in ("SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        env.pop(foreign, None)
    return env


def _submit_options(spec: Mapping[str, Any], name: str, place: _LocalPlace) -> list[str]:
    driver = spec.get("driver") or {}
    java_options = [
        f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()}",
        *_FAST_START,
        *shlex.split(driver.get("javaOptions") or ""),
    ]
    settings = {
        **WORKER_DAEMON,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Nobody looks at them as a rule; the manifest may say otherwise.
        "spark.ui.enabled": "false",
        **{
            key: str(value)
            for key, value in (spec.get("sparkConf") or {}).items()
            if not key.startswith(_CLUSTER_SETTINGS) and key != "spark.jars"
        },
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(place.scratch(name) / "warehouse"),
    }
    own_java_options = settings.pop("spark.driver.extraJavaOptions", "")
    java_options += shlex.split(own_java_options)
    settings["spark.driver.extraJavaOptions"] = shlex.join(java_options)
    options = ["--master", f"local[{_threads(spec)}]", "--name", name]
    options += ["--driver-memory", str(driver.get("memory") or "512m")]
    for key, value in settings.items():
        options += ["--conf", f"{key}={value}"]
    return options


def _threads(spec: Mapping[str, Any]) -> int:
    """Return the executors' total cores, up to the cores of this machine."""
    executor = spec.get("executor") or {}
    wanted = int(executor.get("cores") or 1) * int(executor.get("instances") or 1)
    # A stream needs two: one task may wait for a fetch while another computes.
    return max(2, min(wanted, os.cpu_count() or 1))


def _jar_options(spec: Mapping[str, Any], jars: Sequence[Path]) -> list[str]:
    deps = spec.get("deps") or {}
    named = (spec.get("sparkConf") or {}).get("spark.jars", "")
    theirs = [*(deps.get("jars") or []), *(jar for jar in named.split(",") if jar)]
    all_jars = [
        *(str(path) for path in jars),
        *(jar.removeprefix("local://") for jar in theirs if not _OUR_JARS.fullmatch(jar)),
    ]
    options = ["--jars", ",".join(all_jars)]
    for field, flag in (
        ("pyFiles", "--py-files"),
        ("files", "--files"),
        ("packages", "--packages"),
    ):
        if deps.get(field):
            options += [flag, ",".join(deps[field]).replace("local://", "")]
    return options


def _application_file(spec: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return what to run, and whether it is one of Headrace's own jobs."""
    main = spec.get("mainApplicationFile")
    if not main:
        raise LaunchError("spec.mainApplicationFile is missing")
    ours = _OUR_CODE.fullmatch(main)
    if ours is not None:
        module = f"headrace_jobs.jobs.{ours[1]}"
        if importlib.util.find_spec(module) is None:
            raise LaunchError(f"spec.mainApplicationFile: Headrace has no job {ours[1]} ({main})")
        return ["-m", module], True
    path = Path(main.removeprefix("local://").removeprefix("file://"))
    if not path.is_file():
        raise LaunchError(f"spec.mainApplicationFile: no such file on this machine: {path}")
    return [str(path)], False


def _local_arguments(name: str, place: _LocalPlace) -> list[str]:
    """Return arguments for this machine; they come last, and the last one wins."""
    arguments = ["--checkpoint", str(place.checkpoint(name))]
    arguments += ["--metrics-port", str(place.metrics_port)]
    arguments += ["--metrics-address-file", str(place.metrics_address_file(name))]
    if place.bootstrap_servers is not None:
        arguments += ["--bootstrap-servers", place.bootstrap_servers]
    return arguments


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; an unknown name stays as it is, as in Kubernetes."""

    def replacement(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return found[0][1:] if escaped else variables.get(name, found[0])

    return _VARIABLE.sub(replacement, text)


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LaunchError("PySpark is not installed: pip install 'headrace[spark]'")
    return Path(spec.origin).parent


def _read_application(path: Path, name: str | None) -> Mapping[str, Any]:
    """Read the only SparkApplication in a file, or the one with this name."""
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise LaunchError(f"{path}: {error}") from error
    found = [
        document
        for document in documents
        if isinstance(document, dict)
        and document.get("kind") == "SparkApplication"
        and name in (None, document.get("metadata", {}).get("name"))
    ]
    if len(found) != 1:
        wanted = f"one named {name}" if name else "one"
        raise LaunchError(f"{path}: has {len(found)} SparkApplications, needed is {wanted}")
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exec the command of a SparkApplication; returns only if there is nothing to run."""
    given = _parser().parse_args(arguments)
    logs.configure()
    try:
        command = render_command(
            _read_application(given.file, given.name),
            bootstrap_servers=given.bootstrap_servers,
            data_directory=given.data_dir.absolute(),
            metrics_port=given.metrics_port,
            environment=os.environ,
            jars=resolve(),
        )
    except (LaunchError, JarError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 1
    if not given.print:
        # A killed run leaves its scratch files; two runs never share one checkpoint.
        shutil.rmtree(command.env["SPARK_LOCAL_DIRS"], ignore_errors=True)
        addresses = Path(command.env["HEADRACE_METRICS_ADDRESS_FILE"])
        addresses.with_name(PAGES_ADDRESS_FILE).unlink(missing_ok=True)
        os.execve(command.argv[0], command.argv, dict(command.env))  # noqa: S606 - we become it
    submit = command.env.get("PYSPARK_SUBMIT_ARGS", "")
    print(f"PYSPARK_SUBMIT_ARGS={shlex.quote(submit)} {shlex.join(command.argv)}")  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace_jobs.launch", description="Run a SparkApplication on this machine."
    )
    parser.add_argument("file", type=Path, help="YAML file with the SparkApplication")
    parser.add_argument("--name", help="which one, when the file has several")
    parser.add_argument("--bootstrap-servers", help="brokers, in place of the manifest's")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(".headrace/jobs"),
        help="checkpoint and scratch files go to <data dir>/<name> (default: .headrace/jobs)",
    )
    parser.add_argument("--metrics-port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--print", action="store_true", help="print the command, do not run it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
