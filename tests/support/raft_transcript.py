"""Transcripts of a calm simulated quorum that a person can read: one line for each effect."""

from functools import singledispatch

from headrace_broker.protocol.batch import iterate_batches
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.schema import Message
from headrace_broker.raft import effects as fx
from headrace_broker.raft import events as ev
from headrace_broker.raft.messages import sole_partition
from support.raft_simulation import World


class CalmWorld(World):
    """A message takes 1 ms, nothing is lost; `lines` is the transcript."""

    def __init__(self, *, voters: int = 3, observers: int = 0, seed: int = 1) -> None:
        super().__init__(seed, voters=voters, observers=observers, codec=True)
        self.delay_max = 1
        self.lines: list[str] = []

    def delay(self) -> int:
        return 1

    def announce_death(self, dead: int) -> None:
        for process in self.processes.values():
            if process.is_up:
                process.later(1, lambda process=process: process.step(ev.PeerProcessDied(dead)))

    def say(self, line: str) -> None:
        self.lines.append(f"{self.now:>5} {line}")

    def trace(self, node_id: int, effect: fx.Effect) -> None:
        super().trace(node_id, effect)
        line = describe(effect)
        if line:
            self.say(f"{node_id}  {line}")

    def take(self) -> str:
        """Return the transcript since the last time."""
        lines, self.lines = self.lines, []
        return "\n".join(lines) + "\n"


@singledispatch
def describe(effect: object) -> str:
    """Say what an effect does; nothing for those that only move on an fsync."""
    return type(effect).__name__


@describe.register
def _(effect: fx.PersistQuorumState) -> str:
    state = effect.state
    words = [f"persists epoch {state.epoch}"]
    if state.voted:
        words.append(f"vote for {state.voted.node_id}")
    if state.leader_id is not None:
        words.append(f"leader {state.leader_id}")
    return ", ".join(words)


@describe.register
def _(effect: fx.Send) -> str:
    return f"-> {effect.destination.node_id}: {describe_message(effect.request)}"


@describe.register
def _(effect: fx.Reply) -> str:
    return f"answers {describe_message(effect.response)}"


@describe.register
def _(effect: fx.ReplyWithRecords) -> str:
    return f"answers FetchResponse with records from {effect.offset}"


@describe.register
def _(effect: fx.ReplyWithSnapshotPart) -> str:
    return f"answers FetchSnapshotResponse with a part of {tuple(effect.snapshot_id)}"


@describe.register
def _(effect: fx.AppendToLog) -> str:
    headers = [header for _, header in iterate_batches(effect.records)]
    epochs = ", ".join(
        f"{header.base_offset}..{header.last_offset} of epoch {header.partition_leader_epoch}"
        for header in headers
    )
    return f"appends {epochs}"


@describe.register
def _(effect: fx.TruncateLog) -> str:
    return f"truncates its log to {effect.end_offset}"


@describe.register
def _(_: fx.FlushLog) -> str:
    return ""


@describe.register
def _(effect: fx.HighWatermarkAdvanced) -> str:
    return f"high watermark {effect.high_watermark}"


@describe.register
def _(effect: fx.BecameLeader) -> str:
    return f"leads epoch {effect.epoch} from offset {effect.epoch_start_offset}"


@describe.register
def _(effect: fx.LostLeadership) -> str:
    return f"does not lead epoch {effect.epoch} any more"


@describe.register
def _(effect: fx.LeaderChanged) -> str:
    return f"knows leader {effect.leader_id} of epoch {effect.epoch}"


@describe.register
def _(effect: fx.VotersChanged) -> str:
    return f"counts voters {list(effect.voters.ids)}"


@describe.register
def _(effect: fx.InstallSnapshot) -> str:
    return f"installs snapshot {tuple(effect.snapshot_id)}"


@describe.register
def _(effect: fx.LoadSnapshot) -> str:
    return f"loads snapshot {tuple(effect.snapshot_id)}"


@describe.register
def _(effect: fx.TrimLog) -> str:
    return f"lets its log begin at {effect.start.offset}"


_FIELDS = {
    "VoteRequest": ("replica_epoch", "last_offset", "last_offset_epoch", "pre_vote"),
    "VoteResponse": ("error_code", "leader_epoch", "leader_id", "vote_granted"),
    "BeginQuorumEpochRequest": ("leader_epoch", "leader_id"),
    "BeginQuorumEpochResponse": ("error_code",),
    "EndQuorumEpochRequest": ("leader_epoch", "preferred_successors"),
    "EndQuorumEpochResponse": ("error_code",),
    "FetchRequest": ("current_leader_epoch", "fetch_offset", "last_fetched_epoch"),
    "FetchResponse": ("error_code", "high_watermark", "diverging_epoch", "snapshot_id"),
    "FetchSnapshotRequest": ("position",),
    "AddRaftVoterResponse": ("error_code", "error_message"),
    "RemoveRaftVoterResponse": ("error_code", "error_message"),
    "UpdateRaftVoterRequest": ("voter_id",),
    "UpdateRaftVoterResponse": ("error_code",),
}


def describe_message(message: Message) -> str:
    """Name a message and the fields that matter."""
    name = type(message).__name__
    topics = getattr(message, "topics", None) or getattr(message, "responses", None)
    part = sole_partition(topics) if topics else message
    words = []
    for field in _FIELDS.get(name, ()):
        value = getattr(part, field)
        if field == "error_code":
            words.append(ErrorCode(value).name)
        elif field in ("diverging_epoch", "snapshot_id"):
            if value.epoch >= 0:
                words.append(f"{field}={value.end_offset}@{value.epoch}")
        else:
            words.append(f"{field}={value}")
    return f"{name} {' '.join(words)}"
