"""One seed's run: a safety phase with faults, then everything is healed and must work again."""

import asyncio
import gc
import shutil
import tempfile
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError
from simulation.changes import Operator
from simulation.checks import Checks
from simulation.churn import Churn
from simulation.client import Client, Consumer, Producer
from simulation.cluster import EPOCH_MS, Cluster, Node
from simulation.faults import Faults
from simulation.history import History
from simulation.loop import CURRENT, Stalled
from simulation.members import GroupChecks, Member
from simulation.profile import draw_profile

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


class Scenario:
    """A cluster, its clients, and the schedule of faults."""

    def __init__(self, seed: int, nodes: int, root: Path) -> None:
        self.profile = draw_profile(seed, nodes)
        self.cluster = Cluster(seed, root, self.profile)
        self.loop = self.cluster.loop
        self.chance = self.cluster.fork("clients")
        self.history = History(
            now_ms=lambda: EPOCH_MS + int(self.loop.time() * 1000), cleanup=self.profile.cleanup
        )
        self.checks = Checks(self.cluster, self.history)
        self.group_checks = GroupChecks(self.history)
        self.faults = Faults(self.cluster, self.profile)
        self.phase_over = False
        self.cluster.on_failed = self._failed
        self.cluster.on_error = self._logged
        self.cluster.on_moment = self.faults.happened
        self.history.on_acknowledged = lambda: self.faults.happened("acknowledged")
        self.history.coordinator = self.checks.coordinator
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
        """Judge an error that a broker logged: a disk may fail, anything else is a bug.

        A request that meets a failed disk has an answer, too.
        """
        is_of_a_disk = self.profile.disk_errors and isinstance(error, LogDirectoryFailure)
        if text == "request failed" or not is_of_a_disk:
            trace = "".join(traceback.format_exception(error)[-3:]) if error else ""
            self.history.violate("logged-error", f"{text}: {trace}")

    # ---- clients

    def client(self, name: str) -> tuple[Client, Any]:
        """Make a client process of its own."""
        addresses = [node.address for node in self.cluster.nodes if node.is_broker]
        process = self.loop.process(name, f"host-{name}")
        return Client(name, addresses, self.history, self.cluster.fork(name)), process

    def operator(self, name: str) -> tuple[Operator, Any]:
        """Make an operator's process."""
        client, process = self.client(name)
        profile = self.profile
        made = Operator(client, TOPIC, profile.partitions, profile.brokers, profile.replicas)
        return made, process

    # ---- the run

    async def run(self) -> None:
        """Faults, healing, and the final comparison."""
        for node in self.cluster.nodes:
            node.start()
        admin, process = self.client("admin")
        profile = self.profile
        creating = self.loop.start_task(
            process,
            admin.create_topic(TOPIC, profile.partitions, profile.replicas, profile.topic),
        )
        workers = asyncio.create_task(self._work_after(creating))
        if profile.warms_up:
            await creating
            await asyncio.sleep(0.2)
        await self.faults.run()
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
        self.history.check(final)
        self.checks.at_the_end(final)

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
        operator, process = self.operator("watcher")
        await self.loop.start_task(process, operator.client.until(operator.converged))
        return await self._read_all()

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
        return [*workers, *self._start_works()]

    def _start_works(self) -> list[Any]:
        """Start what the profile has beside producers and consumers."""
        profile, workers = self.profile, []
        if "group" in profile.works:
            for number in range(self.chance.choice((2, 3))):
                client, process = self.client(f"m{number}")
                member = Member(client, self.group_checks, TOPIC, range(profile.partitions))
                workers.append(self.loop.start_task(process, member.run(self._is_over)))
        if "churn" in profile.works:
            client, process = self.client("churn")
            churn = Churn(client, profile.replicas)
            workers.append(self.loop.start_task(process, churn.run(self._is_over)))
        if "reassign" in profile.works:
            operator, process = self.operator("moves")
            workers.append(self.loop.start_task(process, operator.reassign(self._is_over)))
        if "voters" in profile.works:
            operator, process = self.operator("voters")
            nodes = self.cluster.nodes
            hosts = {number: nodes[number - 1].host for number in profile.controllers}
            fewest = self.chance.choice((1, 2))
            changes = operator.change_voters(self._is_over, hosts, fewest)
            workers.append(self.loop.start_task(process, changes))
        return workers

    def _is_over(self) -> bool:
        return self.phase_over

    async def _read_all(self) -> dict[tuple[str, int], dict[int, bytes]]:
        """Read every partition from its start to its end with one more consumer."""
        final: dict[tuple[str, int], dict[int, bytes]] = {}
        for index in range(self.profile.partitions):
            client, process = self.client(f"final{index}")
            history = History(
                now_ms=self.history.now_ms,
                writes=self.history.writes,
                cleanup=self.history.cleanup,
            )
            client.history = history
            consumer = Consumer(client, client.name, TOPIC, index)
            await self.loop.start_task(process, self._drain(consumer))
            log = history.logs.get((TOPIC, index), {})
            if self.history.may_begin_later:
                # Retention may take the log's beginning away under the reader, too.
                log = {offset: log[offset] for offset in log if offset >= consumer.began_at}
                self.history.starts[TOPIC, index] = min(log, default=consumer.position)
            final[TOPIC, index] = log
            self.history.violations += history.violations
        return final

    async def _drain(self, consumer: Consumer) -> None:
        empty = 0
        while empty < 2:
            position = consumer.position
            count = await consumer.poll(max_wait_ms=500)
            # Compaction leaves batches without records, which are not the end.
            empty = empty + 1 if count == 0 and consumer.position == position else 0


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
