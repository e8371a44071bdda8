"""Credentials from a kubeconfig's `exec` plugin (client.authentication.k8s.io).

Owns the plugin's process and its latest output. The plugin runs again when its credentials are
about to expire, or when the API server rejected them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import ssl
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ExecCredential", "ExecCredentials", "ExecError"]

#: A plugin may open a browser and wait for the user.
PLUGIN_SECONDS_MAX = 300
RENEWAL_MARGIN = dt.timedelta(seconds=10)
NEVER = "Never"


class ExecError(Exception):
    """The plugin provided no credentials; the message says why."""


@dataclass(frozen=True, kw_only=True)
class ExecCredential:
    """A plugin's credentials: a token, or a certificate with its key, and the expiry time."""

    token: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    expires: dt.datetime | None = None

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the client certificate into TLS, if there is one. OpenSSL requires a file."""
        if self.certificate is None or self.private_key is None:
            return
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            file = Path(folder) / "certificate.pem"
            file.touch(mode=0o600)
            file.write_text(f"{self.certificate}\n{self.private_key}\n")
            context.load_cert_chain(file)


@dataclass
class ExecCredentials:
    """A user's `exec` in a kubeconfig. `folder`: the base of a relative command."""

    entry: dict[str, Any]
    folder: Path
    cluster: dict[str, Any] = field(default_factory=dict)
    _last: ExecCredential | None = None

    def get(self) -> ExecCredential:
        """Return valid credentials. Raises ExecError."""
        last = self._last
        if last is None or (
            last.expires is not None and dt.datetime.now(dt.UTC) + RENEWAL_MARGIN >= last.expires
        ):
            last = self._last = self._run()
        return last

    def forget(self) -> None:
        """Run the plugin next time: its credentials were rejected."""
        self._last = None

    def _run(self) -> ExecCredential:
        command = str(self.entry["command"])
        if os.sep in command:
            command = str(self.folder / command)
        interactive = self.entry.get("interactiveMode", "IfAvailable") != NEVER
        interactive = interactive and sys.stdin.isatty()
        try:
            done = subprocess.run(  # noqa: S603 - the kubeconfig's own command
                [command, *(self.entry.get("args") or ())],
                env={**os.environ, **self._environment(interactive=interactive)},
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=PLUGIN_SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            hint = self.entry.get("installHint") or ""
            raise ExecError(f"credential plugin {command}: {error}\n{hint}".rstrip()) from error
        if done.returncode:
            raise ExecError(f"credential plugin {command} ended with {done.returncode}")
        return _read_credential(command, done.stdout)

    def _environment(self, *, interactive: bool) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": interactive}
        if self.entry.get("provideClusterInfo"):
            spec["cluster"] = self.cluster
        asked = {"apiVersion": self.entry["apiVersion"], "kind": "ExecCredential", "spec": spec}
        named = {each["name"]: str(each["value"]) for each in self.entry.get("env") or ()}
        return {**named, "KUBERNETES_EXEC_INFO": json.dumps(asked)}


def _read_credential(command: str, printed: bytes) -> ExecCredential:
    try:
        status = json.loads(printed)["status"]
        expires = status.get("expirationTimestamp")
        found = ExecCredential(
            token=status.get("token"),
            certificate=status.get("clientCertificateData"),
            private_key=status.get("clientKeyData"),
            expires=None if expires is None else dt.datetime.fromisoformat(expires),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExecError(f"credential plugin {command} printed no ExecCredential") from error
    if found.token is None and found.certificate is None:
        raise ExecError(f"credential plugin {command} gave neither a token nor a certificate")
    return found
