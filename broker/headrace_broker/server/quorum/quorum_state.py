"""The file `quorum-state`: the epoch, vote and leader that this replica must never forget.

The format is Kafka's `QuorumStateData` as JSON, version 1. A write returns only when file and
directory are durable: a vote lost in a crash could be given twice (Raft, section 5.2).
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace_broker.log.files import failing_the_directory, read_file, replace_file
from headrace_broker.log.meta_properties import decode_uuid, encode_uuid
from headrace_broker.protocol.types import LeaderEpoch, NodeId
from headrace_broker.raft.types import UNKNOWN_DIRECTORY, QuorumState, ReplicaKey

QUORUM_STATE_NAME = "quorum-state"
_VERSION = 1
_NOBODY = -1


class QuorumStateError(Exception):
    """The file cannot be parsed; starting without it could break an earlier vote."""


class QuorumStateFile:
    """One replica's file in the folder of the metadata log."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / QUORUM_STATE_NAME

    def read(self) -> QuorumState:
        """Return the last state written; an empty state if there is none."""
        try:
            with failing_the_directory(self.path):
                text = read_file(self.path) if self.path.exists() else None
            if text is None:
                return QuorumState()
            found = json.loads(text)
            leader, voted = int(found["leaderId"]), int(found["votedId"])
            directory = found.get("votedDirectoryId")
            return QuorumState(
                epoch=LeaderEpoch(int(found["leaderEpoch"])),
                leader_id=NodeId(leader) if leader != _NOBODY else None,
                voted=ReplicaKey(
                    NodeId(voted), decode_uuid(directory) if directory else UNKNOWN_DIRECTORY
                )
                if voted != _NOBODY
                else None,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise QuorumStateError(f"{self.path}: {error!r}") from error

    def write(self, state: QuorumState) -> None:
        """Replace the file durably; raises LogDirectoryFailure, OutOfDescriptorsError."""
        voted = state.voted
        text = json.dumps(
            {
                "leaderId": _NOBODY if state.leader_id is None else state.leader_id,
                "leaderEpoch": state.epoch,
                "votedId": _NOBODY if voted is None else voted.node_id,
                "votedDirectoryId": encode_uuid(
                    UNKNOWN_DIRECTORY if voted is None else voted.directory_id
                ),
                "data_version": _VERSION,
            }
        )
        replace_file(self.path, text.encode())
