"""What a decision asks its driver to do: records, replies and timers, all as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NewType
from uuid import UUID

from headrace_broker.coordinator.records import CoordinatorRecord

Ticket = NewType("Ticket", int)
"""Identifies a waiting request; the driver passes it in, and resolves it on its reply."""


class TimerKind(Enum):
    """What a timer means when it fires."""

    SESSION = "session"  # a member, or one that only got its id, was silent too long
    JOIN = "join"  # the join phase of a rebalance is over
    SYNC = "sync"  # members that joined but never asked for their assignment are removed
    REVOCATION = "revocation"  # a member did not revoke partitions in time (KIP-848)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerKey:
    """At most one timer per key exists; setting it again replaces it."""

    kind: TimerKind
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Fire once after `delay_ms` of monotonic time: setting the clock must not end sessions."""

    key: TimerKey
    delay_ms: int
    unless_set: bool = False
    """Leave a running timer alone: asking again does not prolong it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Cancel the timer, if there is one."""

    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRegexes:
    """Match a group's regular expressions with the topics, then decide on the result.

    It may take long, so it runs outside of the state machine, one at a time for each group.
    """

    group_id: str
    patterns: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializeShareState:
    """Have the share coordinator create the state of a share group's partitions (KIP-932).

    Then decide on the result; one at a time for each group.
    """

    group_id: str
    state_epoch: int
    partitions: Mapping[UUID, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceBegun:
    """The join phase of a classic group was opened, for the operator's log."""

    group_id: str
    generation: int
    members: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """Append `records` in order as one unit; when they are committed, send `replies`."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    resolutions: list[ResolveRegexes] = field(default_factory=list)
    initializations: list[InitializeShareState] = field(default_factory=list)
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    rebalances: list[RebalanceBegun] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request: what a decision may know of its connection, and a fresh id."""

    ticket: Ticket
    api_version: int
    client_id: str = ""
    client_host: str = ""
    new_member_id: str = ""
    """A UUID as text; a member's id is its client id or instance id, a dash, and this."""
    is_transactional: bool = False
    """Whether offsets are committed by a transaction, whose client need not name its member."""
    room_for_a_group: bool = True
    """False when the broker has as many groups as `headrace.max.groups` allows."""
