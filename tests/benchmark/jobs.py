"""`make benchmark-jobs`: what jobs cost beside hand-written PySpark, and what exactly once costs.

Preloads a topic, then runs each engine over all of it, to its end, and prints records for each
second of the processors' time (all children counted) and the memory at most. Outputs are compared:
where a window differs, the status is 1. Flink SQL is one of the engines, in one thread;
Kafka Streams, quixstreams, bytewax and pathway are not in it.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import datetime
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path[0] = str(Path(__file__).resolve().parents[1])

from headrace_jobs.jars import resolve  # noqa: E402 - found by the path above
from headrace_jobs.session import LOG4J_CONFIGURATION  # noqa: E402 - found by the path above
from support.headrace_broker import HeadraceBroker  # noqa: E402 - found by the path above
from support.kafka_peer import (  # noqa: E402 - found by the path above
    FLINK_JVM,
    JavaMissingError,
    flink_jar_directory,
    java_command,
)
from support.postgres import PostgresServer, postgres_binaries  # noqa: E402 - found by the path above

PARTITIONS = 4
HOSTS, CPUS = 1000, 4
NOON_MS = 1_769_860_800_000
JAVA = f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()}"
HANDWRITTEN = str(Path(__file__).with_name("handwritten_windows.py"))
FLINK = str(Path(__file__).parents[1] / "conformance/engines/FlinkCpuWindows.java")
BROKER = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def preload(bootstrap: str, topic: str, records: int) -> None:
    """CPU readings of 150 bytes, in order of time, spread over the partitions by host."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    per_second = HOSTS * CPUS
    for number in range(records):
        host, cpu = divmod(number % per_second, CPUS)
        reading = {
            "hostname": f"host-{host:04}.example",
            "cpu": cpu,
            "usage": float(number % 100),
            "occurred_at": NOON_MS + number * 1000 // per_second,
            "padding": "x" * 40,
        }
        value = json.dumps(reading)
        while True:
            try:
                producer.produce(topic, value, partition=host % PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    if producer.flush(120):
        raise RuntimeError("the topic was not loaded")


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Run to the end; returns seconds, and of all processes CPU seconds and MiB at most."""
    began, cpu, peak = time.monotonic(), {}, 0.0
    process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)
    root = psutil.Process(process.pid)
    while process.poll() is None:
        memory = 0
        try:
            family = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        for each in family:
            try:
                times = each.cpu_times()
                cpu[each.pid] = times.user + times.system
                memory += each.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, memory / 2**20)
        time.sleep(0.2)
    if process.wait() != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}")
    return time.monotonic() - began, sum(cpu.values()), peak


def windows(bootstrap: str, topic: str) -> dict[tuple[str, str, int], tuple[float, int]]:
    """The output topic's windows by host, CPU and start, in milliseconds."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = {}
    while True:
        record = consumer.poll(30)
        if record is None or record.error():
            break
        window = json.loads(record.value())
        if "start_ms" in window:
            start = window["start_ms"]
        else:
            start = round(datetime.fromisoformat(window["window_start"]).timestamp() * 1000)
        key = (window["hostname"], str(window["cpu"]), start)
        found[key] = (window["usage_max"], window["readings"])
    consumer.close()
    return found


def flink(bootstrap: str, folder: Path) -> list[str] | None:
    """Return the command that makes the windows by Flink SQL; None where it is missing."""
    try:
        jars = flink_jar_directory()
    except (JavaMissingError, subprocess.SubprocessError) as error:
        say(f"Flink is missing ({error}): it is NOT MEASURED")
        return None
    arguments = [FLINK, bootstrap, "in", "flink", "flink", str(folder / "flink")]
    return java_command(["-Xmx2g", *FLINK_JVM], *arguments, jars=jars)


def submit(jars: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
    }
    options = ["--master", "local[2]", "--driver-memory", "2g", "--jars", jars]
    options += ["--driver-java-options", JAVA]
    for name, value in settings.items():
        options += ["--conf", f"{name}={value}"]
    return {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": sys.path[0],
    }


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000_000)
    records = parser.parse_args().records
    folder = Path(tempfile.mkdtemp(prefix="headrace-benchmark-"))
    environment = submit(",".join(map(str, resolve())))
    with HeadraceBroker(folder, BROKER) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        outputs = {"cpu-load": "ours", "hand-written PySpark": "theirs", "Flink SQL": "flink"}
        topics = [
            NewTopic("in", PARTITIONS, 1),
            *(NewTopic(each, 1, 1) for each in outputs.values()),
        ]
        for future in admin.create_topics(topics).values():
            future.result(30)
        preload(broker.bootstrap, "in", records)

        def job(module: str, name: str, *arguments: str) -> list[str]:
            command = [sys.executable, "-m", "headrace_jobs.jobs.run", module]
            command += ["--bootstrap-servers", broker.bootstrap, "--input-topic", "in"]
            command += ["--checkpoint", str(folder / name), "--available-now", "--no-console"]
            return [*command, *arguments]

        engines = {
            "cpu-load": job(
                *("headrace_jobs.jobs.cpu_load", "cpu-load"),
                *("--output-topic", "ours", "--end-of-input"),
            ),
            "hand-written PySpark": [
                *(sys.executable, HANDWRITTEN, broker.bootstrap, "in", "theirs"),
                str(folder / "handwritten"),
            ],
        }
        command = flink(broker.bootstrap, folder)
        if command is not None:
            engines["Flink SQL"] = command
        binaries = postgres_binaries()
        server = PostgresServer(binaries) if binaries is not None else None
        tables = {}
        if server is None:
            say("PostgreSQL is missing: what exactly once costs is NOT MEASURED")
        else:
            server.start()
            for delivery in ("at-least-once", "exactly-once"):
                tables[f"PostgreSQL, {delivery}"] = f"t_{uuid.uuid4().hex[:8]}"
                engines[f"PostgreSQL, {delivery}"] = job(
                    "support.counted_job", delivery, "--delivery", delivery
                )
        try:
            run_all(engines, tables, environment, server, records)
        finally:
            if server is not None:
                server.close()
        compare(
            {name: windows(broker.bootstrap, outputs[name]) for name in engines if name in outputs}
        )


def compare(found: dict[str, dict[tuple[str, str, int], tuple[float, int]]]) -> None:
    """Say how many windows are those of ours; end with status 1 where some are not."""
    ours = found["cpu-load"]
    is_alike = bool(ours)
    for name, windows_of in found.items():
        alike = sum(ours.get(key) == window for key, window in windows_of.items())
        say(f"{name:32} {len(windows_of):8,} windows, {alike:,} as ours")
        # Some may be missing: the last ones stay open by Spark's own watermark.
        is_alike = is_alike and 0 < alike == len(windows_of)
    if not is_alike:
        sys.exit("the outputs differ")


def run_all(engines, tables, environment, server, records) -> None:
    for name, command in engines.items():
        more = {"COUNTED_DSN": server.dsn if server else "", "COUNTED_TABLE": tables.get(name, "")}
        seconds, cpu, memory = measure(command, environment | more)
        say(
            f"{name:32} {seconds:8.1f} s {cpu:8.1f} CPU s {records / cpu:10,.0f} records/CPU s"
            f" {memory:8,.0f} MiB",
        )
        if name in tables:
            ((count,),) = server.query(f"SELECT count(*) FROM {tables[name]}")  # noqa: S608 - ours
            say(f"{'':32} {count:,} rows of {records:,}")


if __name__ == "__main__":
    main()
