"""The events of a quorum replica: the only input of `RaftNode.step`."""

from dataclasses import dataclass
from typing import TypeAlias

from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import LeaderEpoch, NodeId

from .types import OffsetAndEpoch, VotersAt


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Due at `RaftNode.next_deadline_ms`; more or less often does no harm."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request from a peer or a client. Exactly one reply effect with its ticket answers it.

    Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot of the metadata partition,
    AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, DescribeQuorum.
    """

    ticket: int
    request: Message
    api_version: int


@dataclass(frozen=True, slots=True)
class ReceivedResponse:
    """The answer to a `Send` arrived. One that is late or answered before is ignored."""

    correlation_id: int
    response: Message


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A `Send` got no answer: refused, reset or timed out. The peer may still have acted on it."""

    correlation_id: int


@dataclass(frozen=True, slots=True)
class PeerProcessDied:
    """A peer's connection broke and its port refuses: no timeout needs to be awaited."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Append:
    """The active controller wants whole v2 batches in the log, in this order, in its epoch.

    Each is kept or lost as a whole; the node sets base offset and leader epoch. Refused with
    `AppendRefused` unless this replica leads `epoch`.
    """

    batches: tuple[bytearray, ...]
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """An fsync that began after `FlushLog(ticket)` was performed has succeeded.

    One fsync may stand for several: report the largest ticket. EIO is never reported: the process
    must exit.
    """

    ticket: int


@dataclass(frozen=True, slots=True)
class SnapshotCreated:
    """A snapshot of this replica's committed state is durable (KIP-630).

    Its end offset is at most the high watermark and lies between batches.
    """

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """`InstallSnapshot` is done and durable; `control` is the result of `read_control` on it."""

    snapshot_id: OffsetAndEpoch
    control: VotersAt | None


@dataclass(frozen=True, slots=True)
class SnapshotRejected:
    """The fetched snapshot is not whole (checksum, footer): it was discarded."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """Give up leadership for a graceful stop, and do not stand for election again."""


Event: TypeAlias = (
    Tick
    | ReceivedRequest
    | ReceivedResponse
    | RequestFailed
    | PeerProcessDied
    | Append
    | LogFlushed
    | SnapshotCreated
    | SnapshotInstalled
    | SnapshotRejected
    | Resign
)
