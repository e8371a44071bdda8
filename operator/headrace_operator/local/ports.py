"""Choice of free loopback ports that stay the same from run to run.

A port is free if it can be bound now. New ones are none of those that the system gives to
connections as their own ends: any connection on this machine could take such a port before the
broker listens on it, or while the cluster is down. On Linux this process keeps each port bound for
as long as it lives, without listening: servers set SO_REUSEADDR, and so can bind it too, while
nobody else's search for a free port finds it, not even while a broker is down. A server that is
started on that very port still takes it; then the broker fails to start, reports that in its log,
and is restarted.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import sys
from typing import TYPE_CHECKING

from headrace_operator.local.durable import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["allocate_ports", "is_free", "load_ports", "save_ports"]

LOOPBACK = "127.0.0.1"
# Below the node ports of Kubernetes (30000) and what Linux gives to connections (32768 by default).
PORTS = range(20_000, 30_000)
_TRIES_MAX = 1000
# Bound by this process, and not listening.
_reserved: dict[int, socket.socket] = {}


def allocate_ports(
    names: Iterable[str], *, remembered: Mapping[str, int], preferred: Mapping[str, int]
) -> dict[str, int]:
    """Give each name its former port, else the one in its manifest, else a free one.

    No port is given to two names, nor (on Linux) to another process that chooses as this does.
    """
    chosen: dict[str, int] = {}
    for name in names:
        wanted = [port for port in (remembered.get(name), preferred.get(name)) if port]
        # Any port at all, as a last resort: 0 leaves the choice to the system.
        for port in itertools.chain(wanted, _some_ports(), [0]):
            reserved = _reserve(port, is_wanted=port in wanted)
            if reserved is not None and reserved not in chosen.values():
                chosen[name] = reserved
                break
        else:
            raise OSError(f"no free port on {LOOPBACK} for {name}")
    return chosen


def is_free(port: int) -> bool:
    """Say whether a server could listen on this port of the loopback address now."""
    with _server_socket() as listener:
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(1)
        except OSError:
            return False
    return True


def load_ports(path: Path) -> dict[str, int]:
    """Return the ports of the last run; none if there was none or the file is damaged."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {str(name): int(port) for name, port in found.items()}


def save_ports(path: Path, ports: Mapping[str, int]) -> None:
    """Store ports for the next run."""
    replace_file(path, (json.dumps(dict(ports), indent=2, sort_keys=True) + "\n").encode())


def _some_ports() -> Iterator[int]:
    yield from random.SystemRandom().sample(PORTS, _TRIES_MAX)


def _reserve(port: int, *, is_wanted: bool) -> int | None:
    """Bind a port, 0 for any, and keep it so; returns it, or None if it is taken."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR: it fails where a process keeps the port so, this one or another.
        holder.bind((LOOPBACK, port))
    except OSError:
        holder.close()
        # A wanted one may be kept here, or have connections in TIME_WAIT: no server is kept away.
        return port if is_wanted and is_free(port) else None
    port = int(holder.getsockname()[1])
    if sys.platform == "linux":  # elsewhere, no server could bind it as well
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _reserved[port] = holder
    else:
        holder.close()
    return port


def _server_socket() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As servers do: they can bind a port whose old connections are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener
