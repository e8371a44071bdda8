"""Recovery when most voters of the metadata quorum lost their disks: one survivor goes on alone.

The survivor's metadata log is taken as committed, and a record makes this node the only voter
(KIP-853). Records that only the lost voters had are gone. If one of them returned with its old
disk, there would be two clusters; so only a person may ask for this, never a program. The request
is a file in the folder of the metadata log; the broker carries it out once, at its next start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace_broker.log.files import (
    failing_the_directory,
    read_file,
    remove_quietly,
    replace_file,
)
from headrace_broker.protocol.types import LeaderEpoch, NodeId
from headrace_broker.raft.control import NOT_IN_LOG, build_control_batch, voters_record
from headrace_broker.raft.types import KRAFT_VERSION_DYNAMIC, VotersAt, VoterSet

if TYPE_CHECKING:
    from headrace_broker.raft.types import ReplicaKey
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.quorum.raft_log import MetadataLog

__all__ = [
    "REQUEST_NAME",
    "RecoveryError",
    "end_recovery",
    "recover_if_asked",
    "request_recovery",
    "survivor",
]

REQUEST_NAME = "recover-alone"
#: Separates the node that goes on from the lost nodes in the request.
_LOST = " without "

log = structlog.get_logger()


class RecoveryError(Exception):
    """The quorum cannot go on from this log; the message says why."""


def request_recovery(directory: Path, node_id: NodeId) -> Path:
    """Ask the node that has this metadata directory to go on alone when it starts next."""
    path = directory / REQUEST_NAME
    replace_file(path, f"{node_id}\n".encode())
    return path


def survivor(log_: MetadataLog, node_id: NodeId) -> VotersAt:
    """Return the last voter set in the log. Raises RecoveryError if this node cannot go on."""
    configured = VotersAt(offset=NOT_IN_LOG, voters=VoterSet([]), kraft_version=0)
    found = log_.control(configured)
    if not found or found[-1].kraft_version < KRAFT_VERSION_DYNAMIC:
        raise RecoveryError(
            "this log does not name its voters: they stand in controller.quorum.voters, where the"
            " lost ones can be taken out"
        )
    if node_id not in found[-1].voters.ids:
        voters = ", ".join(map(str, found[-1].voters.ids))
        raise RecoveryError(
            f"node {node_id} was no voter ({voters} were): its log may lack what was committed;"
            " recover from a voter that is left"
        )
    return found[-1]


def recover_if_asked(
    directory: Path, log_: MetadataLog, key: ReplicaKey, clock: Clock
) -> tuple[NodeId, ...]:
    """Make this node the only voter if its directory has a request; return the lost nodes.

    The request stays, with their ids, until `end_recovery`, so that a crash in between repeats it.
    Raises RecoveryError.
    """
    path = directory / REQUEST_NAME
    if not path.exists():
        return ()
    with failing_the_directory(path):
        text = read_file(path).decode()
    own, _, named = text.strip().partition(_LOST)
    if own != str(key.node_id):
        raise RecoveryError(f"{path} is of another node than {key.node_id}: delete it")
    latest = survivor(log_, key.node_id)
    lost = tuple(each for each in latest.voters.ids if each != key.node_id)
    if not lost:
        return tuple(NodeId(int(each)) for each in named.split(",") if each)
    replace_file(path, f"{own}{_LOST}{','.join(map(str, lost))}\n".encode())
    (mine,) = [voter for voter in latest.voters if voter.key.node_id == key.node_id]
    epochs = log_.state().epochs
    batch = build_control_batch(
        [voters_record(VoterSet([replace(mine, key=key)]))],
        timestamp_ms=clock.now_ms(),
        base_offset=log_.end_offset,
        epoch=epochs[-1][0] if epochs else LeaderEpoch(0),
    )
    log_.append(log_.end_offset, batch)
    log_.begin_flush()()
    log.warning(
        "the metadata quorum goes on with this node alone, as it was asked to",
        lost=", ".join(map(str, lost)),
        end_offset=log_.end_offset,
    )
    return lost


def end_recovery(directory: Path) -> None:
    """Delete the request: it is fulfilled."""
    remove_quietly(directory / REQUEST_NAME)
