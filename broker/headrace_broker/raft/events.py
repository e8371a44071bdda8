"""What happens to a replica of the quorum: the only input of `RaftNode.step`."""

from dataclasses import dataclass
from typing import TypeAlias

from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import LeaderEpoch, NodeId

from .types import OffsetAndEpoch, VotersAt


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. Due at `RaftNode.next_deadline_ms`; earlier or later ones do no harm."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A peer or a client asks. Each is answered by exactly one reply effect with its ticket.

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
    """A `Send` got no answer: refused, reset or timed out. The peer may have acted all the same."""

    correlation_id: int


@dataclass(frozen=True, slots=True)
class PeerProcessDied:
    """A peer's connection broke and its port refuses: nobody needs to wait for a timeout."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Append:
    """The active controller wants whole v2 batches in the log, in this order, in its epoch.

    Each is kept or lost whole; base offset and leader epoch are set by the node. Refused with
    `AppendRefused` unless this replica leads `epoch`.
    """

    batches: tuple[bytearray, ...]
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """An fsync that began after `FlushLog(ticket)` was performed ended well.

    One fsync may stand for several: report the largest ticket. EIO is never reported: the process
    must end.
    """

    ticket: int


@dataclass(frozen=True, slots=True)
class SnapshotCreated:
    """A snapshot of what this replica has committed is durable (KIP-630).

    Its end offset is at most the high watermark and lies between batches.
    """

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """`InstallSnapshot` is done and durable; `control` is what `read_control` found in it."""

    snapshot_id: OffsetAndEpoch
    control: VotersAt | None


@dataclass(frozen=True, slots=True)
class SnapshotRejected:
    """What was fetched is no whole snapshot (checksum, footer): it was thrown away."""

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
