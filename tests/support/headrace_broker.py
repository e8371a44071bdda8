"""Our broker as a process, started the way a user starts it: `headrace broker FILE.properties`."""

import sys
import time
from pathlib import Path
from typing import Self

from support.processes import LOOPBACK, ManagedProcess, free_port
from support.wire import broker_ids

_READY_SECONDS = 60
_COMMAND = Path(sys.executable).parent / "headrace"


class HeadraceBroker:
    """One broker (combined with its controller) in one directory, on ports that it keeps."""

    name = "Headrace"

    def __init__(self, directory: Path, properties: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.properties = properties or {}
        self.port, self.controller_port, self.http_port = free_port(), free_port(), free_port()
        self.log_directory = directory / "data"
        self.ready_seconds = 0.0
        self._process: ManagedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def http_address(self) -> str:
        return f"http://{LOOPBACK}:{self.http_port}"

    @property
    def process(self) -> ManagedProcess:
        if self._process is None:
            raise RuntimeError("the broker was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def start(self) -> None:
        """Start it and wait until it answers a Metadata request with itself in it."""
        began = time.monotonic()
        self.begin()
        self.process.wait_ready(lambda: broker_ids(self.bootstrap) == {1}, _READY_SECONDS)
        self.ready_seconds = time.monotonic() - began

    def begin(self) -> None:
        """Start it and wait for nothing."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self._write_properties()
        command = [str(_COMMAND), "broker", str(config)]
        self._process = ManagedProcess(command, self.directory / "broker.log")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(timeout_seconds=30)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Start again with the data and ports it had."""
        self.start()

    def cpu_seconds(self) -> float:
        return self.process.cpu_seconds()

    def rss_bytes(self) -> int:
        return self.process.rss_bytes()

    def read_bytes(self) -> int:
        return self.process.read_bytes()

    def output_tail(self) -> str:
        return self.process.output_tail()

    def _write_properties(self) -> Path:
        controller = f"{LOOPBACK}:{self.controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.log_directory),
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            "headrace.http.listener": f"{LOOPBACK}:{self.http_port}",
            **self.properties,
        }
        path = self.directory / "broker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path
