"""What a decision asks of its driver: records, replies and timers, all as values."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NewType

from headrace_broker.coordinator.records import CoordinatorRecord

Ticket = NewType("Ticket", int)
"""Names one waiting request; the driver hands it in and resolves it when a reply names it."""


class TimerKind(Enum):
    """What a timer means when it fires."""

    SESSION = "session"  # a member, or one that has only been given its id, was silent too long
    JOIN = "join"  # the join phase of a rebalance is over
    SYNC = "sync"  # members that joined but never asked for their assignment are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerKey:
    """At most one timer per key exists; setting it again replaces it."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Fire once after `delay_ms` of monotonic time: sessions must not end when a clock is set."""

    key: TimerKey
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Forget the timer; it need not exist."""

    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Append `records` in order as one unit; when they are committed, send `replies`."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: what a decision may know of the connection, and chance drawn beforehand."""

    ticket: Ticket
    api_version: int
    client_id: str = ""
    client_host: str = ""
    new_member_id: str = ""
    """A UUID in text form; a member's id is its client id or instance id, a dash, and this."""
    room_for_a_group: bool = True
    """False when the broker has as many groups as `headrace.max.groups` allows."""
