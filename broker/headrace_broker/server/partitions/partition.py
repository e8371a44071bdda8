"""One replica of one partition on this broker: its log, role, high watermark and waiters.

Owns what is readable and what is acknowledged. The rules of replication are in the pure
`replication.leader` and `replication.follower`; this module connects them to a log and to the
waiting requests. A leader appends; a follower takes the records that `replica_fetcher` brings.
Everything runs on the event loop. State changes in place, because every append and every fetch goes
through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.segments.time_lookup import TimestampOffset
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch_header import HEADER_SIZE, OFFSET_LENGTH_EPOCH
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import (
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionIndex,
    TopicId,
)
from headrace_broker.replication.fetch_state import Position
from headrace_broker.replication.follower import EpochEnd, truncation_offset
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.partitions.earlier_requests import (
    NEW_LEADER_MS,
    REFUSED_MS,
    EarlierRequests,
)
from headrace_broker.server.partitions.flushing import GroupCommit
from headrace_broker.server.partitions.waiting import (
    EVERYTHING,
    Acknowledge,
    AppendWaiter,
    CommitWaiters,
    FollowerFetch,
)

if TYPE_CHECKING:
    from headrace_broker.log.partition_log import AppendInfo, PartitionLog
    from headrace_broker.log.verification import Verification
    from headrace_broker.metadata.entities import PartitionImage
    from headrace_broker.server.partitions.replica_host import ReplicaHost

ISOLATION_READ_COMMITTED = 1
ANY_EPOCH = -1  # a client that knows no leader epoch


class CutOffError(ApiError):
    """A leader that has most likely been replaced refuses writes; the client finds another."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "neither the controller nor an in-sync follower was heard for long: "
            "another broker may lead",
        )


class Partition:
    """A replica. `leading` is set while this broker leads."""

    __slots__ = (
        "_commit_waiters",
        "_earlier",
        "_is_withheld",
        "_unannounced",
        "cut_in_epoch",
        "fetch_waiters",
        "flushing",
        "follower_fetches",
        "high_watermark",
        "host",
        "in_sync_replicas",
        "index",
        "is_cut_off",
        "is_follower_throttled",
        "is_leader_throttled",
        "leader",
        "leader_epoch",
        "leading",
        "log",
        "min_in_sync_replicas",
        "node_id",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: TopicId,
        index: PartitionIndex,
        log: PartitionLog,
        host: ReplicaHost,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.host = host
        self.node_id = host.node_id
        self.leader = NodeId(-1)
        self.leader_epoch = LeaderEpoch(-1)
        self.partition_epoch = -1
        self.replicas: Sequence[NodeId] = ()
        self.in_sync_replicas: Sequence[NodeId] = ()
        self.min_in_sync_replicas = 1
        self.leading: LeaderState | None = None
        self._is_withheld = False
        self._earlier: EarlierRequests | None = None
        # The checkpoint of a former process; only replication moves it on.
        self.high_watermark = log.high_watermark
        self.flushing: GroupCommit | None = None
        self.is_leader_throttled = self.is_follower_throttled = False
        self.is_cut_off = False
        """Whether another broker most likely leads by now (`leader_lease.py`)."""
        self.fetch_waiters: dict[AppendWaiter, None] = {}
        self.follower_fetches: dict[NodeId, FollowerFetch] = {}
        self._commit_waiters = CommitWaiters()
        self._unannounced = 0
        self.cut_in_epoch = LeaderEpoch(-1)
        """The leader epoch in which damage was cut off last."""
        log.on_damage = self._damaged

    def _damaged(self) -> None:
        self.host.on_damage(self.topic_id, self.index)

    # ---- roles

    def apply(
        self, image: PartitionImage, min_in_sync_replicas: int, unsynced_max: int | None = None
    ) -> bool:
        """Apply the partition's metadata; return True if leader or leader epoch changed.

        `unsynced_max`: how many records may be acknowledged without fsync, None for any number.
        """
        self._configure_flushing(unsynced_max)
        self.min_in_sync_replicas = min_in_sync_replicas
        self.replicas = image.replicas
        is_new = image.leader_epoch > self.leader_epoch
        if is_new:
            self.is_cut_off = False
            self.leader = image.leader
            self.leader_epoch = image.leader_epoch
            # A partition that a former process led gets another leader or epoch once this process
            # is registered. Until then it must not lead: it may have lost records that it had
            # acknowledged, and would assign their offsets again (KIP-966).
            if self.leader == self.node_id and self.host.may_lead:
                self._lead(image)
            else:
                self._is_withheld = False
                self._stop_leading()
        elif self._is_withheld:
            self._lead(image)
        if image.partition_epoch > self.partition_epoch:
            self.partition_epoch = image.partition_epoch
            self.in_sync_replicas = image.isr
        if self.leading is not None:
            self.leading.configure(image.replicas, min_in_sync_replicas, self.host.now_ms())
            self.leading.commit_isr(image.isr, image.partition_epoch)
            self.advance_high_watermark()
        if self.flushing is not None:
            # Records that a kill left in the page cache count only once they are on disk, too.
            self.flushing.appended()
        if is_new:
            self._wake_all()
        return is_new

    def replace_log(self, log: PartitionLog) -> None:
        """Switch to a log in another log directory that has the same records."""
        self.log.on_damage = _nobody
        self.log = log
        log.on_damage = self._damaged
        if self.flushing is not None:
            self.flushing.replace_log(log)

    def _configure_flushing(self, unsynced_max: int | None) -> None:
        if unsynced_max is None:
            if self.flushing is not None:
                self.flushing.stop()
            self.flushing = None
        elif self.flushing is not None:
            self.flushing.configure(unsynced_max)
        else:
            self.flushing = GroupCommit(
                self.log, unsynced_max, self.advance_high_watermark, self.host.on_failure
            )

    def _lead(self, image: PartitionImage) -> None:
        """Lead, unless the log names an epoch above the new one, which is greater than all others.

        The disk changed that epoch. Followers go by epochs, and in-sync ones would truncate what is
        committed, so one of them has to lead (`healing.py`). Where there is none, others' logs do
        not matter.
        """
        is_false = self.log.leader_epochs.latest > self.leader_epoch
        if is_false or (self._is_withheld and self.log.is_damaged):
            self._is_withheld = any(node != self.node_id for node in image.isr)
            if self._is_withheld:
                self.log.disbelieve_epochs(self.leader_epoch)
                self._stop_leading()
                return
            self.log.relabel_epochs(self.leader_epoch)
        self._is_withheld = False
        self.leading = self._new_leader_state()

    def _new_leader_state(self) -> LeaderState:
        log, end = self.log, self.log.log_end_offset
        # The epoch is recorded before the first append, so that a follower with an older epoch can
        # ask where that one ended (KIP-101).
        log.leader_epochs.assign(self.leader_epoch, end)
        self.note_refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, NEW_LEADER_MS)
        return LeaderState(self.node_id, self.leader_epoch, end)

    def _stop_leading(self) -> None:
        self.leading = None
        self._unannounced = 0
        self._commit_waiters.fail(not_leader("the leader changed; the outcome is unknown"))

    def close(self, error: ApiError) -> None:
        """Tell all waiting requests that this replica is gone."""
        self.leading = None
        if self.flushing is not None:
            self.flushing.close()
        self._commit_waiters.fail(error)
        self._wake_all()

    def _wake_all(self) -> None:
        for waiter in list(self.fetch_waiters):
            waiter.appended(EVERYTHING)
        for fetch in list(self.follower_fetches.values()):
            fetch.appended()

    # ---- the leader

    def append(
        self,
        records: bytes | bytearray | memoryview,
        acks: int,
        now_ms: int,
        verification: Verification | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Append as the leader; raise ApiError with nothing appended."""
        leading = self.leading
        if leading is None:
            raise not_leader()
        if acks == -1 and (self.is_cut_off or leading.is_under_min_isr):
            self.note_refusal(ErrorCode.NOT_ENOUGH_REPLICAS)
            if self.is_cut_off:
                raise CutOffError
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(leading.isr)} in-sync replicas, min.insync.replicas is "
                f"{leading.min_in_sync_replicas}",
            )
        log = self.log
        end_before = log.log_end_offset
        try:
            info = log.append_as_leader(
                records, leading.epoch, now_ms=now_ms, origin=origin, verification=verification
            )
        except LogDirectoryFailure as failure:
            raise self.directory_failed(failure) from failure
        except ApiError as error:
            earlier = self._earlier
            if earlier is None or error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            at_ms = self.host.now_ms()
            refusal = earlier.refusal(error, records, log.producers, at_ms)
            if refusal is not None:
                raise refusal from None
            return self._append_after(earlier, at_ms, records, acks, now_ms, verification, origin)
        if not info.is_duplicate:
            if leading.followers or self.flushing is not None:
                self._appended(leading, end_before, len(records))
            elif self.fetch_waiters:
                self._show(log.log_end_offset, len(records))
            else:
                self.high_watermark = log.high_watermark = log.log_end_offset
        return info

    def _append_after(self, earlier: EarlierRequests, at_ms: int, *arguments: Any) -> AppendInfo:
        """Append what follows nothing that was refused: a gap is the producer's own now."""
        producers = self.log.producers
        self._earlier, producers.begin_with_first = None, False
        try:
            return self.append(*arguments)
        finally:
            if self._earlier is None and not earlier.are_over(at_ms):
                self._earlier, producers.begin_with_first = earlier, True

    def note_refusal(self, code: ErrorCode, duration_ms: int = REFUSED_MS) -> None:
        """A request was refused with `code`; those behind it in flight are to be, too."""
        until_ms = self.host.now_ms() + duration_ms
        self._earlier = EarlierRequests(code, self.log.log_end_offset, until_ms, self._earlier)
        self.log.producers.begin_with_first = True

    def directory_failed(self, failure: LogDirectoryFailure) -> ApiError:
        """Report a failure of this replica's log directory; return the error for the requester."""
        self.host.on_failure(failure)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory failed")

    def _appended(self, leading: LeaderState, end_before: Offset, size: int) -> None:
        leading.note_append(end_before, self.host.now_ms())
        self._unannounced += size
        if self.flushing is not None:
            self.flushing.appended()
        for fetch in self.follower_fetches.values():
            fetch.appended()
        if leading.is_alone:
            self.advance_high_watermark()

    def when_committed(self, offset: Offset, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` when all below `offset` is committed, or when leadership is lost.

        Only for offsets above the high watermark.
        """
        self._commit_waiters.add(offset, acknowledge)

    def when_durable(self, offset: Offset, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` when all below `offset` is on this disk (flush.messages, flush.ms)."""
        if self.flushing is None:
            acknowledge(None)
        else:
            self.flushing.add(offset, acknowledge)

    def wait_committed(self, offset: Offset) -> asyncio.Future[None] | None:
        """Return None if all below `offset` is committed, else a future that completes then."""
        if self.high_watermark >= offset:
            return None
        return self._commit_waiters.future(offset)

    @property
    def is_everywhere(self) -> bool:
        """Whether all replicas are in sync, and thus have what is committed."""
        return set(self.replicas) <= set(self.in_sync_replicas)

    @property
    def durable_end(self) -> Offset:
        """The offset up to which this replica counts: its log end, or where its fsyncs reached."""
        return self.log.log_end_offset if self.flushing is None else self.flushing.durable_end

    def advance_high_watermark(self) -> None:
        """Commit the records that every counted replica has."""
        leading = self.leading
        if leading is not None:
            end = leading.committed_end(self.durable_end)
            if end > self.high_watermark:
                self._commit(end)

    def _commit(self, end: Offset) -> None:
        self._show(end, self._unannounced)
        self._commit_waiters.commit(end)
        if end == self.log.log_end_offset:
            self._unannounced = 0
        for fetch in self.follower_fetches.values():
            fetch.changed()

    def _show(self, end: Offset, size: int) -> None:
        """Raise the high watermark; tell delayed fetches that `size` more bytes are readable."""
        log = self.log
        if not self.fetch_waiters:
            self.high_watermark = log.high_watermark = end
            return
        stable = log.last_stable_offset if log.producers.has_unstable else None
        self.high_watermark = log.high_watermark = end
        if stable is not None and log.last_stable_offset > stable:
            # A transaction marker makes everything that waited for it readable to read_committed.
            size = EVERYTHING
        for waiter in list(self.fetch_waiters):
            waiter.appended(size)

    def record_fetch(self, node_id: NodeId, broker_epoch: BrokerEpoch, offset: int) -> None:
        """A follower has everything below `offset`: commit, and let it join the in-sync set."""
        leading = self.leading
        if leading is None:
            raise not_leader()
        if node_id not in leading.followers:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {node_id} holds no replica as far as known"
            )
        host = self.host
        end, now_ms = self.log.log_end_offset, host.now_ms()
        if not leading.record_fetch(node_id, broker_epoch, Offset(offset), end, now_ms):
            raise not_leader(f"a newer process of broker {node_id} fetches already")
        if node_id not in leading.isr:
            leading.note_candidate(node_id, end, now_ms, host.lag_time_max_ms, host.is_eligible)
        self.advance_high_watermark()
        if node_id not in leading.isr:
            self.expand_isr()

    # ---- the in-sync set (KIP-497)

    def expand_isr(self) -> None:
        """Ask for an in-sync set with the followers that caught up."""
        leading = self.leading
        if leading is None or leading.pending is not None:
            return
        host = self.host
        joining = [
            node_id
            for node_id in leading.followers
            if leading.may_join(node_id, self.high_watermark, host.is_eligible)
        ]
        if joining:
            leading.propose([*leading.isr, *joining], host.broker_epoch)
            host.request_isr_update(self)

    def shrink_isr(self) -> None:
        """Ask for an in-sync set without those that fell behind (periodically)."""
        leading = self.leading
        if leading is None or not leading.followers:
            return
        host = self.host
        leading.dismiss(
            [
                node_id
                for node_id in leading.joining
                if not host.is_eligible(node_id, leading.followers[node_id].broker_epoch)
            ]
        )
        late = leading.lagging(self.log.log_end_offset, host.now_ms(), host.lag_time_max_ms)
        if late and leading.pending is None:
            leading.propose([node for node in leading.isr if node not in late], host.broker_epoch)
            host.request_isr_update(self)
        self.advance_high_watermark()

    def isr_committed(
        self, leader_epoch: int, isr: tuple[NodeId, ...], partition_epoch: int
    ) -> None:
        """Apply an in-sync set that the controller has committed; the metadata will follow."""
        leading = self.leading
        if leading is None or leading.epoch != leader_epoch:
            return
        if leading.commit_isr(isr, partition_epoch):
            self.in_sync_replicas, self.partition_epoch = isr, partition_epoch
            self.advance_high_watermark()
            self.expand_isr()

    # ---- the follower

    def position(self) -> Position:
        """Where this follower's next fetch begins."""
        log = self.log
        return Position(
            log.log_end_offset, log.leader_epochs.latest, self.leader_epoch, log.log_start_offset
        )

    def append_as_follower(self, records: bytes | memoryview) -> int:
        """Append what the leader sent; return how many bytes were whole batches."""
        log = self.log
        before = log.log_end_offset
        if len(records) >= HEADER_SIZE:
            _, _, epoch = OFFSET_LENGTH_EPOCH.unpack_from(records)
            if 0 <= epoch < log.leader_epochs.latest:
                # The leader's log has no higher epoch before this one: the disk changed ours.
                log.disbelieve_epochs(epoch)
        if log.append_as_follower(records) is None:
            return 0
        if self.flushing is not None:
            self.flushing.appended()
        self._unannounced += len(records)
        return self.log.log_end_offset - before

    def follow_high_watermark(self, leader_high_watermark: int, leader_log_start: int) -> None:
        """Take over the leader's high watermark, up to this log's end, and its log start offset."""
        log = self.log
        end = min(leader_high_watermark, log.log_end_offset)
        if end > self.high_watermark:
            self._commit(Offset(end))
        if leader_log_start > log.log_start_offset and leader_log_start <= self.high_watermark:
            log.delete_records_before(Offset(leader_log_start))

    def truncate(self, diverging: EpochEnd, leader_log_start: int) -> int:
        """Truncate what the leader does not have (KIP-101); return the new log end offset."""
        log = self.log
        log.truncate_to(truncation_offset(log.leader_epochs, log.log_end_offset, diverging))
        if log.log_start_offset < log.log_end_offset <= leader_log_start:
            # The leader has deleted what is left, and forgotten its epochs: ours may be another.
            self.restart_at(leader_log_start)
        return self._truncated()

    def restart_at(self, offset: int) -> None:
        """Drop everything and follow from `offset` on: the leader's log begins above our end."""
        self.log.truncate_fully_and_start_at(Offset(offset))
        self.high_watermark = self.log.high_watermark = Offset(offset)
        self._truncated()

    def cut_damage(self) -> Offset:
        """Cut the log where damage begins; no leader counts this replica at this point."""
        self.log.cut_damage()
        self.cut_in_epoch = self.leader_epoch
        return self._truncated()

    def _truncated(self) -> Offset:
        end = self.log.log_end_offset
        self.high_watermark = Offset(min(self.high_watermark, end))
        if self.flushing is not None:
            self.flushing.truncated()
        return end

    # ---- reading

    def check_leader(self, client_epoch: int) -> None:
        """Raise ApiError unless this broker leads, in the epoch that the client knows (KIP-320)."""
        if self.leading is None:
            raise not_leader()
        if client_epoch not in (ANY_EPOCH, self.leader_epoch):
            self.check_epoch(client_epoch)

    def check_epoch(self, client_epoch: int) -> None:
        """Raise ApiError unless the client's leader epoch equals the one known here."""
        if client_epoch in (ANY_EPOCH, self.leader_epoch):
            return
        if client_epoch < self.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        else:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        raise ApiError(code, f"the leader epoch is {self.leader_epoch}")

    def readable_end(self, isolation: int) -> Offset:
        """The offset below which a consumer may read: last stable offset or high watermark."""
        if isolation == ISOLATION_READ_COMMITTED:
            return Offset(min(self.high_watermark, self.log.last_stable_offset))
        return self.high_watermark

    def read(
        self, offset: int, max_bytes: int, *, isolation: int, at_least_one: bool
    ) -> bytes | memoryview:
        """Return whole batches from the one that holds `offset`; raise ApiError out of range."""
        log = self.log
        if offset < log.log_start_offset or offset > log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {log.log_start_offset} to {log.log_end_offset}",
            )
        end = self.readable_end(isolation)
        if offset >= end:
            return b""
        try:
            return log.read(Offset(offset), max_bytes, upper_bound=end, at_least_one=at_least_one)
        except LogDirectoryFailure as failure:
            raise self.directory_failed(failure) from failure
        except ApiError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE and len(self.in_sync_replicas) > 1:
                # The client then refreshes its metadata; by then another replica will lead.
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, error.message) from error
            raise

    def find_timestamp(self, timestamp: int | None) -> TimestampOffset | None:
        """Return the first record at or after a time, or the newest where that is None."""
        log = self.log
        try:
            if timestamp is None:
                found = log.max_timestamp_offset()
            else:
                found = log.fetch_offset_by_timestamp(timestamp)
        except LogDirectoryFailure as failure:
            raise self.directory_failed(failure) from failure
        if log.is_damaged and len(self.in_sync_replicas) > 1:
            # An earlier record may be in what is damaged. Soon another replica leads, that has it.
            end = log.log_end_offset if found is None or timestamp is None else found.offset
            if any(damage.first_offset < end for damage in log.damages):
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "earlier records are damaged")
        return found

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` that has records, and where it ended (KIP-320)."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.leader_epochs.end_offset_for(epoch)


def _nobody() -> None:
    """The damage callback of a log that belongs to no partition any longer."""


def not_leader(reason: str = "this broker does not lead the partition") -> ApiError:
    """Return NOT_LEADER_OR_FOLLOWER, after which a client looks for the leader."""
    return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
