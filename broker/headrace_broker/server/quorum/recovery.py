"""The way out when most voters of the metadata quorum lost their disks: one survivor goes on alone.

What the survivor has of the metadata log is taken for committed, and a record makes it the only
voter (KIP-853). What only the lost voters had is lost, and were one of them to come back with its
old disk there would be two clusters: a person asks for it, never a program. The request is a file
in the folder of the metadata log; the broker acts on it at its next start, once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace_broker.log.files import remove_quietly, replace_file
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
#: Stands in the request between the node that goes on and those that are lost.
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
    """Return the voters that the log names last. Raises RecoveryError where it cannot go on."""
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
    """Make this node the only voter where its directory has a request; return the lost ones.

    The request stays, with their names, until `end_recovery`: a crash in between repeats it.
    Raises RecoveryError.
    """
    path = directory / REQUEST_NAME
    if not path.exists():
        return ()
    own, _, named = path.read_text().strip().partition(_LOST)
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
    """Forget the request: what it asked for is done."""
    remove_quietly(directory / REQUEST_NAME)
