"""Live jobs side by side on one topic: what they cost, and how late their results are.

Two `cpu-load` jobs show what the JVM's compilers cost over time: both are started as `headrace up`
starts them, from the example's manifest, and differ in the JVM's options alone. The same windows
written by hand are a third side. All read the same records at the same steady rate, so whatever
else the machine does falls on them alike; each is a session of its own, so that the kernel gives
them equal shares. On a machine that is too busy for a batch every two seconds choose a longer
`--trigger`: whoever falls behind has larger batches, and their cost cannot be compared. The slices
begin when all have written their first result; the last lines are of all slices together.
"""

import contextlib
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

import psutil
import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_jobs.durations import parse_duration
from support.headrace_broker import HeadraceBroker

PARTITIONS = 4
HOSTS, CPUS = 1000, 4
SOURCE = "live"
MANIFEST = Path(__file__).parents[2] / "manifests/examples/cpu-load/spark-application.yaml"
#: Name → the option that is appended to what `headrace_jobs.launch` gives every JVM.
COMPILERS = {"c1": "-XX:TieredStopAtLevel=1", "tiers": "-XX:TieredStopAtLevel=4"}
HANDWRITTEN = "hand-written"
#: Fewer at a rate that the machine cannot serve all of them at.
SIDES = (*COMPILERS, HANDWRITTEN)
_START_SECONDS_MAX = 900
_SAMPLE_SECONDS = 5


@dataclass(kw_only=True)
class Side:
    """A running job: its process, where its results are read from, and what was seen so far."""

    name: str
    command: list[str]
    environment: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)
    results: Consumer
    output: TopicPartition
    read_offset: int = 0
    #: CPU seconds and batches when the slice began, and when it ended.
    begun: tuple[float, float] = (0.0, 0.0)
    ended: tuple[float, float] = (0.0, 0.0)
    #: Since the slice began.
    memory_mib: list[float] = field(default_factory=list)
    delays_seconds: list[float] = field(default_factory=list)
    readings: int = 0

    def start(self) -> None:
        """Start the job's process, with all that it starts as a session of its own."""
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def sample(self) -> None:
        """Note the memory of all its processes; pages that several have are counted once."""
        memory = 0
        for each in family(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                rollup = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
                pss = (line for line in rollup.splitlines() if line.startswith("Pss:"))
                memory += sum(int(line.split()[1]) for line in pss)
        self.memory_mib.append(memory / 1024)

    def read(self) -> None:
        """Read all results that there are: when each became available, after its window's end."""
        _, end = self.results.get_watermark_offsets(self.output, timeout=30)
        while self.read_offset < end:
            records = self.results.consume(10_000, timeout=1)
            for record in records:
                if record.error() is not None:
                    raise KafkaException(record.error())
                window = json.loads(record.value())
                window_end = datetime.fromisoformat(window["window_end"]).timestamp()
                self.delays_seconds.append(record.timestamp()[1] / 1000 - window_end)
                self.readings += window["readings"]
                self.read_offset = record.offset() + 1

    def begin(self) -> None:
        """Begin a slice where the last one ended."""
        self.begun, self.readings = self.ended, 0
        self.memory_mib, self.delays_seconds = [], []

    def end(self) -> None:
        """End a slice."""
        self.ended = (processor_seconds(self.process.pid), self.counted_batches())

    def add(self, other: Self) -> None:
        """Add what was seen in a slice."""
        self.memory_mib += other.memory_mib
        self.delays_seconds += other.delays_seconds
        self.readings += other.readings
        self.ended = other.ended

    def told(self, records: int) -> str:
        """Return the line of a slice in which so many records came."""
        cpu, batches = (end - begun for begun, end in zip(self.begun, self.ended, strict=True))
        delays = statistics.quantiles(self.delays_seconds, n=100)
        return (
            f"{self.name:6} {cpu / records * 1000:7.4f} CPU s/1,000 records,"
            f" {batches:5.0f} batches, {self.readings / records:6.1%} in results,"
            f" memory {statistics.mean(self.memory_mib):6,.0f} MiB"
            f" (at most {max(self.memory_mib):6,.0f}),"
            f" delay p50 {delays[49]:6.2f} s, p99 {delays[98]:6.2f} s"
        )

    def counted_batches(self) -> int:
        """How many batches are committed in the checkpoint."""
        commits = checkpoint(self.folder, self.name).glob("commits/[0-9]*")
        return max((int(each.name) + 1 for each in commits), default=0)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            for each in family(self.process.pid):
                each.kill()
        self.results.close()


def checkpoint(folder: Path, name: str) -> Path:
    """Where a side's checkpoint is: `headrace_jobs.launch` puts those of its jobs there."""
    return folder / name / "checkpoint"


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it; those that end meanwhile may be missing."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def processor_seconds(pid: int) -> float:
    """What a process and all its descendants used, those that ended among them."""
    used = 0.0
    for each in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            # `children_*` is of those that ended: whoever lives is in the family.
            used += sum(each.cpu_times()[:4])
    return used


def produce(bootstrap: str, rate: int) -> None:
    """Send readings of now, so many a second, until killed."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    # All but the numbers is made once: at some 50,000 a second the rest of a core is the jobs'.
    readings = []
    for number in range(HOSTS * CPUS):
        host, cpu = divmod(number, CPUS)
        name = f"host-{host:04}.example"
        value = f'{{"hostname": "{name}", "cpu": {cpu}, "padding": "{"x" * 40}", '
        readings.append((value, f"{name}/{cpu}", host % PARTITIONS))
    began, sent = time.time(), 0
    while True:
        due = int((time.time() - began) * rate)
        while sent < due:
            value, key, partition = readings[sent % len(readings)]
            at = int((began + sent / rate) * 1000)
            value += f'"usage": {sent % 100}.0, "occurred_at": {at}}}'
            producer.produce(SOURCE, value, key=key, partition=partition)
            sent += 1
        producer.poll(0)
        time.sleep(0.1)


def start(name: str, bootstrap: str, folder: Path, load: "Load") -> Side:
    """Start a side; it writes its results to the topic of its name."""
    output = f"{SOURCE}-{name}"
    results = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    partition = TopicPartition(output, 0, 0)
    results.assign([partition])
    environment = {}
    if name == HANDWRITTEN:
        script, place = Path(__file__).with_name("handwritten_windows.py"), checkpoint(folder, name)
        command = [sys.executable, str(script), bootstrap, SOURCE, output, str(place)]
        command.append(f"{parse_duration(load.trigger)} milliseconds")
        environment = load.spark
    else:
        file = manifest(name, output, folder, load.trigger)
        command = [sys.executable, "-m", "headrace_jobs.launch", str(file)]
        command += ["--data-dir", str(folder), "--bootstrap-servers", bootstrap]
    side = Side(
        name=name,
        command=command,
        environment=environment,
        folder=folder,
        results=results,
        output=partition,
    )
    side.start()
    return side


def manifest(name: str, output: str, folder: Path, trigger: str) -> Path:
    """Write the example's manifest with a side's option of the JVM."""
    application = yaml.safe_load(MANIFEST.read_text())
    application["metadata"] = {"name": name}
    spec = application["spec"]
    spec["arguments"] += ["--input-topic", SOURCE, "--output-topic", output]
    spec["arguments"] += ["--dead-letter-topic", "", "--group", "", "--from", "latest"]
    spec["arguments"] += ["--trigger", trigger]
    spec["driver"]["javaOptions"] = COMPILERS[name]
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(application))
    return file


@dataclass(frozen=True, kw_only=True)
class Load:
    """What all sides get, and for how long."""

    sides: tuple[str, ...]
    #: What Spark is started with where a side is not started by Headrace.
    spark: dict[str, str]
    records_per_second: int
    seconds: int
    slice_seconds: int
    trigger: str


def measure_live(load: Load, broker: dict[str, str], say: Callable[[str], None]) -> None:
    """Run the sides; says a line for each of them and slice."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-benchmark-"))
    with contextlib.ExitStack() as cleanup:
        server = cleanup.enter_context(HeadraceBroker(folder / "broker", broker))
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        appended = {"message.timestamp.type": "LogAppendTime"}
        topics = [NewTopic(SOURCE, PARTITIONS, 1)]
        topics += [NewTopic(f"{SOURCE}-{name}", 1, 1, config=appended) for name in load.sides]
        for future in admin.create_topics(topics).values():
            future.result(30)
        places = f"{server.bootstrap!r}, {load.records_per_second}"
        producing = f"from benchmark.live_jobs import produce; produce({places})"
        tests = Path(__file__).parents[1]
        producer = subprocess.Popen(
            [sys.executable, "-c", producing], cwd=tests, start_new_session=True
        )
        cleanup.callback(producer.wait)
        cleanup.callback(producer.kill)
        sides = []
        for name in load.sides:
            sides.append(start(name, server.bootstrap, folder, load))
            cleanup.callback(sides[-1].stop)
        _wait_for_results(sides, say)
        _slices(sides, load, lambda: _ended(server.bootstrap), say)


def _wait_for_results(sides: list[Side], say: Callable[[str], None]) -> None:
    """Wait for each side's first result; what was done until then is in no slice."""
    deadline = time.monotonic() + _START_SECONDS_MAX
    waiting = list(sides)
    while waiting:
        time.sleep(0.5)
        for side in tuple(waiting):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{side.name} wrote nothing; its log is in {side.folder}")
            if side.process.poll() is not None:
                # As whoever runs a job does: on a busy machine Spark gives up its workers.
                say(f"{side.name:6} ended with {side.process.returncode}: started again")
                side.start()
            side.read()
            if side.delays_seconds:
                age = time.time() - psutil.Process(side.process.pid).create_time()
                used = processor_seconds(side.process.pid)
                say(f"{side.name:6} first result after {age:.1f} s and {used:.1f} CPU s")
                waiting.remove(side)


def _ended(bootstrap: str) -> int:
    """How many records the input has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    partitions = [TopicPartition(SOURCE, partition) for partition in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions]
    consumer.close()
    return sum(ends)


def _slices(
    sides: list[Side], load: Load, ended: Callable[[], int], say: Callable[[str], None]
) -> None:
    wholes = []
    for side in sides:
        side.read()
        side.end()
        side.begin()
        wholes.append(copy.copy(side))
        wholes[-1].memory_mib, wholes[-1].delays_seconds = [], []
    began, first = time.monotonic(), ended()
    last = first
    for end in range(load.slice_seconds, load.seconds + 1, load.slice_seconds):
        while time.monotonic() - began < end:
            for side in sides:
                side.sample()
                if side.process.poll() is not None:
                    raise RuntimeError(f"{side.name} ended with {side.process.returncode}")
            time.sleep(_SAMPLE_SECONDS)
        before, last = last, ended()
        # All at the same moment: reading the results takes a while.
        for side in sides:
            side.end()
        for side, whole in zip(sides, wholes, strict=True):
            side.read()
            say(f"{end / 60:5.0f} min {side.told(last - before)}")
            whole.add(side)
            side.begin()
    for whole in wholes:
        say(f"    whole {whole.told(last - first)}")
