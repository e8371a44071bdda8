"""Simulated nodes that run the real `Broker`, and what can be done to them."""

import asyncio
import contextlib
import random
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

from headrace_broker.protocol.types import TimestampMs
from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.network import listener
from simulation.disk import Disk, FileSystem
from simulation.loop import CURRENT, Process, SimulatedLoop
from simulation.network import Network
from simulation.profile import Profile
from simulation.workloads.workload import is_aimed

EPOCH_MS = 1_700_000_000_000
CLIENT_PORT = 9092
CONTROLLER_PORT = 9093
OFFSETS_PARTITIONS = 2
_LOGGED_LINES = 3000


class NodeClock:
    """A node's wall clock: virtual time and a skew that a fault may change."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._skew_ms = self._skew_ms_max = 0

    @property
    def skew_ms(self) -> int:
        """How far it is off."""
        return self._skew_ms

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms
        self._skew_ms_max = max(self._skew_ms_max, skew_ms)

    def latest_ms(self) -> int:
        """The latest time that it may have shown so far."""
        return EPOCH_MS + int(self._loop.time() * 1000) + self._skew_ms_max

    def now_ms(self) -> TimestampMs:
        return TimestampMs(EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms)


class Node:
    """One host: its disk, its clock, and the broker process that runs there or does not."""

    def __init__(self, cluster: "Cluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"10.0.0.{node_id}"
        self.disk = Disk(cluster.root / f"node-{node_id}", cluster.fork(f"disk-{node_id}"))
        self.disk.may_stop = self.may_end
        self.clock = NodeClock(cluster.loop)
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.starts = 0
        self.failures: list[BaseException] = []
        self.wants_to_run = True
        self._stopping: asyncio.Event | None = None
        self.truncated = ""
        """The partition whose log was cut last."""
        self.on_disk_stopped: Callable[[], None] = self.kill
        """How the process ends in the middle of a disk operation: a kill, or a power cut."""

    def __repr__(self) -> str:
        return f"node {self.node_id}"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, CLIENT_PORT

    @property
    def is_broker(self) -> bool:
        return self.node_id in self.cluster.profile.brokers

    @property
    def log_directories(self) -> list[Path]:
        """The first has the metadata log."""
        root = self.disk.root
        return [root, root / "second"] if self.cluster.has_two_directories else [root]

    @property
    def has_failed_directory(self) -> bool:
        """Whether it runs without one of its log directories."""
        directories = getattr(self.broker, "directories", None)
        return directories is not None and bool(directories.failed)

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def is_ready(self) -> bool:
        is_stopping = self._stopping is not None and self._stopping.is_set()
        return self.broker is not None and self.broker.is_ready and not is_stopping

    def start(self) -> None:
        """Start the broker's process."""
        if self.process is not None:
            return
        self.starts += 1
        self.cluster.say(f"{self} starts")
        process = self.cluster.loop.process(f"broker-{self.node_id}", self.host)
        self.process = process
        self.disk.attach(process)
        self.disk.on_stopped = lambda: setattr(process, "must_end", self.on_disk_stopped)
        self.cluster.network.power_on(self.host)
        self.cluster.loop.start_task(process, self._serve())

    async def _serve(self) -> None:
        """Do what `server.main` does."""
        stopping = self._stopping = asyncio.Event()
        failures: list[BaseException] = []

        def fail(error: BaseException) -> None:
            failures.append(error)
            stopping.set()

        seed = self.cluster.fork(f"broker-{self.node_id}-{self.starts}")
        config = parse_config(self.cluster.config_text(self))
        self.broker = Broker(config, clock=self.clock, rng=seed, on_failure=fail)
        try:
            starting = asyncio.ensure_future(self.broker.start())
            stopped = asyncio.ensure_future(stopping.wait())
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            else:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            await stopping.wait()
            if not failures:
                await self.broker.stop()
        except Exception as error:  # noqa: BLE001 - as main: it is logged and ends the process
            failures.append(error)
        for error in failures:
            self.failures.append(error)
            self.cluster.failed(self, error)
        # The process exits after this step, as a process does.
        process = CURRENT.get()
        if process is not None:
            process.must_end = self._exit

    def stop(self) -> None:
        """SIGTERM."""
        if self._stopping is not None and (self.is_ready or self.may_end()):
            self.cluster.say(f"{self} gets a SIGTERM")
            self._stopping.set()

    def kill(self) -> None:
        """SIGKILL: what it wrote stays in the page cache."""
        if self.may_end():
            self._exit()

    def may_end(self) -> bool:
        """Whether the fault model lets the process end (`Cluster.may_end`)."""
        return self.disk.is_stopped or self.cluster.may_end(self)

    def _exit(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        self.cluster.say(f"{self} ends")
        self._stopping = None
        self.broker = None
        self.disk.detach()
        self.disk.evict()
        self.cluster.loop.end(process)

    def cut_power(self) -> None:
        """Cut the power: unsynced writes survive or not at random, and the peers hear nothing.

        Where losing them would be the configuration's own fault, the process is killed instead.
        """
        if not self.cluster.may_lose_power(self):
            self.kill()
            return
        self.cluster.say(f"{self} loses power")
        self.cluster.network.power_off(self.host)
        self._exit()
        self.disk.lose_unsynced()

    def pause(self, *, on: bool) -> None:
        """SIGSTOP and SIGCONT."""
        if self.process is not None:
            self.cluster.say(f"{self} is {'paused' if on else 'resumed'}")
            self.process.is_paused = on


class Cluster:
    """The nodes, their network, and the seams between them and the real code."""

    def __init__(self, seed: int, root: Path, profile: Profile) -> None:
        self.seed = seed
        self.profile = profile
        self.root = root
        self.loop = SimulatedLoop(self.fork("loop"))
        self.loop.root = str(root).encode()
        self.network = Network(self.loop, self.fork("network"))
        self.files = FileSystem()
        self.said: deque[str] = deque(maxlen=_LOGGED_LINES)
        self.on_failed: Callable[[Node, BaseException], None] = lambda _node, _error: None
        self.on_error: Callable[[str, BaseException | None], None] = lambda _text, _error: None
        """Called with what a broker logs as an error: a bug of ours, or a failed disk."""
        self.on_moment: Callable[[str, Node | None], None] = lambda _moment, _node: None
        """Called with all that a broker logs."""
        self.nodes = [Node(self, number) for number in range(1, profile.nodes + 1)]
        self.files.disks = [node.disk for node in self.nodes]
        self.files.on_fsync = self._slow_fsync
        self.loop.thread_delay = self._thread_delay
        self.loop.thread_lag = self._thread_lag
        self._uuids = self.fork("uuids")
        self._epochs_before_cuts: dict[int, int] = {}
        # Where disks have errors, one of two directories fails at times and the broker goes on.
        self.has_two_directories = "directories" in profile.works or (
            profile.disk_errors and self.fork("directories").random() < 0.5
        )
        self.rotting: Node | None = None
        """Whose disk damages what it holds; the scrub is fast then."""
        self.damaged: list[tuple[tuple[str, int], int]] = []
        """What it has damaged so far: a partition, and an offset in it."""
        self.damage_read = 0
        """Of how many of these a reader knows what became."""

    def fork(self, name: str) -> random.Random:
        """Return a random source of its own, so that more draws here change nothing there."""
        return random.Random(f"{self.seed}/{name}")

    def say(self, text: str) -> None:
        """Note what happens, for the one who reads a failure."""
        text = text.replace(str(self.root), "")
        self.said.append(f"{self.loop.time():10.4f}  {text}")
        self.loop.note(text)

    def may_lose_power(self, node: Node) -> bool:
        """Whether what no fsync covers is elsewhere, too.

        All replicas are in sync, everywhere, and all other brokers' processes run. A machine that
        lost power counts as out of sync until its new registration is.
        """
        if self.profile.has_fsyncs:
            return True
        active = [item for item in self.nodes if _is_active_controller(item)]
        if not active or not all(item.is_ready for item in self.nodes if item.is_broker):
            return False
        broker: Any = max(active, key=lambda item: item.broker.controller.epoch).broker
        image = broker.controller.image
        if any(self._is_out(image, number) for number in self.profile.brokers):
            return False
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                if set(partition.isr) != set(partition.replicas) or len(partition.replicas) < 3:
                    return False
        for number in self.profile.brokers:
            self._epochs_before_cuts.setdefault(number, -1)
        self._epochs_before_cuts[node.node_id] = image.brokers[node.node_id].epoch
        self.on_moment("lost power without fsyncs", node)
        return True

    def may_end(self, node: Node) -> bool:
        """Whether a process may end: where a machine has lost what no fsync covered, no broker's.

        Until that machine has registered again nobody knows that it is out of sync. Each replica
        that comes back from a kill counts as out of sync, so the machine could be the last.
        """
        if not node.is_broker:
            return True
        away = [number for number, epoch in self._epochs_before_cuts.items() if epoch >= 0]
        return all(self._has_registered(number) for number in away if number != node.node_id)

    def _has_registered(self, number: int) -> bool:
        """Whether any node knows of a registration since the power cut."""
        images = [
            getattr(getattr(item.broker, "controller", None), "image", None) for item in self.nodes
        ]
        return any(image is not None and not self._is_out(image, number) for image in images)

    def disk(self) -> Disk | None:
        """Return the disk of the process that runs."""
        process = CURRENT.get()
        return next((item.disk for item in self.nodes if item.process is process), None)

    def has_same_metadata(self) -> bool:
        """Whether all nodes that serve have the same topics and brokers."""
        brokers: list[Any] = [node.broker for node in self.nodes if node.is_ready]
        images = [broker._metadata_quorum.loader.image for broker in brokers]
        return all(
            image.topics == images[0].topics and image.brokers == images[0].brokers
            for image in images
        )

    def is_active_controller(self, number: int) -> bool:
        """Whether a node takes itself for the active controller."""
        return _is_active_controller(self.nodes[number - 1])

    def is_former_controller(self) -> bool:
        """Whether the process that runs has a successor as the active controller."""
        epochs: dict[Process | None, int] = {}
        for item in self.nodes:
            if _is_active_controller(item):
                broker: Any = item.broker
                epochs[item.process] = broker.controller.epoch
        own = epochs.get(CURRENT.get())
        return own is not None and own < max(epochs.values())

    def newest_epoch(self, key: tuple[str, int]) -> int:
        """Return the newest leader epoch of a partition that any broker knows; -1 where none."""
        epochs = [-1]
        for node in self.nodes:
            broker: Any = node.broker
            if broker is not None and broker.is_composed:
                partition = broker.metadata.partition(*key)
                epochs.append(-1 if partition is None else int(partition.leader_epoch))
        return max(epochs)

    def in_sync_beside(self, node: Node, topic: str, index: int) -> list[Node]:
        """Return the other nodes that are in sync by the newest metadata of all."""
        images = [
            image.topics[topic].partitions[index]
            for item in self.nodes
            if (image := getattr(getattr(item.broker, "controller", None), "image", None))
            and topic in image.topics
            and index in image.topics[topic].partitions
        ]
        if not images:
            return []
        newest = max(images, key=lambda each: each.partition_epoch)
        return [each for each in self.nodes if each is not node and each.node_id in newest.isr]

    async def wait_scrubbed(self) -> None:
        """Wait until the node whose disk rots has looked at everything and is whole."""
        node = self.rotting
        broker: Any = None
        passes: dict[Any, int] = {}
        while node is not None:
            await asyncio.sleep(0.2)
            if not node.is_ready:
                broker = None
                continue
            if broker is not node.broker:
                broker = node.broker
                passes = {each: each.scrub.passes for each in broker.directories}
            if all(each.scrub.passes >= before + 2 for each, before in passes.items()) and not any(
                partition.log.is_damaged for partition in broker.replicas
            ):
                return

    def _is_out(self, image: Any, number: int) -> bool:
        registered = image.brokers.get(number)
        return registered is None or registered.epoch <= self._epochs_before_cuts.get(number, -1)

    async def replace_failed_directories(self) -> None:
        """Start brokers again that go on without a log directory: its disk is well again."""
        await asyncio.sleep(0.1)
        for node in self.nodes:
            if node.has_failed_directory:
                self.say(f"{node} is started again for its failed log directory")
                node.kill()
                node.start()

    def failed(self, node: Node, error: BaseException) -> None:
        self.say(f"{node} fails: {type(error).__name__}: {error}")
        self.on_failed(node, error)

    def config_text(self, node: Node) -> str:
        """Return the node's settings file."""
        profile = self.profile
        roles, listeners = [], []
        settings = {}
        if node.is_broker:
            names = f"PLAINTEXT://{node.host}:{CLIENT_PORT}"
            roles.append("broker")
            listeners.append(names)
            settings["advertised.listeners"] = names
        if node.node_id in profile.controllers:
            roles.append("controller")
            listeners.append(f"CONTROLLER://{node.host}:{CONTROLLER_PORT}")
        controllers = [self.nodes[number - 1] for number in profile.controllers]
        if profile.nodes > 1:
            # Voters may change, so everybody has to know where any controller can be found.
            settings["controller.quorum.bootstrap.servers"] = ",".join(
                f"{item.host}:{CONTROLLER_PORT}" for item in controllers
            )
        settings |= {
            "process.roles": ",".join(roles),
            "node.id": str(node.node_id),
            "cluster.id": "c2ltdWxhdGVkIGNsdXN0",
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(
                f"{number}@{self.nodes[number - 1].host}:{CONTROLLER_PORT}"
                for number in profile.voters
            ),
            "log.dirs": ",".join(map(str, node.log_directories)),
            "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
            "offsets.topic.replication.factor": str(profile.replicas),
            "min.insync.replicas": str(min(2, profile.replicas)),
            "group.min.session.timeout.ms": "300",
            "group.initial.rebalance.delay.ms": "100",
            # Everything periodic several times as often as by default: a seed is a few seconds.
            "log.flush.offset.checkpoint.interval.ms": "700",
            "log.retention.check.interval.ms": "1000",
            "log.cleaner.backoff.ms": "500",
            "replica.high.watermark.checkpoint.interval.ms": "500",
            "replica.lag.time.max.ms": "2000",
            "broker.heartbeat.interval.ms": "300",
            "broker.session.timeout.ms": "1500",
            "controller.quorum.election.timeout.ms": "300",
            "controller.quorum.election.backoff.max.ms": "300",
            "controller.quorum.fetch.timeout.ms": "600",
            "controller.quorum.request.timeout.ms": "600",
            **profile.settings,
        }
        if self.rotting is not None:
            settings |= {
                # A slow one, so that readers meet damage before it does, in half of the seeds.
                "headrace.log.scrub.interval.ms": self.fork("scrub").choice(
                    ("400", "4000", "4000", "4000") if is_aimed(self.seed) else ("400", "4000")
                ),
                "headrace.log.scrub.bytes.per.second": "1000000000",
            }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put the simulated disk, sockets and uuids in place of the real ones."""
        bind, uuid4 = listener.bind_socket, uuid.uuid4
        listener.bind_socket = self.network.bind  # type: ignore[assignment]  # a socket to the loop, too
        uuid.uuid4 = lambda: uuid.UUID(int=self._uuids.getrandbits(128), version=4)
        try:
            with self.files.installed(), self._logging():
                yield
        finally:
            listener.bind_socket, uuid.uuid4 = bind, uuid4

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        def keep(_logger: Any, level: str, event: dict[str, Any]) -> Any:
            process = CURRENT.get()
            error = event.pop("exc_info", None)
            if error is True:  # structlog's way to say "the one that is being handled"
                error = sys.exc_info()[1]
            if level in ("error", "critical"):
                self.on_error(str(event.get("event")), error)
            self._moment(event, process)
            facts = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            cause = f" cause={error!r}" if error else ""
            self.said.append(
                f"{self.loop.time():10.4f}  {process}: {level} {event.get('event')} {facts}{cause}"
            )
            raise structlog.DropEvent

        was = structlog.get_config()
        structlog.configure(processors=[keep], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**was)

    def _moment(self, event: dict[str, Any], process: Process | None) -> None:
        node = None
        if process is not None:
            node = next((node for node in self.nodes if node.process is process), None)
        if node is not None and "log_end" in event:
            if event["log_end"] == event["log_end_before"]:
                return  # nothing was cut
            node.truncated = f"{event['topic']}-{event['partition']}"
        self.on_moment(str(event.get("event")), node)

    def _thread_delay(self, process: Process) -> float:
        """A slow disk's queue: an fsync is asked for now and takes effect much later."""
        disk = next((node.disk for node in self.nodes if node.process is process), None)
        if disk is None or disk.rng.random() >= disk.slow_fsync_probability:
            return 0.0
        return disk.rng.choice((0.005, 0.02, 0.1))

    def _thread_lag(self, process: Process) -> float:
        """Work is done, and its process has much else to do before it hears of that."""
        disk = next((node.disk for node in self.nodes if node.process is process), None)
        if disk is None or not disk.late_answer_probability:
            return 0.0
        if disk.rng.random() >= disk.late_answer_probability:
            return 0.0
        return disk.rng.choice((0.02, 0.1, 0.3))

    def _slow_fsync(self, disk: Disk, delay: float) -> None:
        if disk.process is not None:
            disk.process.busy_until = max(disk.process.busy_until, self.loop.time()) + delay


def _is_active_controller(node: Node) -> bool:
    broker: Any = node.broker
    controller = getattr(broker, "controller", None)
    return node.is_ready and controller is not None and bool(controller.is_active)
