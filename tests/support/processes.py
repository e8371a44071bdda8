"""Processes that tests start: free ports, starting, waiting, ending, and what they cost.

Owns nothing but the processes it was given; it never looks for a process by name.
"""

import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.005


class NotReadyError(Exception):
    """A process ended or stayed silent before it was ready; the message carries its last output."""


# Below those of `headrace up` (20000), of Kubernetes' services (30000), and those that Linux gives
# to clients' ends (32768).
_PORTS = range(10240, 20000)
_TRIES_MAX = 1000
_given: set[int] = set()


def free_port() -> int:
    """Return a loopback port that nobody listens on, and that this never returned before.

    No other run of tests gets it while this process lives, nor a client's end.
    """
    for _ in range(_TRIES_MAX):
        # Not from the generator that a test may have seeded.
        port = random.SystemRandom().choice(_PORTS)
        if port in _given or not _claim(port):
            continue
        with socket.socket() as probe:
            # As servers do: a connection that has ended keeps nobody away.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError(f"none of {_TRIES_MAX} ports is free among {_PORTS}")


@functools.cache
def _claims() -> IO[bytes]:
    """Open a file in which each port is a byte; who locks the byte has the port.

    It stays open: a process that closes it once gives all its locks back.
    """
    path = Path(tempfile.gettempdir()) / f"headrace-test-ports-{os.getuid()}.lock"
    return path.open("ab")


def _claim(port: int) -> bool:
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def wait_until(
    condition: Callable[[], object], timeout_seconds: float = 30, what: str = "the condition"
) -> None:
    """Poll `condition` until it holds; raise `TimeoutError` naming `what` when it never does."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {timeout_seconds} s")
        time.sleep(_POLL_SECONDS)


class ManagedProcess:
    """One started process with its output in a file."""

    def __init__(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        if os.environ.get("HEADRACE_TEST_FAST"):
            raise RuntimeError(f"`make test-fast` starts no {command[:2]}: mark the test `cluster`")
        self.command = list(command)
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._usage = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def cpu_seconds(self) -> float:
        """User and system time used so far."""
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        return int(self._usage.memory_info().rss)

    def read_bytes(self) -> int:
        """Bytes that the process asked the kernel to read so far (rchar of /proc)."""
        return int(self._usage.io_counters().read_chars)

    def wait_ready(self, is_ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Poll `is_ready` until it holds; a process that ends or stays silent is an error."""
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            if not self.is_running or time.monotonic() > deadline:
                state = "is not ready" if self.is_running else f"ended with {self.exit_status}"
                raise NotReadyError(f"{self.command[:4]} {state}:\n{self.output_tail()}")
            time.sleep(_POLL_SECONDS)

    def output_tail(self, lines: int = 40) -> str:
        text = self.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, timeout_seconds: float = 30) -> int:
        """End it with SIGTERM, then SIGKILL when that takes too long; return its exit status."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        if self.is_running:
            self._process.kill()
        self._process.wait()
