"""The quorum's control records: built here, and found here in batches (KIP-595, KIP-853).

Owns their layout in a batch and the history of voter sets that a log's records make.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from struct import Struct
from typing import Final, TypeAlias

from headrace_broker.protocol.batch import (
    ControlType,
    NewRecord,
    build_batch,
    iterate_batches,
    iterate_records,
    parse_control_type,
)
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.messages.records.k_raft_version_record import KRaftVersionRecord
from headrace_broker.protocol.messages.records.leader_change_message import LeaderChangeMessage
from headrace_broker.protocol.messages.records.leader_change_message import (
    Voter as LeaderChangeVoter,
)
from headrace_broker.protocol.messages.records.voters_record import Endpoint as VotersRecordEndpoint
from headrace_broker.protocol.messages.records.voters_record import (
    KRaftVersionFeature,
    VotersRecord,
)
from headrace_broker.protocol.messages.records.voters_record import Voter as VotersRecordVoter
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import Buffer, NodeId, Offset

from .types import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet

# The offset of what the configuration contains and no record does.
NOT_IN_LOG: Final = Offset(-1)
ControlRecord: TypeAlias = tuple[ControlType, Message]

_INT16_PAIR: Final = Struct(">hh")
_KEY_VERSION: Final = 0


def build_control_batch(
    records: Sequence[ControlRecord], *, timestamp_ms: int, base_offset: int = 0, epoch: int = -1
) -> bytearray:
    """Return one control batch: the log's, or a snapshot's header and footer."""
    return build_batch(
        [
            NewRecord(
                key=_INT16_PAIR.pack(_KEY_VERSION, kind),
                value=encode_bytes(message, 0),
                timestamp=timestamp_ms,
            )
            for kind, message in records
        ],
        is_control=True,
        base_offset=base_offset,
        partition_leader_epoch=epoch,
    )


def leader_change(leader: NodeId, voters: VoterSet, granted: Iterable[NodeId]) -> ControlRecord:
    """Return the record that every epoch begins with (KIP-595).

    In version 0: Kafka's own tools read no other (ControlRecordUtils), despite its schema.
    """
    message = LeaderChangeMessage(
        version=0,
        leader_id=leader,
        voters=[LeaderChangeVoter(voter_id=node_id) for node_id in voters.ids],
        granting_voters=[
            LeaderChangeVoter(voter_id=node_id)
            for node_id in sorted(granted)
            if node_id in voters.ids
        ],
    )
    return ControlType.LEADER_CHANGE, message


def voters_record(voters: VoterSet) -> ControlRecord:
    """Return the record that makes `voters` the voter set, from its append on (KIP-853)."""
    return ControlType.KRAFT_VOTERS, VotersRecord(
        voters=[
            VotersRecordVoter(
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[
                    VotersRecordEndpoint(name=at.name, host=at.host, port=at.port)
                    for at in voter.endpoints
                ],
                k_raft_version_feature=KRaftVersionFeature(
                    min_supported_version=voter.kraft_version_min,
                    max_supported_version=voter.kraft_version_max,
                ),
            )
            for voter in voters
        ]
    )


def kraft_version_record(kraft_version: int) -> ControlRecord:
    """Return the record that sets the quorum's version."""
    return ControlType.KRAFT_VERSION, KRaftVersionRecord(k_raft_version=kraft_version)


def find_control(records: Buffer, before: VotersAt) -> Iterator[VotersAt]:
    """Yield the control state after each record of whole batches that changes it.

    For a log's batches and for a snapshot's alike; of a snapshot only the last one counts.
    """
    for position, header in iterate_batches(records):
        if not header.is_control:
            continue
        for record in iterate_records(records, position):
            kind = parse_control_type(record.key)
            if record.value is None:
                continue
            if kind == ControlType.KRAFT_VERSION:
                version = decode(KRaftVersionRecord, record.value, 0)[0].k_raft_version
                before = replace(before, offset=record.offset, kraft_version=version)
                yield before
            elif kind == ControlType.KRAFT_VOTERS:
                voters = _voter_set(decode(VotersRecord, record.value, 0)[0])
                before = replace(before, offset=record.offset, voters=voters)
                yield before


def _voter_set(message: VotersRecord) -> VoterSet:
    return VoterSet(
        [
            Voter(
                key=ReplicaKey(NodeId(voter.voter_id), voter.voter_directory_id),
                endpoints=tuple(Endpoint(at.host, at.port, at.name) for at in voter.endpoints),
                kraft_version_min=voter.k_raft_version_feature.min_supported_version,
                kraft_version_max=voter.k_raft_version_feature.max_supported_version,
            )
            for voter in message.voters
        ]
    )


class VoterHistory:
    """The voter sets by offset: the latest one is in force from its append on."""

    __slots__ = ("_changes", "_offsets")

    def __init__(self, configured: VotersAt, found: Iterable[VotersAt] = ()) -> None:
        self._changes = [configured]
        self._offsets = [configured.offset]
        for change in found:
            self.add(change)

    @property
    def latest(self) -> VotersAt:
        """The voter set in force, committed or not."""
        return self._changes[-1]

    def at(self, end_offset: Offset) -> VotersAt:
        """Return the voter set as of the records below an offset."""
        return self._changes[max(bisect_right(self._offsets, end_offset - 1) - 1, 0)]

    def since(self, end_offset: Offset) -> Sequence[VotersAt]:
        """Return the voter set at an offset and all later ones, ascending."""
        return self._changes[max(bisect_right(self._offsets, end_offset - 1) - 1, 0) :]

    def add(self, change: VotersAt) -> None:
        """Add a change by a record behind all others."""
        self._changes.append(change)
        self._offsets.append(change.offset)

    def truncate(self, end_offset: Offset) -> None:
        """Remove the changes by records at or above an offset."""
        keep = max(bisect_right(self._offsets, end_offset - 1), 1)
        del self._changes[keep:], self._offsets[keep:]

    def trim(self, start_offset: Offset) -> None:
        """Remove entries that are not needed once the log begins at an offset."""
        drop = max(bisect_right(self._offsets, start_offset - 1) - 1, 0)
        del self._changes[:drop], self._offsets[:drop]

    def restart(self, change: VotersAt) -> None:
        """Start again with the voter set in a snapshot."""
        self._changes = [change]
        self._offsets = [change.offset]
