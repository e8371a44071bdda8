"""Choice of free loopback ports that stay the same from run to run.

A port is free if it can be bound now. New ones are none of those that the system gives to
connections as their own ends: any connection on this machine could take such a port before the
broker listens on it, or while the cluster is down. Another server may still take a port; then the
broker fails to start, reports that in its log, and is restarted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
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


def allocate_ports(
    names: Iterable[str], *, remembered: Mapping[str, int], preferred: Mapping[str, int]
) -> dict[str, int]:
    """Give each name its former port, else the one in its manifest, else a free one.

    Sockets stay open until every name has its port, so that no port is given twice.
    """
    chosen: dict[str, int] = {}
    with contextlib.ExitStack() as held:
        for name in names:
            wanted = [port for port in (remembered.get(name), preferred.get(name)) if port]
            # Any port at all, as a last resort: 0 leaves the choice to the system.
            for port in itertools.chain(wanted, _some_ports(), [0]):
                listener = _bind(port)
                if listener is not None:
                    held.enter_context(listener)
                    chosen[name] = int(listener.getsockname()[1])
                    break
            else:
                raise OSError(f"no free port on {LOOPBACK} for {name}")
    return chosen


def is_free(port: int) -> bool:
    """Say whether this port of the loopback address can be bound now."""
    listener = _bind(port)
    if listener is None:
        return False
    listener.close()
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


def _bind(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As servers do: they can bind a port whose old connections are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(1)
    except OSError:
        listener.close()
        return None
    return listener
