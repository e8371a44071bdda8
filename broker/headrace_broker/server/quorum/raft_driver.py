"""Carries out what `raft.RaftNode` decides: the only owner of this node's quorum replica.

Events go in one at a time, and the effects of each are performed in order. Time, requests, fsyncs
and the death of a process all become events. If an effect fails, the node's state is ahead of the
disk, so the process exits. An effect that lacks a file descriptor has not begun: the node waits
with it, and all that follows, until there is one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Protocol

import structlog

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import as_a_whole
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.snapshot import snapshot_records
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset
from headrace_broker.raft import effects, events
from headrace_broker.raft.control import NOT_IN_LOG
from headrace_broker.raft.node import RaftNode
from headrace_broker.raft.types import OffsetAndEpoch, RaftConfig, VotersAt
from headrace_broker.server.clock import Clock
from headrace_broker.server.peers.peers import Address, PeerConnections, PeerUnavailable
from headrace_broker.server.quorum.metadata_batches import encode_batches
from headrace_broker.server.quorum.metadata_loader import MetadataLoader
from headrace_broker.server.quorum.quorum_state import QuorumStateFile
from headrace_broker.server.quorum.raft_log import MetadataLog, read_control
from headrace_broker.server.quorum.raft_snapshots import build_snapshot

log = structlog.get_logger()

_RETRY_SECONDS = 0.1
_SNAPSHOT_RETRY_SECONDS = 1.0


class QuorumObserver(Protocol):
    """An observer of leadership. Called within a step: it must not append."""

    def became_leader(self, epoch: LeaderEpoch, epoch_start_offset: Offset) -> None:
        """This node leads; its state is complete once the record at the start offset is applied."""

    def lost_leadership(self, epoch: LeaderEpoch) -> None:
        """This node lost leadership; uncommitted records may be lost."""


class RaftDriver:
    """One node's replica of the metadata quorum. `start` first, `close` last."""

    def __init__(
        self,
        config: RaftConfig,
        log_: MetadataLog,
        loader: MetadataLoader,
        *,
        clock: Clock,
        rng: random.Random,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self.log = log_
        self._loader = loader
        self._clock = clock
        self._rng = rng
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._state_file = QuorumStateFile(log_.directory)
        self._disk: Executor = ThreadPoolExecutor(1, thread_name_prefix="metadata-log")
        self._observers: list[QuorumObserver] = []
        self._peers: PeerConnections | None = None
        self._events: deque[events.Event] = deque()
        self._todo: deque[effects.Effect] = deque()
        self._pause: asyncio.TimerHandle | None = None
        self._is_stepping = False
        self._is_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._tickets: dict[int, asyncio.Future[Any]] = {}
        self._next_ticket = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._flush_ticket: int | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._snapshotting: asyncio.Future[None] | None = None
        self._last_leader_id: NodeId | None = None
        self.former_leader_id: NodeId | None = None
        """The node that led before the present leader, as far as this node knows."""
        self.node = self._make_node()

    def _make_node(self) -> RaftNode:
        configured = VotersAt(offset=NOT_IN_LOG, voters=self._config.voters, kraft_version=0)
        node = RaftNode(
            self._config,
            self._rng,
            state=self._state_file.read(),
            log=self.log.state(),
            control=self.log.control(configured),
        )
        node.unix_time_offset_ms = self._clock.now_ms() - self._now_ms()
        return node

    def observe(self, observer: QuorumObserver) -> None:
        """Report leadership changes to `observer`."""
        self._observers.append(observer)

    def start(self, peers: PeerConnections | None) -> None:
        """Join the quorum; a quorum of one has elected itself when this returns."""
        self._peers = peers
        if peers is not None:
            peers.on_voter_died(lambda node_id: self.step(events.PeerProcessDied(node_id)))
        self._loader.start()
        self._todo.extend(self.node.start(self._now_ms()))
        self._run()

    # what other modules ask

    @property
    def leader_id(self) -> NodeId | None:
        """The active controller as far as this node knows."""
        return self.node.leader_id

    @property
    def epoch(self) -> LeaderEpoch:
        """The quorum's epoch."""
        return self.node.epoch

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the quorum."""
        return self.node.is_leader and not self._is_ended

    def request(self, request: Message, version: int) -> asyncio.Future[Any]:
        """Pass in a request for the quorum; the future gets the response."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets[ticket] = answer
        self.step(events.ReceivedRequest(ticket, request, version))
        return answer

    def append(self, batch: bytearray, epoch: LeaderEpoch) -> Offset | None:
        """Append one decision; return its last offset, or None if this node does not lead.

        It is committed once the loader has published that offset.
        """
        if self._pause is not None:
            return None
        if self._is_stepping:
            raise RuntimeError("an append within a step of the quorum")
        before = self.log.end_offset
        self.step(events.Append((batch,), epoch))
        return Offset(self.log.end_offset - 1) if self.log.end_offset > before else None

    async def resign(self) -> None:
        """Transfer leadership before this process stops."""
        if self.is_leader and len(self.node.voters.voters) > 1:
            self.step(events.Resign())
            # EndQuorumEpoch is sent; the successor stands for election when it arrives.
            if self._sending:
                await asyncio.wait(self._sending, timeout=0.5)

    async def close(self) -> None:
        """Leave the quorum and close the log."""
        self._is_ended = True
        for timer in (self._timer, self._pause):
            if timer is not None:
                timer.cancel()
        for task in list(self._sending):
            task.cancel()
        for answer in self._tickets.values():
            answer.cancel()
        self._tickets.clear()
        await self._loader.close()
        for work in (self._flushing, self._snapshotting):
            if work is not None:
                await asyncio.gather(work, return_exceptions=True)
        await self._loop.run_in_executor(self._disk, self.log.close)
        self._disk.shutdown()

    # the event loop of the state machine

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def step(self, event: events.Event) -> None:
        """Give the node `event`, after those already queued, and perform the effects."""
        if self._is_ended:
            return
        self._events.append(event)
        if not self._is_stepping and self._pause is None:
            self._run()

    def _run(self) -> None:
        self._is_stepping = True
        try:
            while True:
                while self._todo:
                    _PERFORM[type(self._todo[0])](self, self._todo[0])
                    self._todo.popleft()
                if not self._events:
                    break
                self._todo.extend(self.node.step(self._events.popleft(), self._now_ms()))
        except OutOfDescriptorsError:
            self._pause = self._loop.call_later(_RETRY_SECONDS, self._go_on)
            return
        except Exception as error:  # noqa: BLE001 (the node moved on, the effect did not happen)
            self._fail(error)
            return
        finally:
            self._is_stepping = False
        if self.node.has_caught_up:
            self._loader.release()
        self._set_timer()

    def _go_on(self) -> None:
        self._pause = None
        if not self._is_ended:
            self._run()

    def _fail(self, error: BaseException) -> None:
        log.critical("the metadata quorum's replica fails", exc_info=error)
        self._is_ended = True
        self._on_failure(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, self.node.next_deadline_ms - self._now_ms()) / 1000
        # One millisecond more, because the current time is rounded down.
        self._timer = self._loop.call_later(delay + 0.001, self.step, events.Tick())

    def _persist(self, effect: effects.PersistQuorumState) -> None:
        self._state_file.write(effect.state)

    def _append(self, effect: effects.AppendToLog) -> None:
        try:
            self.log.append(effect.base_offset, effect.records)
        except OutOfDescriptorsError as error:
            # The caller of `append` must know now. It does not happen: the log's file stays open.
            raise RuntimeError(f"no batch can be appended: {error}") from error

    def _truncate(self, effect: effects.TruncateLog) -> None:
        before = self.log.end_offset
        self.log.truncate(effect.end_offset)
        log.info("metadata log truncated", end_offset=effect.end_offset, was=before)

    def _flush(self, effect: effects.FlushLog) -> None:
        self._flush_ticket = effect.ticket
        if self._flushing is None:
            # Not at once: all appends of this turn of the event loop share one fsync.
            self._flushing = self._loop.create_future()
            self._loop.call_soon(self._begin_flush)

    def _begin_flush(self) -> None:
        ticket, self._flush_ticket = self._flush_ticket, None
        if ticket is None:
            return
        end_offset = self.log.end_offset
        self._flushing = self._loop.run_in_executor(self._disk, self.log.begin_flush())
        self._flushing.add_done_callback(lambda done: self._flushed(done, ticket, end_offset))

    def _flushed(self, done: asyncio.Future[None], ticket: int, end_offset: Offset) -> None:
        self._flushing = None
        if done.cancelled() or self._is_ended:
            return
        error = done.exception()
        if isinstance(error, OutOfDescriptorsError):
            if self._flush_ticket is None:
                self._flush_ticket = ticket
            self._flushing = asyncio.ensure_future(self._flush_later())
            return
        if error is not None:
            # Never retried: the kernel may have dropped the pages that it could not write.
            self._fail(error)
            return
        self.log.finish_flush(end_offset)
        if self._flush_ticket is not None:
            self._begin_flush()
        self.step(events.LogFlushed(ticket))

    async def _flush_later(self) -> None:
        """Try again: nothing was synced."""
        await asyncio.sleep(_RETRY_SECONDS)
        if not self._is_ended:
            self._begin_flush()

    def _write_snapshot_part(self, effect: effects.WriteSnapshotPart) -> None:
        self.log.snapshots.write_part(effect.snapshot_id, effect.position, effect.data)

    def _install_snapshot(self, effect: effects.InstallSnapshot) -> None:
        snapshot_id = effect.snapshot_id
        with as_a_whole(self.log.directory):
            data = self.log.snapshots.install(snapshot_id)
            if data is not None:
                self.log.restart_at(snapshot_id)
        if data is None:
            self._events.append(events.SnapshotRejected(snapshot_id))
            return
        log.info("metadata snapshot installed", end_offset=snapshot_id.offset)
        control = read_control(data, snapshot_id, self.node.voters)
        self._events.append(events.SnapshotInstalled(snapshot_id, control))

    def _load_snapshot(self, effect: effects.LoadSnapshot) -> None:
        self._loader.load_snapshot(effect.snapshot_id)

    def _trim(self, effect: effects.TrimLog) -> None:
        self.log.trim(effect.start)

    def _send(self, effect: effects.Send) -> None:
        task = self._loop.create_task(self._exchange(effect))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _exchange(self, effect: effects.Send) -> None:
        try:
            if self._peers is None:
                raise PeerUnavailable("this node has no peers")
            to = effect.destination
            address = Address(to.host, to.port)
            self._peers.note_voter(address, to.node_id)
            response = await self._peers.send(address, effect.request, timeout_ms=effect.timeout_ms)
        except PeerUnavailable:
            self.step(events.RequestFailed(effect.correlation_id))
        else:
            self.step(events.ReceivedResponse(effect.correlation_id, response))

    def _reply(self, effect: effects.Reply) -> None:
        self._answer(effect.ticket, effect.response)

    def _reply_with_records(self, effect: effects.ReplyWithRecords) -> None:
        data = self.log.read(effect.offset, effect.max_bytes)
        effect.response.responses[0].partitions[0].records = data
        self._answer(effect.ticket, effect.response)

    def _reply_with_snapshot_part(self, effect: effects.ReplyWithSnapshotPart) -> None:
        partition = effect.response.topics[0].partitions[0]
        try:
            data, size = self.log.snapshots.read_part(
                effect.snapshot_id, effect.position, effect.max_bytes
            )
        except FileNotFoundError:
            partition.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        else:
            partition.size, partition.position = size, effect.position
            partition.unaligned_records = data
            if not data:
                partition.error_code = ErrorCode.POSITION_OUT_OF_RANGE
        self._answer(effect.ticket, effect.response)

    def _answer(self, ticket: int, response: Message) -> None:
        answer = self._tickets.pop(ticket, None)
        if answer is not None and not answer.done():
            answer.set_result(response)

    # effects that other modules observe

    def _high_watermark(self, effect: effects.HighWatermarkAdvanced) -> None:
        self._loader.advance(effect.high_watermark)

    def _became_leader(self, effect: effects.BecameLeader) -> None:
        log.info("became the active controller", epoch=effect.epoch)
        for observer in self._observers:
            observer.became_leader(effect.epoch, effect.epoch_start_offset)

    def _lost_leadership(self, effect: effects.LostLeadership) -> None:
        log.info("is no longer the active controller", epoch=effect.epoch)
        for observer in self._observers:
            observer.lost_leadership(effect.epoch)

    def _leader_changed(self, effect: effects.LeaderChanged) -> None:
        if effect.leader_id is not None:
            log.info("controller", leader=effect.leader_id, epoch=effect.epoch)
            self.former_leader_id, self._last_leader_id = self._last_leader_id, effect.leader_id
        if self._peers is not None:
            self._peers.controller_changed(effect.leader_id)

    def _nothing(self, effect: effects.Effect) -> None:
        """For effects that need no action here."""

    # snapshots of this node

    def snapshot(self, image: MetadataImage) -> None:
        """Begin to write a snapshot of a published image, unless one is being written."""
        if self._snapshotting is not None or self._is_ended or image.offset < 0:
            return
        snapshot_id = OffsetAndEpoch(Offset(image.offset + 1), image.epoch)
        control = self.node.voters_at(snapshot_id.offset)
        self._snapshotting = self._loop.run_in_executor(
            None, self._write_snapshot, image, snapshot_id, control
        )
        self._snapshotting.add_done_callback(lambda done: self._snapshot_written(done, snapshot_id))

    def _write_snapshot(
        self, image: MetadataImage, snapshot_id: OffsetAndEpoch, control: VotersAt
    ) -> None:
        now_ms = self._clock.now_ms()
        batches = encode_batches(snapshot_records(image), now_ms)
        self.log.snapshots.write(snapshot_id, build_snapshot(batches, control, now_ms, snapshot_id))

    def _snapshot_written(self, done: asyncio.Future[None], snapshot_id: OffsetAndEpoch) -> None:
        self._snapshotting = None
        if done.cancelled() or self._is_ended:
            return
        error = done.exception()
        if isinstance(error, OutOfDescriptorsError):
            self._loop.call_later(
                _SNAPSHOT_RETRY_SECONDS, lambda: self.snapshot(self._loader.image)
            )
            return
        if error is not None:
            self._fail(error)
            return
        log.info("metadata snapshot written", end_offset=snapshot_id.offset)
        self.step(events.SnapshotCreated(snapshot_id))


_PERFORM: dict[type, Callable[[RaftDriver, Any], None]] = {
    effects.PersistQuorumState: RaftDriver._persist,  # noqa: SLF001 (this module's own table)
    effects.Send: RaftDriver._send,  # noqa: SLF001
    effects.Reply: RaftDriver._reply,  # noqa: SLF001
    effects.ReplyWithRecords: RaftDriver._reply_with_records,  # noqa: SLF001
    effects.ReplyWithSnapshotPart: RaftDriver._reply_with_snapshot_part,  # noqa: SLF001
    effects.AppendToLog: RaftDriver._append,  # noqa: SLF001
    effects.TruncateLog: RaftDriver._truncate,  # noqa: SLF001
    effects.FlushLog: RaftDriver._flush,  # noqa: SLF001
    effects.HighWatermarkAdvanced: RaftDriver._high_watermark,  # noqa: SLF001
    effects.BecameLeader: RaftDriver._became_leader,  # noqa: SLF001
    effects.LostLeadership: RaftDriver._lost_leadership,  # noqa: SLF001
    effects.LeaderChanged: RaftDriver._leader_changed,  # noqa: SLF001
    effects.AppendRefused: RaftDriver._nothing,  # noqa: SLF001
    effects.VotersChanged: RaftDriver._nothing,  # noqa: SLF001
    effects.WriteSnapshotPart: RaftDriver._write_snapshot_part,  # noqa: SLF001
    effects.InstallSnapshot: RaftDriver._install_snapshot,  # noqa: SLF001
    effects.LoadSnapshot: RaftDriver._load_snapshot,  # noqa: SLF001
    effects.TrimLog: RaftDriver._trim,  # noqa: SLF001
}
