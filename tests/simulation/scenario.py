"""One seed's run: a safety phase with faults, then everything is healed and must work again."""

import asyncio
import gc
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError
from simulation.aims import Aims, FormerControllers
from simulation.client import Client
from simulation.cluster import EPOCH_MS, Cluster, Node
from simulation.faults import Faults
from simulation.history import History
from simulation.invariants import Invariants
from simulation.loop import CURRENT, Stalled
from simulation.marks import LOGGED
from simulation.observing import observed
from simulation.old_ids import draw_age
from simulation.power_cuts import PowerCuts
from simulation.profile import draw_profile
from simulation.rot import draw_rotting
from simulation.steps import Steps
from simulation.workloads import WORKLOADS
from simulation.workloads.consumers import Consumer
from simulation.workloads.operators import Operator

HEALED_SECONDS = 60.0
_LOOKS_MAX, _LOOK_SECONDS = 20, 0.1
_FOLLOWS_SECONDS = 0.5
"""In which followers hear of a leader that has just been elected."""
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
    reached: Counter[str] = field(default_factory=Counter)


class Scenario:
    """A cluster, its clients, and the schedule of faults."""

    def __init__(self, seed: int, nodes: int, root: Path) -> None:
        self.profile = draw_profile(seed, nodes)
        self.cluster = Cluster(seed, root, self.profile)
        self.loop = self.cluster.loop
        self.rng = self.cluster.fork("clients")
        self.history = History(
            now_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000),
            cleanup=self.profile.cleanup,
            is_trimmed="trim" in self.profile.works,
        )
        self.invariants = Invariants(self.cluster, self.history)
        self.cluster.rotting = draw_rotting(self.cluster, self.cluster.fork("rotting"))
        self.history.rots = self.cluster.rotting is not None
        self.faults = Faults(self.cluster, self.profile)
        self.phase_over = False
        self.cluster.on_failed = self._failed
        self.cluster.on_error = self._logged
        self.cluster.on_moment = self._moment
        self.history.on_acknowledged = lambda: self.faults.happened("acknowledged")
        self.history.on_proposed = self._proposed
        self.steps = Steps(self.cluster, self.faults, self.history)
        draw_age(self.cluster, self.history)
        self.history.disk = self.cluster.disk
        self.history.is_former_controller = self.cluster.is_former_controller
        self.history.newest_epoch = self.cluster.newest_epoch
        self.history.on_step = self._step
        self.aims = Aims(self.cluster, self.faults)
        self.former_controllers = FormerControllers(self.cluster, self.faults)
        self.history.on_question = self.aims.asked
        self.history.on_written = PowerCuts(self.cluster, self.faults, self.history).wrote
        self.loop.check = self.invariants.check

    def _failed(self, node: Node, error: BaseException) -> None:
        """Judge why a broker gave up: disks may fail, anything else is a bug."""
        # A start that waits for its own registration hears ApiError when the disk fails meanwhile.
        kinds = (LogDirectoryFailure, OSError, ApiError)
        expected = isinstance(error, kinds) and self.profile.disk_errors
        if not expected:
            trace = "".join(traceback.format_exception(error)[-6:])
            self.history.violate("broker-failed", f"{node}: {trace}")

    def _logged(self, text: str, error: BaseException | None) -> None:
        """Judge an error that a broker logged: a disk may fail, anything else is a bug.

        A request that meets a failed disk has an answer, too.
        """
        if text == "records are damaged" and self.history.rots:
            return
        is_of_a_disk = self.profile.disk_errors and isinstance(error, LogDirectoryFailure)
        if text == "request failed" or not is_of_a_disk:
            trace = "".join(traceback.format_exception(error)[-3:]) if error else ""
            self.history.violate("logged-error", f"{text}: {trace}")

    def _moment(self, moment: str, node: Node | None) -> None:
        mark = LOGGED.get(moment)
        if mark is not None:
            self.history.reach(mark)
        self.faults.happened(moment, node)

    def _step(self, step: str) -> None:
        self.steps.happened(step)
        self.aims.happened(step)

    def _proposed(self, leader: int, joining: list[Any]) -> None:
        self.faults.proposed(leader, joining)
        self.former_controllers.proposed(leader)

    # ---- clients

    def client(self, name: str) -> tuple[Client, Any]:
        """Make a client process of its own."""
        addresses = [node.address for node in self.cluster.nodes if node.is_broker]
        process = self.loop.process(name, f"host-{name}")
        return Client(name, addresses, self.history, self.cluster.fork(name)), process

    # ---- the run

    async def run(self) -> None:
        """Faults, healing, and the final comparison."""
        for node in self.cluster.nodes:
            node.start()
        profile = self.profile
        creating = self._create_topics()
        workers = asyncio.create_task(self._work_after(creating))
        if profile.warms_up:
            await creating
            await asyncio.sleep(0.2)
        await self.faults.run()
        await self.history.shares.end_faults()
        await self.faults.heal()
        await self.cluster.replace_failed_directories()
        self.phase_over = True
        finishing = asyncio.create_task(self._finish(workers))
        restarting = asyncio.create_task(self._restart_the_ended())
        await asyncio.wait({finishing}, timeout=HEALED_SECONDS)
        restarting.cancel()
        if not finishing.done():
            self.history.violate(
                "no-progress",
                f"not everything was served {HEALED_SECONDS} s after healing; "
                f"unfinished: {self.loop.unfinished()}",
            )
            return
        final = finishing.result()
        await self._hear_of_the_last_change()
        self.history.check(final)
        self.invariants.at_the_end(final)

    async def _hear_of_the_last_change(self) -> None:
        """Give nodes the time for metadata that was committed a moment ago, where there is some."""
        has_waited = False
        for _ in range(_LOOKS_MAX):
            if self.cluster.has_same_metadata():
                break
            has_waited = True
            await asyncio.sleep(_LOOK_SECONDS)
        if has_waited:
            await asyncio.sleep(_FOLLOWS_SECONDS)

    def _create_topics(self) -> Any:
        admin, process = self.client("admin")
        profile = self.profile

        async def create() -> None:
            for name, partitions in profile.topics.items():
                await admin.create_topic(name, partitions, profile.replicas, profile.topic)

        return self.loop.start_task(process, create())

    async def _restart_the_ended(self) -> None:
        """Start who hears only now that its disk had failed: an fsync may take its time."""
        while True:
            await asyncio.sleep(0.5)
            await self.cluster.replace_failed_directories()
            for node in self.cluster.nodes:
                node.start()

    async def _finish(self, workers: Awaitable[Any]) -> dict[tuple[str, int], dict[int, bytes]]:
        """Wait until all clients have what they wanted and all replicas are in sync; read all."""
        await workers
        client, process = self.client("watcher")
        operator = Operator(client, self.profile)
        await self.cluster.wait_scrubbed()
        await self.loop.start_task(process, client.until(operator.converged))
        return await self._read_all()

    async def _work_after(self, created: Awaitable[Any]) -> None:
        await created
        await asyncio.gather(*self._start_workers())

    def _start_workers(self) -> list[Any]:
        return [
            task
            for work in WORKLOADS
            if work.name in self.profile.works
            for task in work.start(self)
        ]

    def is_over(self) -> bool:
        """Whether the faults are over: workloads come to their end."""
        return self.phase_over

    async def _read_all(self) -> dict[tuple[str, int], dict[int, bytes]]:
        """Read every partition from its start to its end with one more consumer."""
        final: dict[tuple[str, int], dict[int, bytes]] = {}
        for key in self.profile.places:
            client, process = self.client(f"final-{key[0]}-{key[1]}")
            history = History(
                now_ms=self.history.now_ms,
                writes=self.history.writes,
                cleanup=self.history.cleanup,
                is_trimmed=self.history.is_trimmed,
            )
            client.history = history
            consumer = Consumer(client, client.name, [key])
            await self.loop.start_task(process, self._drain(consumer, key))
            log = history.logs.get(key, {})
            if self.history.may_begin_later:
                # Retention may take the log's beginning away under the reader, too.
                log = {offset: log[offset] for offset in log if offset >= consumer.began_at[key]}
                self.history.starts[key] = min(log, default=consumer.positions[key])
            final[key] = log
            self.history.violations += history.violations
        return final

    async def _drain(self, consumer: Consumer, key: tuple[str, int]) -> None:
        empty = 0
        while empty < 2:
            position = consumer.positions[key]
            count = await consumer.poll(max_wait_ms=500)
            # Compaction leaves batches without records, which are not the end.
            empty = empty + 1 if count == 0 and consumer.positions[key] == position else 0


def simulate(seed: int, nodes: int = 1, *, to_the_end: bool = True) -> Outcome:
    """Run one seed, to its end or to its first violation, and return what came of it."""
    # A collection in the middle costs time, and runs finalisers at moments no seed decides.
    gc.disable()
    try:
        return _simulate(seed, nodes, to_the_end=to_the_end)
    finally:
        gc.collect(0)
        gc.enable()


def _simulate(seed: int, nodes: int, *, to_the_end: bool) -> Outcome:
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix=f"simulation-{seed}-", dir=parent))
    token = CURRENT.set(None)
    try:
        scenario = Scenario(seed, nodes, root)
        if not to_the_end:
            scenario.loop.is_enough = lambda: bool(scenario.history.violations)
        installed = (scenario.cluster.installed(), scenario.steps.installed())
        with installed[0], installed[1], observed(scenario.history):
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
        reached=history.reached,
    )
