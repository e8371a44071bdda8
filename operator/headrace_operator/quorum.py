"""The voters of the metadata quorum (KIP-853), for an administrator or an operator.

Blocking. DescribeQuorum is kafka-python's. AddRaftVoter and RemoveRaftVoter, which it lacks, are
sent over `unregister`'s connection: any broker forwards them to the active controller.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_operator.unregister import ask_first, request_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "QuorumError",
    "QuorumReplica",
    "QuorumState",
    "add_voter",
    "describe_quorum",
    "remove_voter",
]

ADD_RAFT_VOTER, REMOVE_RAFT_VOTER = 80, 81
TIMEOUT_MS = 10_000
UNKNOWN_DIRECTORY = uuid.UUID(int=0)


class QuorumError(Exception):
    """The voters were not changed; message and code are the controller's."""

    def __init__(self, message: str, code: int) -> None:
        """See the class."""
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class QuorumReplica:
    """One replica of the metadata log: a node with one particular disk."""

    node_id: int
    directory_id: uuid.UUID
    end_offset: int = -1
    #: When it was last caught up with the leader, by the leader's clock; -1: never, or not known.
    caught_up_ms: int = -1


@dataclass(frozen=True, kw_only=True)
class QuorumState:
    """Leader, voters and observers, and the voters' addresses (listener, host, port)."""

    leader_id: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...] = ()
    endpoints: Mapping[int, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)


def describe_quorum(admin: Any) -> QuorumState:
    """Query the voters. Raises `kafka.errors.KafkaError`."""
    described = admin.describe_metadata_quorum()
    partition = described["topics"][0]["partitions"][0]
    return QuorumState(
        leader_id=partition["leader_id"],
        voters=tuple(map(_replica, partition["current_voters"])),
        observers=tuple(map(_replica, partition["observers"])),
        endpoints={
            node["node_id"]: tuple(
                (each["name"], each["host"], each["port"]) for each in node["listeners"]
            )
            for node in described.get("nodes", ())
        },
    )


def _replica(described: Mapping[str, Any]) -> QuorumReplica:
    found = described.get("replica_directory_id") or UNKNOWN_DIRECTORY
    return QuorumReplica(
        node_id=described["replica_id"],
        directory_id=found if isinstance(found, uuid.UUID) else uuid.UUID(str(found)),
        end_offset=described["log_end_offset"],
        caught_up_ms=described.get("last_caught_up_timestamp", -1),
    )


def add_voter(
    addresses: Sequence[tuple[str, int]],
    replica: QuorumReplica,
    listener: tuple[str, str, int],
) -> None:
    """Make a controller that follows the log a voter. Raises QuorumError, KafkaConnectionError."""
    name, host, port = listener
    body = (
        b"\0"  # no cluster id: the receiver knows its own
        + struct.pack(">ii", TIMEOUT_MS, replica.node_id)
        + replica.directory_id.bytes
        + b"\2"  # one listener, plus one
        + _compact(name)
        + _compact(host)
        + struct.pack(">H", port)
        + b"\0\0"
    )
    _change(addresses, ADD_RAFT_VOTER, body)


def remove_voter(addresses: Sequence[tuple[str, int]], replica: QuorumReplica) -> None:
    """Make a voter an observer. Raises QuorumError, KafkaConnectionError."""
    body = b"\0" + struct.pack(">i", replica.node_id) + replica.directory_id.bytes + b"\0"
    _change(addresses, REMOVE_RAFT_VOTER, body)


def _change(addresses: Sequence[tuple[str, int]], api_key: int, body: bytes) -> None:
    from kafka.errors import for_code

    code, message = ask_first(addresses, request_frame(api_key, body))
    if code:
        text = f"{for_code(code).__name__.removesuffix('Error')} ({code})"
        raise QuorumError(f"{text}: {message}" if message else text, code)


def _compact(text: str) -> bytes:
    data = text.encode()
    if len(data) > 126:  # noqa: PLR2004 - the longest that one byte of varint says
        raise ValueError(f"{text[:20]}… is too long for a listener")
    return bytes([len(data) + 1]) + data
