"""What the clients saw, in the terms of Jepsen's Kafka workload, and what it must not contain."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_SHOWN_MAX = 20


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

    @property
    def value(self) -> bytes:
        return f"{self.producer}:{self.number};".encode()


@dataclass
class History:
    """All writes, all reads, and the violations found so far."""

    now_ms: Callable[[], int]
    writes: dict[bytes, Write] = field(default_factory=dict)
    logs: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    reads: int = 0

    def violate(self, kind: str, text: str) -> None:
        """Note a violation, with its name in the terms of the checkers."""
        violation = f"{kind}: {text}"
        if len(self.violations) < _SHOWN_MAX and violation not in self.violations:
            self.violations.append(violation)

    def sent(self, write: Write) -> None:
        self.writes[write.value] = write

    def acknowledged(self, write: Write, offset: int) -> None:
        """Take an acknowledgement; an offset may be given once only."""
        write.status = Status.ACKNOWLEDGED
        write.offset = offset
        self._place(write.topic, write.partition, offset, write.value, "acknowledged")

    def read(self, reader: str, topic: str, partition: int, position: int, record: Any) -> None:
        """Take one record as a consumer saw it."""
        self.reads += 1
        where = f"{topic}-{partition} offset {record.offset}"
        if record.offset != position:
            kind = "poll-skip" if record.offset > position else "nonmonotonic-poll"
            self.violate(kind, f"{reader} expected {position} and got {where}")
        value = bytes(record.value).rstrip(b".")
        if value not in self.writes:
            self.violate("garbage", f"{where} holds {value[:40]!r}, which nobody sent")
            return
        self._place(topic, partition, record.offset, value, f"read by {reader}")

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
        for place, seen in self.logs.items():
            log = final.get(place, {})
            for offset, value in seen.items():
                if log.get(offset) != value:
                    self.violate(
                        "lost-write",
                        f"{place[0]}-{place[1]} offset {offset} was {value!r}, "
                        f"in the end it is {log.get(offset)!r}",
                    )
        for place, log in final.items():
            self._check_log(f"{place[0]}-{place[1]}", log)

    def _check_log(self, where: str, log: dict[int, bytes]) -> None:
        first: dict[bytes, int] = {}
        last: dict[str, int] = {}
        expected = 0
        for offset in sorted(log):
            if offset != expected:
                self.violate("gap", f"{where} lacks offset {expected}")
            expected = offset + 1
            write = self.writes.get(log[offset])
            if write is None:
                continue
            if write.status is Status.FAILED:
                self.violate("failed-write", f"{where} offset {offset} holds {write.value!r}")
            if write.value in first:
                kind = "duplicate" if write.idempotent else "duplicate without a retry"
                self.violate(
                    kind, f"{where} holds {write.value!r} at {first[write.value]} and {offset}"
                )
            first[write.value] = offset
            if write.idempotent and write.number != last.get(write.producer, -1) + 1:
                self.violate(
                    "reordered",
                    f"{where} offset {offset}: {write.number} of {write.producer} follows "
                    f"{last.get(write.producer, -1)}",
                )
            if write.idempotent:
                last[write.producer] = write.number
