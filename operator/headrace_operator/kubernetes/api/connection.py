"""Finds the Kubernetes API and credentials: in a kubeconfig or a pod's service account.

The official client is left out on purpose: its models alone need more memory than the whole
operator may use.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headrace_operator.kubernetes.api.exec_credentials import (
    ExecCredential,
    ExecCredentials,
    ExecError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Connection",
    "ConnectionSourceError",
    "find_connection",
    "read_kubeconfig",
    "read_kubeconfigs",
]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConnectionSourceError(Exception):
    """No cluster is configured; the message says which places were searched."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An API server and credentials. `token_path` is re-read: its content is renewed hourly.

    `plugin` provides credentials if there is neither a token nor a certificate.
    """

    server: str
    ca_path: str | None = None
    is_insecure: bool = False
    token: str | None = None
    token_path: Path | None = None
    certificate_path: str | None = None
    private_key_path: str | None = None
    plugin: ExecCredentials | None = None
    default_namespace: str = "default"

    def read_token(self) -> str | None:
        """Return the present bearer token. Raises ConnectionSourceError."""
        if self.token_path is not None:
            return self.token_path.read_text().strip()
        if self.plugin is not None and self.token is None:
            return self._ask_plugin().token
        return self.token

    def forget_token(self) -> bool:
        """Request a new token next time; return False if no plugin can provide one."""
        if self.plugin is None or self.token is not None or self.token_path is not None:
            return False
        self.plugin.forget()
        return True

    def ssl_context(self) -> ssl.SSLContext:
        """Build the TLS context for the API server."""
        context = ssl.create_default_context(cafile=self.ca_path)
        if self.is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_path is not None:
            context.load_cert_chain(self.certificate_path, self.private_key_path)
        elif self.plugin is not None:
            self._ask_plugin().load_into(context)
        return context

    def _ask_plugin(self) -> ExecCredential:
        if self.plugin is None:
            raise AssertionError("nobody asks where there is none")
        try:
            return self.plugin.get()
        except ExecError as error:
            raise ConnectionSourceError(str(error)) from error


def find_connection(kubeconfig: Path | None = None, *, context: str | None = None) -> Connection:
    """Use the given kubeconfig, $KUBECONFIG, the pod's service account, or ~/.kube/config.

    `context` names a context of the kubeconfig other than its current one.
    """
    named = os.environ.get("KUBECONFIG")
    home = Path.home() / ".kube" / "config"
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig, context)
    if named and (paths := [Path(each) for each in named.split(os.pathsep) if each]):
        # Of several files, missing ones are ignored, as by kubectl.
        return read_kubeconfigs([each for each in paths if each.exists()] or paths, context)
    if "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists():
        return _read_service_account()
    if home.exists():
        return read_kubeconfig(home, context)
    raise ConnectionSourceError(
        "no Kubernetes cluster is named: set KUBECONFIG, or run as a pod with a service account"
    )


def read_kubeconfig(path: Path, name: str | None = None) -> Connection:
    """Read a kubeconfig's context, by default the current one. Raises ConnectionSourceError."""
    return read_kubeconfigs([path], name)


def read_kubeconfigs(paths: Sequence[Path], name: str | None = None) -> Connection:
    """Read a context from several kubeconfigs, like kubectl. Raises ConnectionSourceError.

    If several files name the same entry, the first one is used, as a whole. Certificates and
    tokens, inline or in files, and `exec` plugins are supported; `auth-provider` is not.
    """
    where = os.pathsep.join(map(str, paths))
    try:
        configs = [(path, yaml.safe_load(path.read_text()) or {}) for path in paths]
        name = name or next(
            current for _, each in configs if (current := each.get("current-context"))
        )
        _, context = _named(configs, "contexts", "context", name)
        cluster_file, cluster = _named(configs, "clusters", "cluster", context["cluster"])
        user_file, user = _named(configs, "users", "user", context["user"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, StopIteration) as error:
        which = f"context {name}" if name else "current context"
        raise ConnectionSourceError(f"{where}: no usable {which} ({error!r})") from error
    token_file = user.get("tokenFile")
    return Connection(
        server=cluster["server"].rstrip("/"),
        ca_path=_file(cluster, "certificate-authority", cluster_file),
        is_insecure=bool(cluster.get("insecure-skip-tls-verify")),
        token=user.get("token"),
        token_path=user_file.parent / token_file if token_file else None,
        certificate_path=_file(user, "client-certificate", user_file),
        private_key_path=_file(user, "client-key", user_file),
        plugin=_plugin(user, cluster, user_file),
        default_namespace=context.get("namespace", "default"),
    )


def _named(
    configs: Sequence[tuple[Path, dict[str, Any]]], plural: str, kind: str, name: str
) -> tuple[Path, dict[str, Any]]:
    """Return the first entry of a name, and its file, to which relative paths refer."""
    return next(
        (path, entry[kind] or {})
        for path, config in configs
        for entry in config.get(plural) or ()
        if entry["name"] == name
    )


def _plugin(user: dict[str, Any], cluster: dict[str, Any], path: Path) -> ExecCredentials | None:
    entry = user.get("exec")
    if entry is None:
        return None
    if not {"command", "apiVersion"} <= entry.keys():
        raise ConnectionSourceError(f"{path}: a user's exec needs command and apiVersion")
    return ExecCredentials(entry, path.parent.absolute(), cluster)


def _file(entry: dict[str, Any], key: str, kubeconfig: Path) -> str | None:
    """Return the path of a credential; inline data goes into a file, as OpenSSL requires one."""
    if (data := entry.get(f"{key}-data")) is not None:
        descriptor, name = tempfile.mkstemp(prefix="headrace-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64decode(data))
        return name
    if (named := entry.get(key)) is not None:
        return str(kubeconfig.parent / named)
    return None


def _read_service_account() -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    if ":" in host:
        host = f"[{host}]"
    return Connection(
        server=f"https://{host}:{port}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        token_path=SERVICE_ACCOUNT / "token",
        default_namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
    )
