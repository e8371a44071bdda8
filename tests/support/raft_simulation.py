"""A simulated quorum: pure nodes, a network that loses and reorders, disks that forget, one seed.

`World` owns virtual time and checks the invariants after every step: ViolationError is a breach.
"""

import heapq
import itertools
import random
import zlib
from collections import Counter
from collections.abc import Callable

from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from headrace_broker.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace_broker.raft import effects as fx
from headrace_broker.raft import events as ev
from headrace_broker.raft.types import (
    Destination,
)
from support.raft_disk import StoredBatch
from support.raft_process import (
    CLUSTER_ID,
    VERSIONS,
    Process,
    ViolationError,
    config_of,
    digest_of,
    directory_of,
    endpoint_of,
)


class World:
    """Time, the network, and what must hold over all nodes."""

    def __init__(
        self, seed: int, *, voters: int = 3, observers: int = 0, codec: bool = False
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0
        self.is_hostile = False
        self.codec = codec
        self.loss = 0.0
        self.delay_max = 3
        self.blocked: set[tuple[int, int]] = set()
        self._heap: list = []
        self._sequence = itertools.count()
        self._tickets = itertools.count(1)
        self.leaders: dict[int, int] = {}
        self.ledger: dict[int, int] = {0: 0}
        self.commits: dict[int, int] = {}
        self.committed = 0
        self.trace_hash = 0
        self.seen: Counter[str] = Counter()
        self.log: list[str] = []
        self.voters = voters
        self.processes: dict[int, Process] = {}
        for node_id in range(1, voters + observers + 1):
            self.processes[node_id] = Process(self, config_of(node_id, voters))

    # ---- time

    def at(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + max(delay, 0), next(self._sequence), action))

    def run(self, duration: int, until: Callable[[], bool] = lambda: False) -> None:
        end = self.now + duration
        while self._heap and self._heap[0][0] <= end and not until():
            self.now, _, action = heapq.heappop(self._heap)
            action()
        if not until():
            self.now = end

    def note(self, line: object) -> None:
        self.log.append((self.now, line))
        if len(self.log) > 3000:
            del self.log[:1000]

    def trace(self, node_id: int, effect: fx.Effect) -> None:
        node = self.processes[node_id].node
        line = f"{self.now} {node_id} {type(effect).__name__} {node.epoch} {node.high_watermark}"
        self.trace_hash = zlib.crc32(line.encode(), self.trace_hash)
        self.seen[type(effect).__name__] += 1
        self.note((node_id, effect))

    # ---- network

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self.blocked

    def delay(self) -> int:
        if self.is_hostile and self.rng.random() < 0.05:
            return self.rng.randint(0, 1200)
        return self.rng.randint(0, self.delay_max)

    def address(self, destination: Destination) -> int:
        return destination.port - 9000

    def send(self, source: Process, effect: fx.Send) -> None:
        target = self.processes[self.address(effect.destination)]
        correlation = effect.correlation_id

        def fail() -> None:
            source.step(ev.RequestFailed(correlation))

        request = self.over_the_wire(effect.request)
        is_lost = self.is_cut(source.id, target.id) or self.rng.random() < self.loss
        if not target.is_up and not is_lost:
            source.later(1, lambda: source.step(ev.PeerProcessDied(target.id)))
            source.later(1, fail)
            return
        source.later(effect.timeout_ms, fail)
        if is_lost:
            return
        _, response_cls, version = VERSIONS[type(effect.request)]
        life = source.life

        def answer(response: object) -> None:
            lost = self.is_cut(target.id, source.id) or self.rng.random() < self.loss
            if lost or source.life != life:
                return
            received = self.over_the_wire(response, response_cls, version)
            source.later(
                self.delay(), lambda: source.step(ev.ReceivedResponse(correlation, received))
            )

        self.at(self.delay(), lambda: self.deliver(target, request, version, answer))
        if self.is_hostile and self.rng.random() < 0.02:  # a retry at a lower layer
            self.at(self.delay(), lambda: self.deliver(target, request, version, answer))

    def deliver(self, target: Process, request: object, version: int, answer: Callable) -> None:
        if target.is_up:
            ticket = next(self._tickets)
            target.clients[ticket] = answer
            target.step(ev.ReceivedRequest(ticket, request, version))

    def over_the_wire(self, message, cls=None, version=None):
        if not self.codec:
            return message
        if cls is None:
            cls, _, version = VERSIONS[type(message)]
        return decode(cls, encode_bytes(message, version), version)[0]

    def announce_death(self, dead: int) -> None:
        for process in self.processes.values():
            if process.is_up and not self.is_cut(process.id, dead) and self.rng.random() < 0.7:
                process.later(
                    self.rng.randint(1, 20),
                    lambda process=process: process.step(ev.PeerProcessDied(dead)),
                )

    # ---- what must hold

    def fail(self, message: str) -> None:
        raise ViolationError(f"seed {self.seed}, {self.now} ms: {message}")

    def note_leader(self, process: Process, effect: fx.BecameLeader) -> None:
        known = self.leaders.setdefault(effect.epoch, process.id)
        if known != process.id or getattr(process, "led", 0) >= effect.epoch:
            self.fail(f"{process.id} and {known} lead epoch {effect.epoch}")
        process.led = effect.epoch
        # Who won an older epoch by votes that were long under way need not have what a later one
        # committed (Raft's leader completeness, figure 3).
        commits = [offset for epoch, offset in self.commits.items() if epoch < effect.epoch]
        committed = max(commits, default=0)
        digest, at = process.digest, process.applied
        for batch in process.disk.batches:
            if at < batch.next <= committed:
                digest, at = digest_of(digest, batch), batch.next
        if at < committed or digest != self.ledger[at]:
            self.fail(f"leader {process.id} of {effect.epoch} lacks committed {committed}")

    def note_applied(self, process: Process, batch: StoredBatch) -> None:
        self.committed = max(self.committed, batch.next)
        self.check_digest(process)

    def check_digest(self, process: Process) -> None:
        if self.ledger.setdefault(process.applied, process.digest) != process.digest:
            self.fail(f"{process.id} committed other data below {process.applied}")

    def check_majority(self, leader: Process, high_watermark: int) -> None:
        """Every committed entry is durable on a majority of the voters."""
        voters = leader.node.voters.voters
        self.commits[leader.node.epoch] = high_watermark
        own = next(batch for batch in leader.disk.batches if batch.next == high_watermark)
        holders = 0
        for voter in voters:
            disk = self.processes[voter.key.node_id].disk
            batch = disk.durable_batch(high_watermark)
            is_in_snapshot = any(i.offset >= high_watermark for i in disk.snapshots)
            holders += is_in_snapshot or (batch is not None and batch.epoch == own.epoch)
        if holders < voters.majority:
            self.fail(f"{high_watermark} committed by {leader.id}, on {holders} of {len(voters)}")

    def check(self, process: Process) -> None:
        disk = process.disk
        if disk.start and not any(i.offset == disk.start for i in disk.snapshots):
            self.fail(f"{process.id}: no snapshot at the log's start {disk.start}")
        node = process.node
        if node is not None and node.end_offset != disk.end and not process.parts:
            installing = node._replica.installing
            if installing is None:
                self.fail(f"{process.id}: node says {node.end_offset}, log ends at {disk.end}")

    # ---- what operators do

    def leader(self) -> Process | None:
        leading = [p for p in self.processes.values() if p.is_up and p.node.is_leader]
        return max(leading, key=lambda p: p.node.epoch, default=None)

    def ask(self, target: Process, request: object) -> None:
        self.deliver(target, request, VERSIONS[type(request)][2], self.answered)

    def answered(self, response: object) -> None:
        self.note(f"answered {response!r}")

    def add_voter(self, leader: Process, node_id: int) -> None:
        at = endpoint_of(node_id)
        self.ask(
            leader,
            AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout_ms=2000,
                voter_id=node_id,
                voter_directory_id=directory_of(node_id),
                listeners=[Listener(name=at.name, host=at.host, port=at.port)],
            ),
        )

    def remove_voter(self, leader: Process, node_id: int) -> None:
        self.ask(
            leader,
            RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=node_id,
                voter_directory_id=directory_of(node_id),
            ),
        )

    def start_all(self) -> None:
        for process in self.processes.values():
            if not process.is_up:
                process.start()

    def heal(self) -> None:
        self.is_hostile, self.loss, self.delay_max = False, 0.0, 3
        self.blocked.clear()
        for process in self.processes.values():
            process.crash_after_effects = None
            process.resume()
        self.start_all()
