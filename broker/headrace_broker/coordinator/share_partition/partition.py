"""`SharePartition`: the records of a partition that a share group acquired and acknowledged.

Owns the records between the start offset (everything below is finished) and the end offset (nothing
above was delivered). Time is passed in as monotonic milliseconds. It knows nothing of the log: a
fetch passes the batches that it read.

Acknowledgements take effect in two steps, `acknowledge` and then `take_write` with `committed` or
`failed`: until they are durable, records are neither delivered again nor finished. A lock that
expires takes effect at once, as in Kafka, and is written later.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement, pieces
from headrace_broker.coordinator.share_partition.runs import Outcome, Run, Runs
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.protocol.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch:
    """Offsets in one state, as in `__share_group_state`."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """The group's settings, read for each request."""

    deliveries_max: int = 5  # group.share.delivery.count.limit
    locks_max: int = 2_000  # group.share.partition.max.record.locks
    lock_ms: int = 30_000  # group.share.record.lock.duration.ms
    has_dead_letters: bool = False  # errors.deadletterqueue.topic.name

    @property
    def throttled_from(self) -> int:
        """From this delivery count on, records are acquired in smaller parts (KAFKA-17541)."""
        return max(2, (self.deliveries_max + 1) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """A batch that a fetch read; control batches and aborted ones cannot be delivered."""

    first: int
    last: int
    can_be_delivered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """Offsets that a fetch acquired, and their delivery count including this one."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """The member that fetches, and how much it may acquire."""

    member_id: str
    records_max: int
    batch_size: int = 0
    """An acquired range ends with its log batch once it has this many offsets; 0: no limit."""
    is_strict: bool = False
    """Whether `records_max` is exact (KIP-1206), or extends to the end of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Offsets for the dead-letter topic, and why (KIP-1191)."""

    first: int
    last: int
    count: int
    is_rejected: bool

    @property
    def size(self) -> int:
        """How many offsets there are."""
        return self.last - self.first + 1


@dataclass(slots=True, kw_only=True)
class PendingWrite:
    """The changes of a write in flight."""

    start_offset: int
    complete_count: int
    """Number of finished offsets from the start on."""
    batches: list[StateBatch] = field(default_factory=list)
    behind: list[tuple[int, int]] = field(default_factory=list)
    """Offsets of changes that have already taken effect."""


class SharePartition:
    """The records of one partition, for one group, under one leader epoch."""

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        """Start with the state in `__share_group_state`; offsets not in it are available."""
        self.runs = Runs(start_offset)
        self.written_start = start_offset
        self.redelivered = 0
        self.rejected = 0
        self.undeliverable = 0
        """Records that reached the delivery limit."""
        self.dead_lettered = 0
        self.dead_letters_lost = 0
        """Records that were archived although the dead-letter topic did not get them."""
        self._writing: list[tuple[int, int]] = []
        for batch in sorted(batches, key=lambda item: item.first_offset):
            first = max(batch.first_offset, self.runs.end_offset)
            if batch.last_offset < first:
                continue
            if first > self.runs.end_offset:
                self.runs.add(Run(first=self.runs.end_offset, last=first - 1))
            state = RecordState(batch.delivery_state)
            self.runs.add(
                Run(first=first, last=batch.last_offset, state=state, count=batch.delivery_count)
            )
        self.runs.tidy()

    @property
    def start_offset(self) -> int:
        """Everything below is finished, durably or about to be."""
        return self.runs.start_offset

    @property
    def end_offset(self) -> int:
        """No record from here on was delivered."""
        return self.runs.end_offset

    @property
    def in_flight(self) -> int:
        """How many records are acquired by members."""
        return sum(run.size for run in self.runs.items if run.state is RecordState.ACQUIRED)

    @property
    def complete(self) -> int:
        """How many records from the start offset on are finished."""
        return sum(run.size for run in self.runs.items if run.state.is_final)

    @property
    def has_dead_letters(self) -> bool:
        """Whether records are being written to the dead-letter topic."""
        return any(run.state is RecordState.ARCHIVING for run in self.runs.items)

    @property
    def needs_write(self) -> bool:
        """Whether there is anything to make durable."""
        return self.written_start != self.start_offset or any(
            run.is_dirty or run.outcome is not None for run in self.runs.items
        )

    # ---- fetching

    def fetch_offset(self, limits: ShareLimits) -> int | None:
        """Return the offset to read from; None while nothing can be acquired."""
        for run in self.runs.items:
            if run.can_be_acquired:
                return run.first
        has_room = self.end_offset - self.start_offset < limits.locks_max
        return self.end_offset if has_room else None

    def acquire(
        self,
        request: AcquireRequest,
        read_from: int,
        batches: Iterable[ReadBatch],
        limits: ShareLimits,
        now_ms: int,
    ) -> list[Acquired]:
        """Let a member acquire the available records in batches read from an offset on.

        Offsets in no batch do not exist (compaction removed them) and are archived.
        """
        acquired: list[Acquired] = []
        position, room, opened = read_from, request.records_max, 0
        for batch in batches:
            if batch.last < position:
                continue
            if batch.first > position:
                self._archive(position, batch.first - 1, limits)
            first, last = max(batch.first, position), batch.last
            position = batch.last + 1
            if not batch.can_be_delivered:
                self._archive(first, last, limits)
                continue
            part = self._isolate(batch, first, limits, is_alone=not acquired)
            if part is not None:
                first, last = part
            if request.is_strict:
                # Not `last`: records that members have acquired already do not count.
                taken = self._take(first, last, request.member_id, limits, now_ms, room)
            else:
                taken = self._take(first, last, request.member_id, limits, now_ms, None)
            for item in taken:
                room -= item.last - item.first + 1
                opened = _append(acquired, item, opened, request.batch_size)
            if room <= 0 or (part is not None and acquired):
                break
        self.runs.tidy()
        return acquired

    def _isolate(
        self, batch: ReadBatch, first: int, limits: ShareLimits, *, is_alone: bool
    ) -> tuple[int, int] | None:
        """Return which part of a batch may be acquired, from `first` on; None: all of it.

        If records have failed often, first acquire those before them. Then acquire, in separate
        fetches, half of the batch, a quarter of it and so on, and each record alone for its last
        delivery. So a record that no member can process does not get the others archived.
        """
        for run in self.runs.overlapping(first, batch.last):
            if not run.can_be_acquired:
                continue
            begin = max(run.first, first)
            if run.count < limits.throttled_from:
                is_alone = False
            elif not is_alone:
                return first, begin - 1
            elif run.count >= limits.deliveries_max - 1:
                return begin, begin
            else:
                whole = batch.last - batch.first + 1
                size = max(1, whole >> (run.count - limits.throttled_from + 1))
                return begin, min(run.last, batch.last, begin + size - 1)
        return None

    def _extend(self, last: int, limits: ShareLimits) -> None:
        """Add offsets up to `last`, as far as the limit of records in flight allows."""
        end = self.end_offset
        last = min(last, self.start_offset + limits.locks_max - 1)
        if last >= end:
            self.runs.add(Run(first=end, last=last))

    def _take(
        self,
        first: int,
        last: int,
        member_id: str,
        limits: ShareLimits,
        now_ms: int,
        room: int | None,
    ) -> list[Acquired]:
        if room is not None:
            known_last = min(last, self.end_offset - 1)
            free = sum(
                min(run.last, last) - max(run.first, first) + 1
                for run in self.runs.overlapping(first, known_last)
                if run.can_be_acquired
            )
            self._extend(min(last, self.end_offset - 1 + max(0, room - free)), limits)
        else:
            self._extend(last, limits)
        taken: list[Acquired] = []
        for run in list(self.runs.within(first, last)):
            if not run.can_be_acquired:
                continue
            if room is not None:
                if room <= 0:
                    break
                if run.size > room:
                    run = next(self.runs.within(run.first, run.first + room - 1))  # noqa: PLW2901 (its first part)
                room -= run.size
            run.move(RecordState.ACQUIRED)
            run.count += 1
            run.member_id = member_id
            run.deadline_ms = now_ms + limits.lock_ms
            if run.count > 1:
                self.redelivered += run.size
            taken.append(Acquired(first=run.first, last=run.last, count=run.count))
        return taken

    def _archive(self, first: int, last: int, limits: ShareLimits) -> None:
        """Archive offsets that will never be delivered."""
        self._extend(last, limits)
        for run in list(self.runs.within(first, last)):
            if run.can_be_acquired:
                run.move(RecordState.ARCHIVED)
                run.is_dirty = True

    # ---- acknowledging

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Iterable[Acknowledgement],
        limits: ShareLimits,
        now_ms: int,
    ) -> bool:
        """Apply a member's acknowledgements, all or none; return whether a write must end first.

        Raises INVALID_RECORD_STATE unless the member has acquired every record, INVALID_REQUEST for
        offsets that were never delivered. Offsets below the start offset are ignored: they are
        finished, or may have been deleted from the log. Where that start is not durable yet, the
        next leader would deliver them again: they wait for it.
        """
        acknowledgements = list(acknowledgements)
        decides = any(
            item.first < self.start_offset and item.last >= self.written_start
            for item in acknowledgements
        )
        said = list(pieces(acknowledgements, self.start_offset))
        for first, last, _ in said:
            if last >= self.end_offset:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"The records up to {last} were not delivered, only those to "
                    f"{self.end_offset - 1}.",
                )
            held = 0
            for run in self.runs.overlapping(first, last):
                if run.is_held_by(member_id):
                    held += min(run.last, last) - max(run.first, first) + 1
            if held != last - first + 1:
                raise ApiError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"The records {first} to {last} are not acquired by member {member_id}.",
                )
        outcomes: dict[Outcome, Outcome] = {}
        for first, last, kind in said:
            for run in list(self.runs.within(first, last)):
                if kind is AcknowledgeType.RENEW:
                    run.deadline_ms = now_ms + limits.lock_ms
                    continue
                outcome = _after(kind, run.count, limits)
                # One object for records with the same outcome, so that their runs are merged.
                run.outcome = outcomes.setdefault(outcome, outcome)
                decides = True
        return decides

    def release(self, member_id: str, limits: ShareLimits) -> bool:
        """Release everything that a member has acquired; return whether it had anything.

        This delivery counts (as in Kafka 4.2): a record that crashes every consumer would
        otherwise be delivered for ever.
        """
        released = False
        for run in self.runs.items:
            if run.is_held_by(member_id):
                self._move(run, _after(AcknowledgeType.RELEASE, run.count, limits))
                run.is_dirty = released = True
        self.runs.tidy()
        return released

    def expire(self, limits: ShareLimits, now_ms: int) -> bool:
        """Release records whose lock has expired; return whether there were any."""
        expired = False
        for run in self.runs.items:
            if (
                run.state is RecordState.ACQUIRED
                and run.outcome is None
                and run.deadline_ms <= now_ms
            ):
                self._move(run, _after(AcknowledgeType.RELEASE, run.count, limits))
                run.is_dirty = expired = True
        self.runs.tidy()
        return expired

    def next_deadline_ms(self) -> int | None:
        """Return when the next lock expires."""
        return min(
            (
                run.deadline_ms
                for run in self.runs.items
                if run.state is RecordState.ACQUIRED and run.outcome is None
            ),
            default=None,
        )

    def _move(self, run: Run, outcome: Outcome) -> None:
        run.move(outcome.state)
        run.count = outcome.count
        run.is_rejected = outcome.is_rejected and outcome.state is RecordState.ARCHIVING
        if outcome.is_rejected:
            self.rejected += run.size
        if outcome.is_undeliverable:
            self.undeliverable += run.size

    # ---- dead letters

    def dead_letters(self, limits: ShareLimits) -> list[DeadLetter]:
        """Return the records for the dead-letter topic; only between two writes.

        By then it is durable that these records are not delivered again.
        """
        return [
            DeadLetter(
                first=run.first,
                last=run.last,
                count=run.count,
                is_rejected=run.is_rejected or run.count < limits.deliveries_max,
            )
            for run in self.runs.items
            if run.state is RecordState.ARCHIVING and not run.is_dirty
        ]

    def archive_dead(self, first: int, last: int) -> None:
        """Finish dead letters that are durable, or are given up."""
        for run in list(self.runs.within(first, last)):
            if run.state is RecordState.ARCHIVING:
                run.move(RecordState.ARCHIVED)
                run.is_rejected, run.is_dirty = False, True
        self.runs.tidy()

    # ---- the log

    def move_log_start(self, log_start_offset: int) -> None:
        """Remove records that were deleted from the log."""
        if log_start_offset > self.start_offset:
            self.runs.cut(log_start_offset)
            self.runs.tidy()

    # ---- durability, one write at a time

    def take_write(self) -> PendingWrite:
        """Return the changes to be made durable now."""
        write = PendingWrite(start_offset=self.start_offset, complete_count=0)
        leading = True
        for run in self.runs.items:
            state = run.state if run.outcome is None else run.outcome.state
            count = run.count if run.outcome is None else run.outcome.count
            if state.is_final:
                if leading:
                    write.start_offset = run.last + 1
                else:
                    write.complete_count += run.size
            else:
                leading = False
            if run.outcome is None and not run.is_dirty:
                continue
            if run.outcome is None:
                write.behind.append((run.first, run.last))
            run.is_dirty = False
            # Records acquired again during the write are written as available, as they were before:
            # the present delivery is not persisted, and would count twice at the next leader.
            if state is RecordState.ACQUIRED:
                state, count = RecordState.AVAILABLE, count - 1
            if not leading:
                write.batches.append(
                    StateBatch(
                        first_offset=run.first,
                        last_offset=run.last,
                        delivery_state=state,
                        delivery_count=count,
                    )
                )
        self._writing = [
            (run.first, run.last) for run in self.runs.items if run.outcome is not None
        ]
        return write

    def committed(self, write: PendingWrite) -> None:
        """The write is durable: its acknowledgements take effect."""
        for first, last in self._writing:
            for run in list(self.runs.within(first, last)):
                if run.outcome is not None:
                    self._move(run, run.outcome)
                    run.outcome = None
        self._writing = []
        self.written_start = max(self.written_start, write.start_offset)
        self.runs.tidy()

    def failed(self, write: PendingWrite) -> None:
        """The write failed: its acknowledgements are void, and locks continue."""
        for first, last in self._writing:
            for run in self.runs.within(first, last):
                run.outcome = None
        self._writing = []
        for first, last in write.behind:
            for run in self.runs.within(first, last):
                run.is_dirty = True
        self.runs.tidy()


def _append(acquired: list[Acquired], item: Acquired, opened: int, batch_size: int) -> int:
    """Add a range, or merge it into the last one if counts match; return the last one's size."""
    size = item.last - item.first + 1
    last = acquired[-1] if acquired else None
    joins = last is not None and last.last + 1 == item.first and last.count == item.count
    if last is not None and joins and (batch_size <= 0 or opened < batch_size):
        acquired[-1] = Acquired(first=last.first, last=item.last, count=item.count)
        return opened + size
    acquired.append(item)
    return size


def _after(kind: AcknowledgeType, count: int, limits: ShareLimits) -> Outcome:
    """Return the outcome of an acknowledgement for a record that was delivered `count` times.

    A record that has reached the delivery limit is archived instead of released.
    """
    match kind:
        case AcknowledgeType.ACCEPT:
            return Outcome(state=RecordState.ACKNOWLEDGED, count=count)
        case AcknowledgeType.RELEASE if count < limits.deliveries_max:
            return Outcome(state=RecordState.AVAILABLE, count=count)
        case _:
            return Outcome(
                # A gap is no record.
                state=RecordState.ARCHIVING
                if limits.has_dead_letters and kind is not AcknowledgeType.GAP
                else RecordState.ARCHIVED,
                count=count,
                is_undeliverable=kind is AcknowledgeType.RELEASE,
                is_rejected=kind is AcknowledgeType.REJECT,
            )
