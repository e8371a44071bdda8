"""The actions that a quorum replica requests: the only output of `RaftNode.step`.

The driver performs a step's effects in order. It waits for those marked durable before it performs
the next effect, and performs all effects of a step before those of the next. If one fails (EIO, a
full disk), the process exits, because the node's state is ahead of the disk.
"""

from dataclasses import dataclass
from typing import TypeAlias

from headrace_broker.protocol.messages.fetch import FetchResponse
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

from .types import Destination, Endpoint, OffsetAndEpoch, QuorumState, VoterSet


@dataclass(frozen=True, slots=True)
class PersistQuorumState:
    """Durable: replace the file `quorum-state`, fsync it and its directory."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request; report its outcome once by ReceivedResponse or RequestFailed."""

    correlation_id: int
    destination: Destination
    request: Message
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a ReceivedRequest."""

    ticket: int
    response: Message


@dataclass(frozen=True, slots=True)
class ReplyWithRecords:
    """Answer a Fetch after putting whole batches from `offset` into the partition's `records`.

    At most `max_bytes` but at least one batch, up to the log's end, including records that are not
    fsynced or not committed (Raft thesis, section 10.2.1).
    """

    ticket: int
    response: FetchResponse
    offset: Offset
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReplyWithSnapshotPart:
    """Answer a FetchSnapshot after setting `size` and `unaligned_records` from `position` on.

    A position that is negative or not below the snapshot's size: error POSITION_OUT_OF_RANGE.
    """

    ticket: int
    response: FetchSnapshotResponse
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Append whole batches unchanged: offsets and leader epochs are set. No fsync."""

    base_offset: Offset
    records: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Drop every record at or above `end_offset`."""

    end_offset: Offset


@dataclass(frozen=True, slots=True)
class FlushLog:
    """Start an fsync of the log, then report LogFlushed(ticket). Later effects do not wait."""

    ticket: int


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """The records below are committed: they may be applied."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """This replica leads `epoch`. It is up to date once the high watermark is above the start."""

    epoch: LeaderEpoch
    epoch_start_offset: Offset


@dataclass(frozen=True, slots=True)
class LostLeadership:
    """This replica lost the leadership of `epoch`; its uncommitted records may be lost."""

    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader and its address, as far as this replica knows: requests are forwarded there."""

    epoch: LeaderEpoch
    leader_id: NodeId | None
    endpoint: Endpoint | None


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """An Append came too late: this replica does not lead that epoch. Nothing was appended."""

    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The voter set has changed, committed or not (Raft thesis, section 4.1)."""

    voters: VoterSet


@dataclass(frozen=True, slots=True)
class WriteSnapshotPart:
    """Write a piece of a leader's snapshot; position 0 starts over."""

    snapshot_id: OffsetAndEpoch
    position: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Check the fetched snapshot, make it durable, and replace the whole log by it.

    Then report SnapshotInstalled or SnapshotRejected. Nothing else is appended before that.
    """

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Replace the replayed state by this snapshot's. Never requested from a leader."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class TrimLog:
    """The log may begin at `start`: older segments and older snapshots may be deleted."""

    start: OffsetAndEpoch


Effect: TypeAlias = (
    PersistQuorumState
    | Send
    | Reply
    | ReplyWithRecords
    | ReplyWithSnapshotPart
    | AppendToLog
    | TruncateLog
    | FlushLog
    | HighWatermarkAdvanced
    | BecameLeader
    | LostLeadership
    | LeaderChanged
    | AppendRefused
    | VotersChanged
    | WriteSnapshotPart
    | InstallSnapshot
    | LoadSnapshot
    | TrimLog
)
