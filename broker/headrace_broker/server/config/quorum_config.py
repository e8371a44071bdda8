"""The settings of the metadata quorum: who its voters are, and where to find them.

Owns the syntax of controller.quorum.voters and controller.quorum.bootstrap.servers, and checks them
against each other, process.roles and the listeners.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_broker.protocol.types import NodeId

_PORT_MAX = 65535


@dataclass(frozen=True, kw_only=True)
class QuorumConfig:
    """Voters by id, and bootstrap servers, both as (host, port)."""

    voters: Mapping[NodeId, tuple[str, int]] = field(default_factory=dict)
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    is_alone: bool = True
    """Whether this node is the whole quorum and no other node can join it."""


def read_quorum(
    values: Mapping[str, Any], listeners: Collection[str], problems: list[str], source: str
) -> QuorumConfig:
    """Return the quorum that `values` describe; append any errors to `problems`."""
    node_id = values["node.id"]
    voters = _voters(values, problems, source)
    bootstrap = _servers(values, problems, source)
    roles = values["process.roles"]
    is_controller = "controller" in roles
    names = values["controller.listener.names"]
    is_listening = any(name in listeners for name in names)
    if is_controller and voters and node_id not in voters and not bootstrap:
        problems.append(
            f"{source}: controller.quorum.voters does not name this controller ({node_id})"
        )
    if not is_controller and not voters and not bootstrap:
        problems.append(
            f"{source}: process.roles is broker alone: name the controllers in "
            "controller.quorum.voters or controller.quorum.bootstrap.servers"
        )
    is_alone = is_controller and not bootstrap and set(voters) <= {node_id}
    if not is_alone and is_controller and not is_listening:
        problems.append(
            f"{source}: listeners binds none of controller.listener.names ({', '.join(names)}); "
            "the other voters cannot reach this one"
        )
    if not is_alone and not values["cluster.id"]:
        problems.append(f"{source}: cluster.id is required with more than one node: name the same")
    if roles == ["controller"] and not is_listening:
        problems.append(
            f"{source}: a controller alone needs a listener of controller.listener.names"
        )
    return QuorumConfig(voters=voters, bootstrap_servers=bootstrap, is_alone=is_alone)


def _voters(
    values: Mapping[str, Any], problems: list[str], source: str
) -> dict[NodeId, tuple[str, int]]:
    voters: dict[NodeId, tuple[str, int]] = {}
    for text in values["controller.quorum.voters"]:
        voter, separator, address = text.partition("@")
        found = _address(address)
        if not separator or not voter.isdigit() or found is None:
            problems.append(f"{source}: controller.quorum.voters: {text!r} is not id@host:port")
        elif NodeId(int(voter)) in voters:
            problems.append(f"{source}: controller.quorum.voters names {voter} twice")
        else:
            voters[NodeId(int(voter))] = found
    return voters


def _servers(
    values: Mapping[str, Any], problems: list[str], source: str
) -> tuple[tuple[str, int], ...]:
    servers: list[tuple[str, int]] = []
    for text in values["controller.quorum.bootstrap.servers"]:
        found = _address(text)
        if found is None:
            problems.append(
                f"{source}: controller.quorum.bootstrap.servers: {text!r} is not host:port"
            )
        else:
            servers.append(found)
    return tuple(servers)


def _address(text: str) -> tuple[str, int] | None:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > _PORT_MAX:
        return None
    return host.strip("[]"), int(port)
