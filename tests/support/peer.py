"""What tests and the benchmark ask of a broker process, ours or Apache Kafka's."""

from pathlib import Path
from typing import Protocol

import psutil

from support.wire import answers_api_versions


class Peer(Protocol):
    """One broker (or small cluster) that a test started or was given."""

    name: str
    ready_seconds: float

    @property
    def bootstrap(self) -> str: ...
    @property
    def log_directory(self) -> Path: ...
    @property
    def is_running(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def cpu_seconds(self) -> float: ...
    def rss_bytes(self) -> int: ...
    def read_bytes(self) -> int: ...


class GivenPeer:
    """A broker that somebody else runs: it is used and measured, never started or stopped."""

    ready_seconds = float("nan")

    def __init__(self, name: str, bootstrap: str, pid: int | None = None) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self._process = None if pid is None else psutil.Process(pid)

    @property
    def log_directory(self) -> Path:
        raise NotImplementedError("the files of a broker that somebody else runs")

    @property
    def is_running(self) -> bool:
        return answers_api_versions(self.bootstrap)

    def start(self) -> None:
        if not self.is_running:
            raise ConnectionError(f"no broker answers at {self.bootstrap}")

    def stop(self) -> None:
        """Leave it alone."""

    def kill(self) -> None:
        raise NotImplementedError("killing a broker that somebody else runs")

    def restart(self) -> None:
        raise NotImplementedError("restarting a broker that somebody else runs")

    def cpu_seconds(self) -> float:
        if self._process is None:
            return float("nan")
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        return 0 if self._process is None else int(self._process.memory_info().rss)

    def read_bytes(self) -> int:
        return 0 if self._process is None else int(self._process.io_counters().read_chars)
