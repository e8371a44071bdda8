"""`state.json`: how other commands find a running cluster. Written whole, read by anyone.

A process is identified by its pid and start time: pids wrap, so by the time a pid is read it may
belong to another process, and `headrace` never signals a process that it did not start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

import msgspec
import psutil

from headrace_operator.local.durable import replace_file
from headrace_operator.plan import (
    Observed,
    ObservedApplication,
    ObservedBroker,
    ObservedCluster,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "ApplicationState",
    "BrokerState",
    "ClusterState",
    "LockHeldError",
    "ProcessIdentity",
    "exclusive_lock",
    "load_state",
    "observed_of",
    "save_state",
]

# psutil computes start times from the boot time, which moves when the wall clock is corrected.
START_TIME_TOLERANCE_SECONDS = 2.0


class LockHeldError(Exception):
    """Another process holds this lock."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A process that `headrace` started."""

    name: str
    pid: int
    started_at: float

    @classmethod
    def of(cls, name: str, pid: int) -> ProcessIdentity:
        """Identify a running process; raises `psutil.NoSuchProcess` if it has ended."""
        return cls(name=name, pid=pid, started_at=psutil.Process(pid).create_time())

    def find(self) -> psutil.Process | None:
        """Return the process if it still runs and is the same one."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) < START_TIME_TOLERANCE_SECONDS
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            return None
        return None


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    """A broker of this cluster, running or not, and its addresses when it runs."""

    node_id: int
    pool: str
    roles: tuple[str, ...]
    config: dict[str, str] = {}
    rack: str | None = None
    address: str = ""
    http: str = ""
    #: The address of its controller listener; empty if it has none.
    controller: str = ""
    #: Outdated defaults that it was started with, as text.
    outdated: tuple[str, ...] = ()


class ApplicationState(msgspec.Struct, frozen=True, kw_only=True):
    """A producer or job that runs. `fingerprint`: of the spec that it was started from."""

    kind: str
    namespace: str
    name: str
    fingerprint: str
    metrics: str | None = None


class ClusterState(msgspec.Struct, kw_only=True):
    """What runs now; after an orderly stop, which brokers there were."""

    cluster: str
    #: Chosen at the first start (see `formation`); empty before it.
    cluster_id: str = ""
    #: How many brokers the cluster was formed with.
    formed_with: int = 0
    #: The voters are in the metadata log: no broker's settings name them any longer.
    is_formed: bool = False
    bootstrap_servers: str = ""
    up: ProcessIdentity | None = None
    brokers: list[BrokerState] = []
    applications: list[ApplicationState] = []
    #: In the order in which they are stopped.
    processes: list[ProcessIdentity] = []

    @property
    def is_running(self) -> bool:
        """Whether the `headrace up` that wrote this still runs."""
        return self.up is not None and self.up.find() is not None


def observed_of(state: ClusterState) -> Observed:
    """Return what a plan needs to know of brokers and applications. The brokers report the rest."""
    brokers = tuple(
        ObservedBroker(
            node_id=broker.node_id,
            pool=broker.pool,
            roles=broker.roles,
            config=broker.config,
            is_running=bool(broker.address),
            is_registered=bool(broker.address),
            address=broker.address,
            controller_address=broker.controller,
            outdated=broker.outdated,
        )
        for broker in state.brokers
    )
    return Observed(
        cluster=ObservedCluster(
            bootstrap_servers=state.bootstrap_servers,
            brokers=brokers,
            is_reachable=bool(state.bootstrap_servers),
        ),
        applications={
            (each.kind, each.namespace, each.name): ObservedApplication(
                is_running=True, fingerprint=each.fingerprint
            )
            for each in state.applications
        },
    )


def load_state(path: Path) -> ClusterState | None:
    """Read a state file; None if there is none, or its version is unknown."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def save_state(path: Path, state: ClusterState) -> None:
    """Replace the state file: a reader sees the old one or the new one."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(state)) + b"\n")


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock file. The kernel drops it when the process dies, so it is never stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise LockHeldError(str(path)) from None
        yield
    finally:
        os.close(descriptor)
