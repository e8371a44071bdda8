"""`make benchmark-jobs`: what jobs cost beside hand-written PySpark, and what exactly once costs.

Preloads a topic, then runs each engine over all of it, to its end, and prints records for each
second of the processors' time (all children counted) and the memory at most. What a start takes is
measured by a run over a hundredth of the records, and taken away in the second figure. Outputs are
compared: where a window differs, the status is 1. Flink SQL and Kafka Streams are two of the
engines, in one thread each; quixstreams and bytewax are two more, from PyPI, in an environment of
their own below `build/`. pathway is not one. Last, the driver of a live job is killed, and the time
is taken until its successor has written what came meanwhile.
"""

import argparse
import contextlib
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
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmark.live_jobs import COMPILERS, SIDES, Load, measure_live  # noqa: E402 - found by the path above
from headrace_jobs.jars import resolve  # noqa: E402 - found by the path above
from headrace_jobs.session import LOG4J_CONFIGURATION, WORKER_DAEMON  # noqa: E402 - found by the path above
from support.headrace_broker import HeadraceBroker  # noqa: E402 - found by the path above
from support.kafka_peer import (  # noqa: E402 - found by the path above
    FLINK_JVM,
    JavaMissingError,
    engine_jar_directory,
    flink_jar_directory,
    java_command,
)
from support.postgres import PostgresServer, postgres_binaries  # noqa: E402 - found by the path above

PARTITIONS = 4
HOSTS, CPUS = 1000, 4
NOON_MS = 1_769_860_800_000
JAVA = f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()}"
#: Engine in Python → the script that makes the windows, and what it needs.
PYTHON_ENGINES = {
    "quixstreams": ("quix_windows.py", "quixstreams==3.28.1"),
    "bytewax": ("bytewax_windows.py", "bytewax[kafka]==0.21.1"),
}
ENGINES_VENV = Path(__file__).parents[2] / "build/engines"
HANDWRITTEN = str(Path(__file__).with_name("handwritten_windows.py"))
STREAMS = str(Path(__file__).with_name("StreamsWindows.java"))
FLINK = str(Path(__file__).parents[1] / "conformance/engines/FlinkCpuWindows.java")
DELIVERIES = ("at-least-once", "exactly-once")
RECOVERY_SECONDS_MAX = 300
BROKER = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # The readings' times are long past, and some engines give them to the records that they write.
    "log.retention.ms": "-1",
}


def preload(bootstrap: str, topic: str, records: int) -> None:
    """CPU readings of 150 bytes, by CPU, in order of time, spread over the partitions by host."""
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
        value, key = json.dumps(reading), f"{reading['hostname']}/{cpu}"
        while True:
            try:
                producer.produce(topic, value, key=key, partition=host % PARTITIONS)
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
                memory += proportional_bytes(each.pid)
            except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                continue
        peak = max(peak, memory / 2**20)
        time.sleep(0.2)
    if process.wait() != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}")
    return time.monotonic() - began, sum(cpu.values()), peak


def proportional_bytes(pid: int) -> int:
    """The memory of a process; pages that several have are shared out among them."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:") * 1024


def windows(bootstrap: str, topic: str) -> dict[tuple[str, str, int], tuple[float, int]]:
    """The output topic's windows by host, CPU and start, in milliseconds."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = {}
    while True:
        record = consumer.poll(30)
        if record is None:
            raise RuntimeError(f"{topic}: no end after 30 s")
        if record.error() is not None:
            if record.error().code() == KafkaError._PARTITION_EOF:
                break
            raise KafkaException(record.error())
        window = json.loads(record.value())
        if "start_ms" in window:
            start = window["start_ms"]
        else:
            start = round(datetime.fromisoformat(window["window_start"]).timestamp() * 1000)
        key = (window["hostname"], str(window["cpu"]), start)
        found[key] = (window["usage_max"], window["readings"])
    consumer.close()
    return found


def flink(bootstrap: str, source: str, target: str, place: str) -> list[str] | None:
    """Return the command that makes the windows by Flink SQL; None where it is missing."""
    try:
        jars = flink_jar_directory()
    except (JavaMissingError, subprocess.SubprocessError) as error:
        say(f"Flink is missing ({error}): it is NOT MEASURED")
        return None
    arguments = [FLINK, bootstrap, source, target, target, place]
    return java_command(["-Xmx2g", *FLINK_JVM], *arguments, jars=jars)


def streams(*places: str) -> list[str] | None:
    """Return the command that makes the windows by Kafka Streams; None where it is missing."""
    try:
        jars = engine_jar_directory()
    except (JavaMissingError, subprocess.SubprocessError) as error:
        say(f"Kafka Streams is missing ({error}): it is NOT MEASURED")
        return None
    return java_command(["-Xmx2g"], STREAMS, *places, jars=jars)


def python_engine(name: str, *places: str) -> list[str] | None:
    """Return the command of an engine in Python, installed once; None where PyPI has none."""
    script, needs = PYTHON_ENGINES[name]
    venv = ENGINES_VENV / name
    try:
        if not (venv / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin/pip", "install", "--quiet", needs], check=True)
            (venv / "installed").touch()
    except subprocess.CalledProcessError as error:
        say(f"{name} is missing ({error}): it is NOT MEASURED")
        return None
    return [str(venv / "bin/python"), str(Path(__file__).with_name(script)), *places]


def submit(jars: str) -> dict[str, str]:
    settings = {
        **WORKER_DAEMON,
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


class Engines:
    """The commands of each engine, over one topic."""

    def __init__(self, bootstrap: str, folder: Path, source: str) -> None:
        self._bootstrap = bootstrap
        self._folder = folder / source
        self._source = source
        #: Engine → the topic that it writes to.
        self.outputs = {
            name: f"{source}-{topic}"
            for name, topic in (
                ("cpu-load", "ours"),
                ("hand-written PySpark", "theirs"),
                ("Flink SQL", "flink"),
                ("Kafka Streams", "streams"),
                *((engine, engine) for engine in PYTHON_ENGINES),
            )
        }
        #: Engine → the table that it writes to.
        self.tables = {
            f"PostgreSQL, {delivery}": f"t_{uuid.uuid4().hex[:8]}" for delivery in DELIVERIES
        }

    def command(self, name: str) -> list[str] | None:
        """Return how to run an engine; None where it is missing."""
        if name == "cpu-load":
            more = ["--output-topic", self.outputs[name], "--end-of-input"]
            return [*self.job("headrace_jobs.jobs.cpu_load", name, *more), "--available-now"]
        if name == "hand-written PySpark":
            places = [self._bootstrap, self._source, self.outputs[name], self._place(name)]
            return [sys.executable, HANDWRITTEN, *places]
        if name == "Flink SQL":
            return flink(self._bootstrap, self._source, self.outputs[name], self._place(name))
        if name == "Kafka Streams":
            return streams(self._bootstrap, self._source, self.outputs[name], self._place(name))
        if name in PYTHON_ENGINES:
            output = self.outputs[name]
            return python_engine(name, self._bootstrap, self._source, output, self._place(name))
        delivery = name.rpartition(" ")[2]
        job = self.job("support.counted_job", delivery, "--delivery", delivery)
        return [*job, "--available-now"]

    def job(self, module: str, name: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-m", "headrace_jobs.jobs.run", module, "--no-console"]
        command += ["--bootstrap-servers", self._bootstrap, "--input-topic", self._source]
        return [*command, "--checkpoint", self._place(name), *arguments]

    def _place(self, name: str) -> str:
        return str(self._folder / name.replace(" ", "-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument(
        "--only", action="append", help=f"this engine, or of --live {SIDES}; may be repeated"
    )
    parser.add_argument("--live", type=int, metavar="RATE", help="see `live_jobs`, nothing else")
    parser.add_argument("--for", type=int, default=3600, dest="seconds", help="how long, --live")
    parser.add_argument("--slice", type=int, default=600, help="seconds of a line, --live")
    parser.add_argument("--trigger", default="2s", help="the interval of batches, --live")
    arguments = parser.parse_args()
    if arguments.live:
        load = Load(
            sides=tuple(arguments.only or COMPILERS),
            spark=submit(",".join(map(str, resolve()))),
            records_per_second=arguments.live,
            seconds=arguments.seconds,
            slice_seconds=arguments.slice,
            trigger=arguments.trigger,
        )
        measure_live(load, BROKER, say)
        return
    folder = Path(tempfile.mkdtemp(prefix="headrace-benchmark-"))
    environment = submit(",".join(map(str, resolve())))
    sizes = {"few": arguments.records // 100, "in": arguments.records}
    with contextlib.ExitStack() as cleanup:
        broker = cleanup.enter_context(HeadraceBroker(folder, BROKER))
        engines = {source: Engines(broker.bootstrap, folder, source) for source in sizes}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(source, PARTITIONS, 1) for source in (*sizes, "live")]
        topics += [NewTopic(to, 1, 1) for each in engines.values() for to in each.outputs.values()]
        for future in admin.create_topics(topics).values():
            future.result(30)
        for source, records in sizes.items():
            preload(broker.bootstrap, source, records)
        binaries = postgres_binaries()
        server = PostgresServer(binaries) if binaries is not None else None
        if server is None:
            say("PostgreSQL is missing: what exactly once costs is NOT MEASURED")
        else:
            cleanup.callback(server.close)
            server.start()
        names = [*engines["in"].outputs, *(engines["in"].tables if server else ())]
        chosen = [name for name in names if name in (arguments.only or names)]
        done = run_all(engines, sizes, chosen, environment, server)
        if server is not None and (not arguments.only or "recovery" in arguments.only):
            live = Engines(broker.bootstrap, folder, "live")
            seconds = recovery(live, broker.bootstrap, environment, server)
            say(f"{'recovery after kill -9':32} {seconds:8.1f} s")
        outputs = engines["in"].outputs
        compare({name: windows(broker.bootstrap, outputs[name]) for name in done & outputs.keys()})


def recovery(
    engines: Engines, bootstrap: str, environment: dict[str, str], server: PostgresServer
) -> float:
    """Kill the driver of a live job and start it at once; how long until what came is written."""
    name = "PostgreSQL, exactly-once"
    table = engines.tables[name]
    places = {"COUNTED_DSN": server.dsn, "COUNTED_TABLE": table}
    command = engines.job("support.counted_job", name, "--trigger", "500ms")
    producer = Producer({"bootstrap.servers": bootstrap})

    def written(total: int) -> None:
        query = f"SELECT count(*) FROM {table}"  # noqa: S608 - ours
        deadline = time.monotonic() + RECOVERY_SECONDS_MAX
        while time.monotonic() < deadline:
            if server.query(f"SELECT to_regclass('{table}')")[0][0] is not None:
                ((count,),) = server.query(query)
                if count == total:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the job did not write {total} rows")

    def send() -> None:
        producer.produce("live", "record")
        if producer.flush(30):
            raise RuntimeError("the record was not stored")

    send()
    first = subprocess.Popen(
        command, env=os.environ | environment | places, stdout=subprocess.DEVNULL
    )
    written(1)
    time.sleep(5)  # into the quiet between batches
    family = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
    for each in family:
        each.kill()
    began = time.monotonic()
    first.wait()
    send()
    second = subprocess.Popen(
        command, env=os.environ | environment | places, stdout=subprocess.DEVNULL
    )
    try:
        written(2)
        return time.monotonic() - began
    finally:
        second.terminate()
        second.wait()


def compare(found: dict[str, dict[tuple[str, str, int], tuple[float, int]]]) -> None:
    """Say how many windows are those of ours; end with status 1 where some are not."""
    ours = found.get("cpu-load")
    if ours is None or len(found) == 1:
        return
    is_alike = bool(ours)
    for name, windows_of in found.items():
        alike = sum(ours.get(key) == window for key, window in windows_of.items())
        say(f"{name:32} {len(windows_of):8,} windows, {alike:,} as ours")
        # Some may be missing: the last ones stay open by Spark's own watermark.
        is_alike = is_alike and 0 < alike == len(windows_of)
    if not is_alike:
        sys.exit("the outputs differ")


def run_all(
    engines: dict[str, Engines],
    sizes: dict[str, int],
    names: list[str],
    environment: dict[str, str],
    server: PostgresServer | None,
) -> set[str]:
    """Measure each engine; returns those that could be run."""
    done = set()
    for name in names:
        found = {}
        for source, records in sizes.items():
            command = engines[source].command(name)
            if command is None:
                break
            table = engines[source].tables.get(name, "")
            places = {"COUNTED_DSN": server.dsn if server else "", "COUNTED_TABLE": table}
            found[source] = measure(command, environment | places)
            if table and server:
                ((count,),) = server.query(f"SELECT count(*) FROM {table}")  # noqa: S608 - ours
                if count != records:
                    raise RuntimeError(f"{name}: {count:,} rows of {records:,}")
        if "in" not in found:
            continue
        done.add(name)
        seconds, cpu, memory = found["in"]
        more = (sizes["in"] - sizes["few"]) / max(cpu - found["few"][1], 0.1)
        say(
            f"{name:32} {seconds:8.1f} s {cpu:8.1f} CPU s {sizes['in'] / cpu:10,.0f} records/CPU s,"
            f" {more:10,.0f} after the start ({found['few'][1]:.1f} CPU s); {memory:8,.0f} MiB"
        )
    return done


if __name__ == "__main__":
    main()
