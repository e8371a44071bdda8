"""A real OpenSearch, from Maven's distribution for tests, on loopback, as a plain user."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import LOOPBACK, free_port, wait_until

_COORDINATES = "org.opensearch.distribution.integ-test-zip:opensearch:2.19.0:zip"
_ARCHIVE = Path(
    ".m2/repository/org/opensearch/distribution/integ-test-zip/opensearch/2.19.0/opensearch-2.19.0.zip"
)
_DOWNLOAD_SECONDS = 240
_START_SECONDS = 180
_HEAP = "-Xms384m -Xmx384m"


@contextlib.contextmanager
def running_opensearch() -> Iterator["OpenSearchServer"]:
    """Run a server meanwhile; where Maven has it not, the test is skipped, and says so."""
    archive = opensearch_archive()
    if archive is None:
        pytest.skip("OPENSEARCH IS MISSING: Maven has it not; its sink is NOT TESTED")
    server = OpenSearchServer(archive)
    try:
        server.start()
        yield server
    finally:
        server.close()


def opensearch_archive() -> Path | None:
    """Return the distribution, from the local repository or Maven; None when neither has it."""
    archive = Path.home() / _ARCHIVE
    mvn = shutil.which("mvn")
    if not archive.is_file() and mvn is not None:
        command = [mvn, "-B", "-q", "dependency:get", "-Dtransitive=false"]
        subprocess.run(
            [*command, f"-Dartifact={_COORDINATES}"],
            timeout=_DOWNLOAD_SECONDS,
            check=False,
            capture_output=True,
        )
    return archive if archive.is_file() else None


class OpenSearchServer:
    """One node. It refuses to run as root, so root runs it as nobody."""

    def __init__(self, archive: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-opensearch-"))
        with zipfile.ZipFile(archive) as file:
            file.extractall(self.directory)
        (self._home,) = self.directory.glob("opensearch-*")
        for path in (self._home / "bin").iterdir():
            path.chmod(0o755)
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            user = pwd.getpwnam("nobody")
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
        self.port, self._transport_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        settings = {
            "discovery.type": "single-node",
            "http.port": self.port,
            "transport.port": self._transport_port,
            "network.host": LOOPBACK,
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        command = [str(self._home / "bin/opensearch")]
        for name, value in settings.items():
            command += ["-E", f"{name}={value}"]
        environment = dict(os.environ) | {
            "OPENSEARCH_JAVA_OPTS": _HEAP,
            "HOME": str(self.directory),
        }
        environment.pop("JAVA_TOOL_OPTIONS", None)
        # The distribution has no Java of its own.
        java = Path(shutil.which("java") or "/usr/bin/java").resolve()
        environment["OPENSEARCH_JAVA_HOME"] = os.environ.get("JAVA_HOME") or str(java.parents[1])
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                env=environment,
                **self._as_user,
            )
        wait_until(self._answers, _START_SECONDS, "an answer from OpenSearch")

    def kill(self) -> None:
        """SIGKILL: what is durable is in the translog."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError((self.directory / "server.log").read_text()[-2000:])
        address = f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - our own server
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False
