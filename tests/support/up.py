"""`headrace up` as a process, and other commands beside it, as a terminal would start them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.command_line import run_headrace
from support.processes import wait_until


class Up:
    """One `headrace up` in a process of its own, as a terminal would start it."""

    def __init__(self, manifests: Path, data: Path, *options: str, cluster: str = "cpu") -> None:
        self.data = data
        self.state_file = data / cluster / "state.json"
        self._log_path = data.parent / f"up-{time.monotonic_ns()}.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command("up", manifests), "--data-dir", str(data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log_path.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    def state(self) -> dict[str, Any]:
        return json.loads(self.state_file.read_text())

    def wait_for(self, text: str, seconds: float) -> None:
        wait_until(
            lambda: text in self.output or self._process.poll() is not None, seconds, repr(text)
        )
        assert text in self.output, self.output

    def wait(self, seconds: float = 200) -> int:
        return self._process.wait(seconds)

    def kill_if_running(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def broker_pid(self, node_id: int) -> int:
        processes = self.state()["processes"]
        return next(each["pid"] for each in processes if each["name"] == f"broker-{node_id}")

    def run(self, *arguments: object, stdin: str = "", status: int = 0) -> str:
        """Run another command on the same data directory; returns all that it said."""
        done = run_headrace(*arguments, "--data-dir", self.data, stdin=stdin)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headrace_cli", *map(str, arguments)]
