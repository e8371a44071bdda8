"""What the clients saw, in the terms of Jepsen's Kafka workload, and what it must not contain."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_SHOWN_MAX = 20
_END_OF_LOG = 1 << 62


class Status(Enum):
    """What the client knows of a write."""

    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Write:
    """One record that was sent."""

    producer: str
    number: int
    topic: str
    partition: int
    idempotent: bool
    status: Status = Status.UNKNOWN
    offset: int = -1
    attempts: int = 0
    """How often it was sent."""

    @property
    def value(self) -> bytes:
        return f"{self.producer}:{self.number};".encode()

    @property
    def key(self) -> bytes:
        """A few keys for each producer, so that compaction finds something to do."""
        return f"{self.producer}/{self.number % 5}".encode()


@dataclass
class History:
    """All writes, all reads, and the violations found so far."""

    now_ms: Callable[[], int]
    writes: dict[bytes, Write] = field(default_factory=dict)
    logs: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    times: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    """The timestamps of what was read, by offset."""
    reached: Counter[str] = field(default_factory=Counter)
    """How often each rare situation came about (`simulation.marks`)."""
    violations: list[str] = field(default_factory=list)
    reads: int = 0
    cleanup: str = "none"
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where logs begin in the end, after retention."""
    is_trimmed: bool = False
    """Whether a client deletes records."""
    trims: dict[tuple[str, int], int] = field(default_factory=dict)
    """The largest offset below which somebody asked to delete records."""
    settings: dict[tuple[str, str], str] = field(default_factory=dict)
    """By topic and name: the value that a change was answered with success for last."""
    late_settings: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """By topic and name: values whose change was not answered with success, and may come late."""
    refused: set[tuple[int, int, int, frozenset[int]]] = field(default_factory=set)
    """In-sync sets that a controller refused: leader, its epoch, partition epoch, members."""
    forged: set[tuple[Any, int, int, tuple[tuple[int, int], ...]]] = field(default_factory=set)
    """In-sync sets that no leader asked for: topic id, partition, its epoch, members and theirs."""
    in_sync: dict[Any, tuple[int, frozenset[int]]] = field(default_factory=dict)
    """By topic id and partition: the newest partition epoch that any replica ever knew, and its
    in-sync set."""
    retained: dict[tuple[str, int], int] = field(default_factory=dict)
    """By log and start that retention gave it: up to where `retention.bytes` allowed that. What
    went from there on had to be old."""
    begun_at: dict[tuple[str, int], int] = field(default_factory=dict)
    """By transactional id and start: the level of `transaction.version` then."""
    last_batches: dict[Any, Any] = field(default_factory=dict)
    """By a log's producers: the last batches of each."""
    written_at: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    """By log's name, producer id, epoch and first sequence: the offset of a batch."""
    begins: dict[tuple[str, int], int] = field(default_factory=dict)
    """The highest start that any replica's log had."""
    decided: dict[tuple[int, int], set[bool]] = field(default_factory=dict)
    """By producer id and epoch: the outcomes of transactions that are committed decisions.

    Before version 2 of transactions an epoch has several.
    """
    marker_ends: dict[Any, int] = field(default_factory=dict)
    """By replica, leader epoch, producer id and epoch: the end of its first marker that was not
    answered yet."""
    votes: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """By epoch of the quorum and candidate: which nodes gave their vote."""
    rots: bool = False
    """Whether a disk damages what it holds."""
    producer_ids: dict[int, str] = field(default_factory=dict)
    """Who was given each: a transactional id, or a producer's name."""
    cuts: dict[Any, int] = field(default_factory=dict)
    """The high watermarks of replicas that cut damage off."""
    cut_to: dict[Any, int] = field(default_factory=dict)
    """Logs that were truncated since an invariant looked, and the lowest offset of it."""
    cut_logs: dict[str, int] = field(default_factory=dict)
    """The same by folder, for whoever opens it next."""
    on_proposed: Callable[[int, list[Any]], None] = lambda _node_id, _joining: None
    """Called with the leader that asks for another in-sync set, and who is new in it."""
    on_step: Callable[[str], None] = lambda _step: None
    """Called with each step of a transaction's coordinator (`simulation.steps`)."""
    on_question: Callable[[int, int], None] = lambda _leader, _coordinator: None
    """Called with a partition's leader that asks a transaction's coordinator, and with that one."""
    on_written: Callable[[str], None] = lambda _what: None
    """Called with what a broker has just written or removed (`simulation.power_cuts`)."""
    refused_offsets: dict[int, list[Any]] = field(default_factory=dict)
    """By shard's identity, which they keep: the transactions' offsets that its log refused."""
    epochs_left: Callable[[], int | None] = lambda: None
    """How many epochs a new transactional id has left; None for all (`simulation.old_ids`)."""
    letters: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)
    """By share partition: the records whose dead letters are being written."""
    led_by: dict[tuple[Any, int, int], Any] = field(default_factory=dict)
    """By topic id, partition and leader epoch: the process that leads."""
    flushed_logs: dict[int, Any] = field(default_factory=dict)
    """By the identity of its `FlushTurns`, which it keeps: a log whose flush has begun."""
    disk: Callable[[], Any] = lambda: None
    """The disk of the process that runs; None where no node's does."""
    is_former_controller: Callable[[], bool] = lambda: False
    """Whether the process that runs is an active controller, and another one is a newer one."""
    newest_epoch: Callable[[tuple[str, int]], int] = lambda _key: -1
    """The newest leader epoch of a partition that any broker knows now."""
    on_acknowledged: Callable[[], None] = lambda: None
    shares: Any = None
    """The second book of share groups (`simulation.invariants.shares`)."""
    coordinator: Callable[[str], tuple[int, tuple[str, int] | None]] = lambda _group: (-1, None)
    """The newest leader epoch of a group's partition that any broker knew, and who leads in it."""

    @property
    def may_begin_later(self) -> bool:
        """Whether retention may move a log's start."""
        return self.cleanup == "delete" or self.is_trimmed

    @property
    def may_have_holes(self) -> bool:
        """Whether compaction may take records out of the middle."""
        return self.cleanup == "compact"

    def violate(self, kind: str, text: str) -> None:
        """Note a violation, with its name in the terms of the checkers."""
        violation = f"{kind}: {text}"
        if len(self.violations) < _SHOWN_MAX and violation not in self.violations:
            self.violations.append(violation)

    def gave_producer_id(self, producer_id: int, owner: str) -> None:
        """Note whose a producer id is: nobody else is given it, however many restarts later."""
        known = self.producer_ids.setdefault(producer_id, owner)
        if known != owner:
            self.violate("producer-id", f"{producer_id} is {known}'s, and given to {owner}")

    def sent(self, write: Write) -> None:
        self.writes[write.value] = write

    def reach(self, mark: str) -> None:
        """Count a situation that bugs are near of."""
        self.reached[mark] += 1

    def may_trim(self, key: tuple[str, int], offset: int) -> None:
        """Note that a client asks to delete what is below an offset; -1 is the high watermark."""
        known = _END_OF_LOG if offset < 0 else offset
        self.trims[key] = max(self.trims.get(key, 0), known)

    def may_set(self, topic: str, name: str, value: str) -> None:
        """Note that a change of a setting may be made at any time from now on, or never."""
        self.late_settings.setdefault((topic, name), set()).add(value)

    def acknowledged(self, write: Write, offset: int, *, is_promised: bool = True) -> None:
        """Take an acknowledgement; an offset may be given once only.

        A leader's alone (acks=1) promises nothing that outlives the leader.
        """
        write.offset = offset
        if is_promised:
            write.status = Status.ACKNOWLEDGED
            self._place(write.topic, write.partition, offset, write.value, "acknowledged")
        self.on_acknowledged()

    def read(self, reader: str, key: tuple[str, int], position: int, record: Any) -> None:
        """Take one record as a consumer saw it."""
        self.reads += 1
        topic, partition = key
        where = f"{topic}-{partition} offset {record.offset}"
        is_hole = self.may_have_holes and record.offset > position
        if record.offset != position and not is_hole:
            kind = "poll-skip" if record.offset > position else "nonmonotonic-poll"
            self.violate(kind, f"{reader} expected {position} and got {where}")
        value = bytes(record.value).rstrip(b".")
        if value not in self.writes:
            self.violate("garbage", f"{where} holds {value[:40]!r}, which nobody sent")
            return
        self._place(topic, partition, record.offset, value, f"read by {reader}")
        self.times.setdefault(key, {})[record.offset] = record.timestamp

    def _place(self, topic: str, partition: int, offset: int, value: bytes, how: str) -> None:
        known = self.logs.setdefault((topic, partition), {})
        before = known.setdefault(offset, value)
        if before != value:
            self.violate(
                "inconsistent-offsets",
                f"{topic}-{partition} offset {offset} was {before!r} and is {value!r} ({how})",
            )

    def check(self, final: dict[tuple[str, int], dict[int, bytes]]) -> None:
        """Compare with what the logs hold in the end, after everything was healed."""
        for (topic, partition), seen in self.logs.items():
            log = final.get((topic, partition), {})
            where = f"{topic}-{partition}"
            if self.may_have_holes:
                self._check_keys(where, seen, log)
                continue
            start = self.starts.get((topic, partition), 0)
            for offset, value in seen.items():
                if log.get(offset) != value and offset >= start:
                    self.violate(
                        "lost-write",
                        f"{where} offset {offset} was {value!r}, "
                        f"in the end it is {log.get(offset)!r}",
                    )
        for write in self.writes.values():
            log = final.get((write.topic, write.partition), {})
            is_lost = write.offset >= 0 and log.get(write.offset) != write.value
            if is_lost and write.status is Status.UNKNOWN and not self.may_begin_later:
                self.reach("a leader's acknowledgement is lost with it")
        for place, log in final.items():
            self._check_log(f"{place[0]}-{place[1]}", log)

    def _check_keys(self, where: str, seen: dict[int, bytes], log: dict[int, bytes]) -> None:
        """Of a compacted log: no offset holds anything else, and no key's last value is lost."""
        latest: dict[bytes, int] = {}
        for offset, value in log.items():
            key = self.writes[value].key
            latest[key] = max(latest.get(key, -1), offset)
            if seen.get(offset, value) != value:
                self.violate(
                    "inconsistent-offsets",
                    f"{where} offset {offset} was {seen[offset]!r} and is {value!r} in the end",
                )
        for offset, value in seen.items():
            if latest.get(self.writes[value].key, -1) < offset:
                self.violate("lost-write", f"{where} lost {value!r} of offset {offset}")

    def _check_log(self, where: str, log: dict[int, bytes]) -> None:
        first: dict[bytes, int] = {}
        last: dict[str, int] = {}
        expected = min(log, default=0) if self.may_begin_later else 0
        for offset in sorted(log):
            if offset != expected and not self.may_have_holes:
                self.violate("gap", f"{where} lacks offset {expected}")
            expected = offset + 1
            write = self.writes.get(log[offset])
            if write is None:
                continue
            if write.status is Status.FAILED:
                self.violate("failed-write", f"{where} offset {offset} holds {write.value!r}")
            may_repeat = not write.idempotent and write.attempts > 1
            if write.value in first and not may_repeat:
                kind = "duplicate" if write.idempotent else "duplicate without a retry"
                self.violate(
                    kind, f"{where} holds {write.value!r} at {first[write.value]} and {offset}"
                )
            first[write.value] = offset
            if write.idempotent:
                self._check_order(where, offset, write, last)

    def _check_order(self, where: str, offset: int, write: Write, last: dict[str, int]) -> None:
        before = last.get(write.producer, -1)
        is_first = (self.cleanup != "none" or self.is_trimmed) and write.producer not in last
        in_order = write.number > before
        if not self.may_have_holes and write.number > before + 1:
            # What was given up may be missing; what was acknowledged may not.
            skipped = range(before + 1, write.number)
            in_order = not any(self._is_acknowledged(write.producer, number) for number in skipped)
        if not in_order and not is_first:
            self.violate(
                "reordered",
                f"{where} offset {offset}: {write.number} of {write.producer} follows {before}",
            )
        last[write.producer] = write.number

    def _is_acknowledged(self, producer: str, number: int) -> bool:
        write = self.writes.get(f"{producer}:{number};".encode())
        return write is not None and write.status is Status.ACKNOWLEDGED


def asked_set(topic_id: Any, asked: Any) -> tuple[Any, int, int, tuple[tuple[int, int], ...]]:
    """Return what an AlterPartition asks for, as `History.forged` has it."""
    members = sorted((each.broker_id, each.broker_epoch) for each in asked.new_isr_with_epochs)
    return topic_id, asked.partition_index, asked.partition_epoch, tuple(members)
