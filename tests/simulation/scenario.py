"""One seed's run: a safety phase with faults, then everything is healed and must work again."""

import asyncio
import gc
import random
import shutil
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError
from simulation.checks import Checks
from simulation.client import Client, Consumer, Producer
from simulation.cluster import EPOCH_MS, Cluster, Node
from simulation.history import History
from simulation.loop import CURRENT, Stalled

HEALED_SECONDS = 60.0
TOPIC = "events"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - tmpfs: fsync there is free, and the model is ours


@dataclass(kw_only=True)
class Outcome:
    """What one seed gave."""

    seed: int
    violations: list[str]
    trace: int
    steps: int
    acknowledged: int
    reads: int
    seconds: float
    said: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Profile:
    """What may go wrong in this run, drawn from the seed."""

    nodes: int
    loses_power: bool
    disk_errors: bool
    faults_seconds: float
    seconds_between_faults: float
    partitions: int
    topic: dict[str, str]
    settings: dict[str, str]


def draw_profile(seed: int, nodes: int) -> Profile:
    """Draw a run's shape; a power cut may take what no fsync covers, so every append has one."""
    chance = random.Random(f"{seed}/profile")
    loses_power = chance.random() < 0.5
    settings = {"log.flush.interval.messages": "1"} if loses_power else {}
    if chance.random() < 0.5:
        settings["metadata.log.max.record.bytes.between.snapshots"] = "3000"
        settings["metadata.log.segment.bytes"] = "2000"
    topic = {
        "segment.ms": str(chance.choice((300, 2000, 604800000))),
        "index.interval.bytes": str(chance.choice((0, 300, 4096))),
        "min.insync.replicas": "1" if nodes == 1 else "2",
        "retention.ms": "-1",
    }
    return Profile(
        nodes=nodes,
        loses_power=loses_power,
        # A failed fsync loses what was not durable yet.
        disk_errors=loses_power and chance.random() < 0.5,
        faults_seconds=chance.choice((2.0, 4.0, 4.0, 6.0)),
        seconds_between_faults=chance.choice((0.15, 0.3, 0.6)),
        partitions=chance.choice((1, 1, 2)),
        topic=topic,
        settings=settings,
    )


class Scenario:
    """A cluster, its clients, and the schedule of faults."""

    def __init__(self, seed: int, nodes: int, root: Path) -> None:
        self.profile = draw_profile(seed, nodes)
        self.cluster = Cluster(seed, root, nodes=nodes, settings=self.profile.settings)
        self.loop = self.cluster.loop
        self.chance = self.cluster.fork("faults")
        self.history = History(now_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000))
        self.checks = Checks(self.cluster, self.history)
        self.phase_over = False
        self.healed = False
        self.cluster.on_failed = self._failed
        self.cluster.on_error = self._logged
        self.loop.check = self.checks.check

    def _failed(self, node: Node, error: BaseException) -> None:
        """Judge why a broker gave up: disks may fail, anything else is a bug."""
        # A start that waits for its own registration hears ApiError when the disk fails meanwhile.
        kinds = (LogDirectoryFailure, OSError, ApiError)
        expected = isinstance(error, kinds) and self.profile.disk_errors
        if not expected:
            trace = "".join(traceback.format_exception(error)[-6:])
            self.history.violate("broker-failed", f"{node}: {trace}")

    def _logged(self, text: str, error: BaseException | None) -> None:
        """Judge an error that a broker logged: a disk may fail, anything else is a bug."""
        if not (self.profile.disk_errors and isinstance(error, LogDirectoryFailure)):
            trace = "".join(traceback.format_exception(error)[-3:]) if error else ""
            self.history.violate("logged-error", f"{text}: {trace}")

    # ---- clients

    def client(self, name: str) -> tuple[Client, Any]:
        """Make a client process of its own."""
        addresses = [node.address for node in self.cluster.nodes]
        process = self.loop.process(name, f"host-{name}")
        return Client(name, addresses, self.history, self.cluster.fork(name)), process

    # ---- the run

    async def run(self) -> None:
        """Faults, healing, and the final comparison."""
        for node in self.cluster.nodes:
            node.start()
        admin, process = self.client("admin")
        creating = self.loop.start_task(
            process,
            admin.create_topic(
                TOPIC, self.profile.partitions, min(3, self.profile.nodes), self.profile.topic
            ),
        )
        workers = asyncio.create_task(self._work_after(creating))
        await self._faults()
        await self._heal()
        self.phase_over = True
        try:
            async with asyncio.timeout(HEALED_SECONDS):
                await workers
                final = await self._read_all()
        except TimeoutError:
            self.history.violate(
                "no-progress", f"not everything was served {HEALED_SECONDS} s after healing"
            )
            return
        self.history.check(final)
        self.checks.at_the_end(final)

    async def _work_after(self, created: Awaitable[Any]) -> None:
        await created
        await asyncio.gather(*self._start_workers())

    def _start_workers(self) -> list[Any]:
        workers = []
        for index in range(self.profile.partitions):
            for number in range(self.chance.choice((1, 2))):
                client, process = self.client(f"p{index}.{number}")
                idempotent = self.chance.random() < 0.7
                producer = Producer(client, client.name, TOPIC, index, idempotent=idempotent)
                workers.append(self.loop.start_task(process, producer.run(self._is_over)))
            client, process = self.client(f"c{index}")
            consumer = Consumer(client, client.name, TOPIC, index)
            workers.append(self.loop.start_task(process, consumer.run(self._is_over)))
        return workers

    def _is_over(self) -> bool:
        return self.phase_over

    async def _read_all(self) -> dict[tuple[str, int], dict[int, bytes]]:
        """Read every partition from its start to its end with one more consumer."""
        final: dict[tuple[str, int], dict[int, bytes]] = {}
        for index in range(self.profile.partitions):
            client, process = self.client(f"final{index}")
            history = History(now_ms=self.history.now_ms, writes=self.history.writes)
            client.history = history
            consumer = Consumer(client, client.name, TOPIC, index)
            await self.loop.start_task(process, self._drain(consumer))
            final[TOPIC, index] = history.logs.get((TOPIC, index), {})
            self.history.violations += history.violations
        return final

    async def _drain(self, consumer: Consumer) -> None:
        empty = 0
        while empty < 2:
            count = await consumer.poll(max_wait_ms=500)
            empty = empty + 1 if count == 0 else 0

    # ---- faults

    async def _faults(self) -> None:
        end = self.loop.time() + self.profile.faults_seconds
        while self.loop.time() < end:
            await asyncio.sleep(self.chance.expovariate(1 / self.profile.seconds_between_faults))
            self._one_fault(self.chance.choice(self.cluster.nodes))

    def _one_fault(self, node: Node) -> None:
        if not node.is_running:
            node.start()
            return
        disk = node.disk
        faults: list[tuple[int, Callable[[], None]]] = [
            (3, node.kill),
            (2, node.stop),
            (4, lambda: self._kill_in_operation(node)),
            (1, lambda: self._pause(node)),
            (2, lambda: self.cluster.network.reset_some(node.host)),
            (1, lambda: self._block(node)),
            (1, lambda: setattr(disk, "short_write_chance", self.chance.choice((0.0, 0.1)))),
            (1, lambda: setattr(disk, "slow_fsync_chance", self.chance.choice((0.0, 0.05, 0.3)))),
            (1, lambda: self._skew(node)),
        ]
        if self.profile.loses_power:
            faults.append((3, node.cut_power))
            disk.flip_chance = 0.1
        if self.profile.disk_errors:
            faults.append((1, lambda: setattr(disk, "write_errors", 1)))
            faults.append((1, lambda: setattr(disk, "fsync_errors", 1)))
            faults.append((1, lambda: self._fill(node)))
        weights = [weight for weight, _ in faults]
        self.chance.choices(faults, weights)[0][1]()

    def _kill_in_operation(self, node: Node) -> None:
        count = self.chance.choice((1, 2, 5, 20, 100))
        node.disk.stop_at = node.disk.operations + count

    def _pause(self, node: Node) -> None:
        node.pause(on=True)
        self.loop.call_later(self.chance.choice((0.1, 0.5, 2.0)), lambda: node.pause(on=False))

    def _block(self, node: Node) -> None:
        """Cut the node off in one direction, or both, from everybody or some."""
        network = self.cluster.network
        others = [item.host for item in self.cluster.nodes if item is not node]
        hosts = sorted({transport.process.host for transport in network.transports} - {node.host})
        others += [host for host in hosts if host not in others and self.chance.random() < 0.7]
        directions = self.chance.choice(("in", "out", "both"))
        self.cluster.say(f"{node} is cut off from {others}: {directions}")
        for host in others:
            if directions != "out":
                network.block(host, node.host)
            if directions != "in":
                network.block(node.host, host)
        self.loop.call_later(self.chance.choice((0.2, 1.0, 3.0)), network.heal)

    def _skew(self, node: Node) -> None:
        node.clock.skew_ms = self.chance.choice((0, 0, -5000, 5000, 60000))

    def _fill(self, node: Node) -> None:
        node.disk.is_full = True
        self.cluster.say(f"{node}'s disk is full")

        def free() -> None:
            node.disk.is_full = False

        self.loop.call_later(self.chance.uniform(0.1, 2), free)

    async def _heal(self) -> None:
        """End every fault; start what does not run."""
        self.cluster.say("everything is healed")
        self.healed = True
        self.cluster.network.heal()
        for node in self.cluster.nodes:
            disk = node.disk
            disk.stop_at = None
            disk.is_full = False
            disk.write_errors = disk.fsync_errors = 0
            disk.slow_fsync_chance = 0.0
            node.pause(on=False)
        for _ in range(100):
            for node in self.cluster.nodes:
                node.start()
            await asyncio.sleep(0.1)
            if all(node.is_ready for node in self.cluster.nodes):
                return


def simulate(seed: int, nodes: int = 1) -> Outcome:
    """Run one seed and return what came of it."""
    # A collection in the middle costs time, and runs finalisers at moments no seed decides.
    gc.disable()
    try:
        return _simulate(seed, nodes)
    finally:
        gc.collect(0)
        gc.enable()


def _simulate(seed: int, nodes: int) -> Outcome:
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix=f"simulation-{seed}-", dir=parent))
    token = CURRENT.set(None)
    try:
        scenario = Scenario(seed, nodes, root)
        with scenario.cluster.installed():
            try:
                scenario.loop.run(scenario.run(), limit_seconds=600)
            except Stalled as error:
                scenario.history.violate("stalled", str(error))
            except Exception as error:  # noqa: BLE001 - a run must end in an outcome
                trace = "".join(traceback.format_exception(error))
                scenario.history.violate("simulator", trace)
            for node in scenario.cluster.nodes:
                node.disk.close()
        for context in scenario.loop.unhandled:
            error = context.get("exception")
            trace = "".join(traceback.format_exception(error)) if error else ""
            scenario.history.violate("unhandled", f"{context.get('message')} {trace}")
    finally:
        CURRENT.reset(token)
        shutil.rmtree(root, ignore_errors=True)
    history = scenario.history
    return Outcome(
        seed=seed,
        violations=history.violations,
        trace=scenario.loop.trace,
        steps=scenario.loop.steps,
        acknowledged=sum(write.offset >= 0 for write in history.writes.values()),
        reads=history.reads,
        seconds=scenario.loop.time(),
        said=list(scenario.cluster.said),
    )
