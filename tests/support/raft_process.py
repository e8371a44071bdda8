"""One replica of the simulated quorum: its node, its disk, and effects performed in order."""

import random
import uuid
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import API_TABLE
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import effects as fx
from headrace_broker.raft import events as ev
from headrace_broker.raft.node import RaftNode
from headrace_broker.raft.types import (
    Endpoint,
    OffsetAndEpoch,
    RaftConfig,
    ReplicaKey,
    Voter,
    VoterSet,
)
from support.raft_disk import Disk, StoredBatch, build_snapshot, read_snapshot

if TYPE_CHECKING:
    from support.raft_simulation import World

VERSIONS = {api.request: (api.request, api.response, api.max_version) for api in API_TABLE.values()}
CLUSTER_ID = "simulated"


class ViolationError(AssertionError):
    """An invariant of the quorum does not hold."""


class NoProgressError(ViolationError):
    """The quorum does not elect, commit or converge although nothing is in its way."""


def directory_of(node_id: int) -> uuid.UUID:
    return uuid.UUID(int=0xD000 + node_id)


def endpoint_of(node_id: int) -> Endpoint:
    return Endpoint(f"node-{node_id}", 9000 + node_id)


def config_of(node_id: int, voters: int, **timing: int) -> RaftConfig:
    listed = [Voter(key=ReplicaKey(i), endpoints=(endpoint_of(i),)) for i in range(1, voters + 1)]
    return RaftConfig(
        key=ReplicaKey(node_id, directory_of(node_id)),
        cluster_id=CLUSTER_ID,
        voters=VoterSet(listed),
        endpoints=(endpoint_of(node_id),),
        **timing,
    )


def digest_of(before: int, batch: StoredBatch) -> int:
    return zlib.crc32(batch.data, before)


class Process:
    """One replica with its disk: performs effects as the driver must."""

    def __init__(self, world: "World", config: RaftConfig) -> None:
        self.world = world
        self.config = config
        self.id = config.key.node_id
        self.disk = Disk()
        self.node: RaftNode | None = None
        self.life = 0
        self.paused_until = -1
        self.inbox: list[ev.Event] = []
        self.crash_after_effects: int | None = None
        self.applied = 0
        self.digest = 0
        self.max_epoch_told = 0
        self.parts: dict[OffsetAndEpoch, bytes] = {}
        self.clients: dict[int, Callable[[object], None]] = {}
        self.flushes: list[int] = []
        self.is_flushing = False
        self.wakeup = -1
        self.leads = False

    @property
    def is_up(self) -> bool:
        return self.node is not None

    def start(self) -> None:
        self.life += 1
        self.applied = self.digest = 0
        self.inbox, self.flushes, self.is_flushing, self.wakeup = [], [], False, -1
        self.clients, self.parts, self.leads = {}, {}, False
        rng = random.Random(self.world.rng.getrandbits(32))
        self.node = RaftNode(
            self.config,
            rng,
            state=self.disk.quorum_state,
            log=self.disk.log_state(),
            control=self.disk.control(),
        )
        if self.node.epoch < self.max_epoch_told:
            raise ViolationError(
                f"{self.id} came back in epoch {self.node.epoch} < {self.max_epoch_told}"
            )
        self.world.note(f"{self.id} starts in epoch {self.node.epoch}, log to {self.disk.end}")
        self.perform(self.node.start(self.world.now))

    def crash(self) -> None:
        self.world.note(f"{self.id} crashes")
        self.life += 1
        self.node = None
        self.crash_after_effects = None
        self.disk.crash(self.world.rng)
        latest = max(self.disk.snapshots, default=None)
        if latest is not None and self.disk.end < latest.offset:
            # As Kafka's truncateToLatestSnapshot: the log was lost, the snapshot was not.
            self.disk.install(latest, self.disk.snapshots[latest])
        self.world.announce_death(self.id)

    def step(self, event: ev.Event) -> None:
        node = self.node
        if node is None:
            return
        if self.paused_until > self.world.now:
            self.inbox.append(event)
            return
        high_watermark = node.high_watermark
        effects = node.step(event, self.world.now)
        if node.high_watermark < high_watermark:
            raise ViolationError(f"{self.id}: high watermark from {high_watermark} back")
        self.perform(effects)
        self.world.check(self)

    def resume(self) -> None:
        """Go on after a pause (SIGSTOP), with all that came meanwhile."""
        self.paused_until = -1
        inbox, self.inbox = self.inbox, []
        for event in inbox:
            self.step(event)
        if self.node is not None:
            self.wakeup = -1
            self.step(ev.Tick())

    def perform(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if self.crash_after_effects is not None:
                if self.crash_after_effects == 0:
                    self.crash()
                    return
                self.crash_after_effects -= 1
            self.world.trace(self.id, effect)
            _PERFORM[type(effect)](self, effect)
            if self.node is None:
                return
        self.schedule_tick()

    def schedule_tick(self) -> None:
        deadline = self.node.next_deadline_ms
        if deadline >= 1 << 60 or deadline == self.wakeup:
            return
        self.wakeup = deadline
        self.later(deadline - self.world.now, lambda: self.tick(deadline))

    def tick(self, deadline: int) -> None:
        if self.wakeup == deadline:
            self.wakeup = -1
            self.step(ev.Tick())

    def later(self, delay: int, action: Callable[[], None]) -> None:
        """Do something in this life of the process only."""
        life = self.life
        self.world.at(delay, lambda: action() if self.life == life else None)

    # ---- effects

    def on_persist_quorum_state(self, effect: fx.PersistQuorumState) -> None:
        if effect.state.epoch < self.disk.quorum_state.epoch:
            raise ViolationError(f"{self.id}: epoch {effect.state.epoch} after a later one")
        self.disk.quorum_state = effect.state

    def on_send(self, effect: fx.Send) -> None:
        self.max_epoch_told = max(self.max_epoch_told, self.node.epoch)
        self.world.send(self, effect)

    def on_reply(self, effect: fx.Reply) -> None:
        self.max_epoch_told = max(self.max_epoch_told, self.node.epoch)
        answer = self.clients.pop(effect.ticket)
        answer(effect.response)

    def on_reply_with_records(self, effect: fx.ReplyWithRecords) -> None:
        size = self.world.rng.choice([1, 300, effect.max_bytes])
        partition = effect.response.responses[0].partitions[0]
        partition.records = self.disk.read(effect.offset, size)
        self.on_reply(fx.Reply(effect.ticket, effect.response))

    def on_reply_with_snapshot_part(self, effect: fx.ReplyWithSnapshotPart) -> None:
        data = self.disk.snapshots[effect.snapshot_id].data
        partition = effect.response.topics[0].partitions[0]
        if not 0 <= effect.position < len(data):
            partition.error_code = ErrorCode.POSITION_OUT_OF_RANGE
        else:
            size = self.world.rng.choice([100, effect.max_bytes])
            partition.size = len(data)
            partition.unaligned_records = data[effect.position : effect.position + size]
        self.on_reply(fx.Reply(effect.ticket, effect.response))

    def on_append_to_log(self, effect: fx.AppendToLog) -> None:
        if effect.base_offset != self.disk.end:
            raise ViolationError(f"{self.id}: appends at {effect.base_offset}, not {self.disk.end}")
        self.disk.append(effect.records)

    def on_truncate_log(self, effect: fx.TruncateLog) -> None:
        if self.leads:
            raise ViolationError(f"{self.id}: a leader truncates its log")
        if effect.end_offset < self.applied:
            raise ViolationError(f"{self.id}: cut at {effect.end_offset}, applied {self.applied}")
        self.disk.truncate(effect.end_offset)

    def on_flush_log(self, effect: fx.FlushLog) -> None:
        self.flushes.append(effect.ticket)
        if not self.is_flushing:
            self.begin_flush()

    def begin_flush(self) -> None:
        ticket, count = self.flushes[-1], self.disk.begin_flush()
        self.flushes.clear()
        self.is_flushing = True
        delay = self.world.rng.choice([0, 1, 2, 5, 5, 50 if self.world.is_hostile else 5])
        self.later(delay, lambda: self.end_flush(ticket, count))

    def end_flush(self, ticket: int, count: int) -> None:
        self.is_flushing = False
        self.disk.end_flush(min(count, self.disk.begin_flush()))
        if self.flushes:
            self.begin_flush()
        self.step(ev.LogFlushed(ticket))

    def on_high_watermark_advanced(self, effect: fx.HighWatermarkAdvanced) -> None:
        for batch in self.disk.batches:
            if self.applied < batch.next <= effect.high_watermark:
                if batch.base != self.applied:
                    raise ViolationError(f"{self.id}: applies {batch.base} after {self.applied}")
                self.digest = digest_of(self.digest, batch)
                self.applied = batch.next
                self.world.note_applied(self, batch)
        if self.applied != effect.high_watermark:
            raise ViolationError(
                f"{self.id}: committed {effect.high_watermark}, has {self.applied}"
            )
        if self.node.is_leader:
            self.world.check_majority(self, effect.high_watermark)

    def on_became_leader(self, effect: fx.BecameLeader) -> None:
        self.leads = True
        self.world.note_leader(self, effect)

    def on_lost_leadership(self, _: fx.LostLeadership) -> None:
        self.leads = False

    def on_leader_changed(self, _: fx.LeaderChanged) -> None:
        pass

    def on_voters_changed(self, _: fx.VotersChanged) -> None:
        pass

    def on_append_refused(self, _: fx.AppendRefused) -> None:
        pass

    def on_write_snapshot_part(self, effect: fx.WriteSnapshotPart) -> None:
        written = b"" if effect.position == 0 else self.parts[effect.snapshot_id]
        assert len(written) == effect.position, "a gap in a snapshot"
        self.parts[effect.snapshot_id] = written + bytes(effect.data)

    def on_install_snapshot(self, effect: fx.InstallSnapshot) -> None:
        snapshot = read_snapshot(self.parts.pop(effect.snapshot_id), effect.snapshot_id)
        self.disk.install(effect.snapshot_id, snapshot)
        event = ev.SnapshotInstalled(effect.snapshot_id, snapshot.control)
        self.later(self.world.rng.randint(0, 5), lambda: self.step(event))

    def on_load_snapshot(self, effect: fx.LoadSnapshot) -> None:
        if self.leads:
            raise ViolationError(f"{self.id}: a leader loads a snapshot")
        self.applied = effect.snapshot_id.offset
        self.digest = self.disk.snapshots[effect.snapshot_id].digest
        self.world.check_digest(self)

    def on_trim_log(self, effect: fx.TrimLog) -> None:
        self.disk.trim(effect.start)

    # ---- what happens by itself

    def make_snapshot(self) -> None:
        node = self.node
        if node is None or self.applied <= max((s.offset for s in self.disk.snapshots), default=0):
            return
        if node.high_watermark != self.applied:
            return
        control = node.voters_at(self.applied)
        snapshot_id = OffsetAndEpoch(self.applied, node.epoch_before(self.applied))
        data = build_snapshot(self.applied, self.digest, control)
        self.disk.snapshots[snapshot_id] = read_snapshot(data, snapshot_id)
        self.step(ev.SnapshotCreated(snapshot_id))

    def append(self) -> None:
        node = self.node
        if node is not None:
            value = self.world.rng.getrandbits(64).to_bytes(8, "big")
            count = self.world.rng.randint(1, 3)
            batch = build_batch([NewRecord(value=value)] * count)
            self.step(ev.Append((batch,), node.epoch))


_PERFORM = {
    fx.PersistQuorumState: Process.on_persist_quorum_state,
    fx.Send: Process.on_send,
    fx.Reply: Process.on_reply,
    fx.ReplyWithRecords: Process.on_reply_with_records,
    fx.ReplyWithSnapshotPart: Process.on_reply_with_snapshot_part,
    fx.AppendToLog: Process.on_append_to_log,
    fx.TruncateLog: Process.on_truncate_log,
    fx.FlushLog: Process.on_flush_log,
    fx.HighWatermarkAdvanced: Process.on_high_watermark_advanced,
    fx.BecameLeader: Process.on_became_leader,
    fx.LostLeadership: Process.on_lost_leadership,
    fx.LeaderChanged: Process.on_leader_changed,
    fx.VotersChanged: Process.on_voters_changed,
    fx.AppendRefused: Process.on_append_refused,
    fx.WriteSnapshotPart: Process.on_write_snapshot_part,
    fx.InstallSnapshot: Process.on_install_snapshot,
    fx.LoadSnapshot: Process.on_load_snapshot,
    fx.TrimLog: Process.on_trim_log,
}
