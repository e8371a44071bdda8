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
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

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
#: Besides letters and digits (RFC 9110, without %, which escapes the others).
_HEADER_SAFE = "!#$&'*+-.^_`|~"
#: Credentials that are supported, and those that are not.
_SUPPORTED = ("token", "tokenFile", "client-certificate", "client-certificate-data", "exec")
_UNSUPPORTED = ("auth-provider", "username")


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
    #: The name in the server's certificate, if it is not the server's host.
    tls_server_name: str | None = None
    #: An http:// proxy in front of the API server.
    proxy_url: str | None = None
    #: Headers that make the user act as somebody else; a group each has one.
    impersonation: tuple[tuple[str, str], ...] = ()
    default_namespace: str = "default"

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that say who we are. Raises ConnectionSourceError."""
        token = self.read_token()
        own = [] if token is None else [("Authorization", f"Bearer {token}")]
        return [*own, *self.impersonation]

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
        if self.tls_server_name is not None:
            context = _ContextForName(self.tls_server_name, self.ca_path)
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


class _ContextForName(ssl.SSLContext):
    """TLS that expects a certificate of a certain name, whatever host is connected to.

    Clients pass the host of the URL, and not all of them can be told another name.
    """

    name: str

    def __new__(cls, name: str, ca_path: str | None) -> Self:
        """`ca_path` None: the system's authorities."""
        context = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        context.name = name
        if ca_path is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(ca_path)
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """See SSLContext: asyncio calls it for each connection."""
        return super().wrap_bio(*arguments, **{**named, "server_hostname": self.name})


def find_connection(kubeconfig: Path | None = None, *, context: str | None = None) -> Connection:
    """Use the given kubeconfig, $KUBECONFIG, ~/.kube/config, or the pod's service account.

    The order is kubectl's. `context` names a context of the kubeconfig other than its current one;
    with it the service account is never used: it may be of another cluster.
    """
    named = os.environ.get("KUBECONFIG")
    home = Path.home() / ".kube" / "config"
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig, context)
    if named and (paths := [Path(each) for each in named.split(os.pathsep) if each]):
        # Of several files, missing ones are ignored, as by kubectl.
        return read_kubeconfigs([each for each in paths if each.exists()] or paths, context)
    is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists()
    if is_pod and context is None and not _has_current_context(home):
        return _read_service_account()
    if os.path.exists(home):  # noqa: PTH110 - Path.exists raises in a folder that is not ours
        return read_kubeconfig(home, context)
    if context is not None:
        raise ConnectionSourceError(
            f"there is no kubeconfig that could have the context {context}: set KUBECONFIG"
        )
    raise ConnectionSourceError(
        "no Kubernetes cluster is named: set KUBECONFIG, or run as a pod with a service account"
    )


def _has_current_context(path: Path) -> bool:
    """Whether a kubeconfig is there and names a context. One that is unreadable is not there."""
    try:
        config = yaml.safe_load(path.read_text())
    except OSError:
        return False
    except yaml.YAMLError as error:
        raise ConnectionSourceError(f"{path}: no usable kubeconfig ({error!r})") from error
    return isinstance(config, dict) and bool(config.get("current-context"))


def read_kubeconfig(path: Path, name: str | None = None) -> Connection:
    """Read a kubeconfig's context, by default the current one. Raises ConnectionSourceError."""
    return read_kubeconfigs([path], name)


def read_kubeconfigs(paths: Sequence[Path], name: str | None = None) -> Connection:
    """Read a context from several kubeconfigs, like kubectl. Raises ConnectionSourceError.

    If several files name the same entry, the first one is used, as a whole. Certificates and
    tokens, inline or in files, `exec` plugins, impersonation and http:// proxies are supported;
    what is not is refused by its name.
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
    for key in _UNSUPPORTED:
        if user.get(key) and not any(map(user.get, _SUPPORTED)):
            raise ConnectionSourceError(
                f"{user_file}: user {context['user']}: {key} is not supported; use exec, a token or"
                " a certificate"
            )
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
        tls_server_name=cluster.get("tls-server-name") or None,
        proxy_url=_proxy(cluster, cluster_file),
        impersonation=_impersonation(user, user_file),
        default_namespace=context.get("namespace") or "default",
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


def _proxy(cluster: dict[str, Any], path: Path) -> str | None:
    url = cluster.get("proxy-url") or None
    if url is not None and urlsplit(url).scheme != "http":
        raise ConnectionSourceError(f"{path}: proxy-url {url}: only http:// proxies are supported")
    return url


def _impersonation(user: dict[str, Any], path: Path) -> tuple[tuple[str, str], ...]:
    """Return the headers of `as` and what goes with it, like client-go."""
    name, uid = user.get("as"), user.get("as-uid")
    groups, extra = user.get("as-groups") or (), user.get("as-user-extra") or {}
    if not name:
        if uid or groups or extra:
            raise ConnectionSourceError(
                f"{path}: as-groups, as-uid and as-user-extra of a user need its `as`"
            )
        return ()
    found = [("Impersonate-User", str(name))]
    if uid:
        found.append(("Impersonate-Uid", str(uid)))
    found += [("Impersonate-Group", str(group)) for group in groups]
    for key, values in extra.items():
        # Keys may have characters that headers must not: example.org/reason.
        header = f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}"
        found += [(header, str(value)) for value in values]
    return tuple(found)


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
