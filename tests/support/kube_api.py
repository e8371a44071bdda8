"""The API server over plain connections, for thousands of requests: kubectl takes too long."""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPSConnection, RemoteDisconnected
from ssl import SSLContext, SSLError
from threading import local
from typing import Any
from urllib.parse import urlsplit

from headrace_operator.kubernetes.api.connection import find_connection
from support.kube import condition

_WRITERS = 16
GROUP_VERSION = "/apis/headrace.dev/v1beta1"


class Api:
    """The API server, over one connection for each thread: kubectl itself takes too long."""

    def __init__(self) -> None:
        self._connection = find_connection(None)
        self._ssl: SSLContext | None = self._connection.ssl_context() or None
        self._own = local()
        self._opened: list[HTTPSConnection] = []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; raises RuntimeError with the refusal."""
        if not hasattr(self._own, "http"):
            server = urlsplit(self._connection.server)
            self._own.http = HTTPSConnection(
                server.hostname or "", server.port, context=self._ssl, timeout=60
            )
            self._opened.append(self._own.http)
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"Content-Type": f"application/{kind}", "Accept": "application/json"}
        if (token := self._connection.read_token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body)
        try:
            self._own.http.request(method, path, body=data, headers=headers)
            response = self._own.http.getresponse()
        except (RemoteDisconnected, ConnectionError, SSLError):
            # The server closes what was idle for long; the same object opens another connection.
            self._own.http.close()
            self._own.http.request(method, path, body=data, headers=headers)
            response = self._own.http.getresponse()
        content = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {content[:500]!r}")
        return json.loads(content)

    def close(self) -> None:
        """Close all connections."""
        for each in self._opened:
            each.close()

    def path(self, document: dict[str, Any], name: str = "") -> str:
        """Return where a resource is, or without a name where those of its kind are."""
        plural = document["kind"].lower() + "s"
        base = f"{GROUP_VERSION}/namespaces/{document['metadata']['namespace']}/{plural}"
        return f"{base}/{name}" if name else base

    def create_all(self, documents: list[dict[str, Any]]) -> None:
        """Create many at once."""
        with ThreadPoolExecutor(_WRITERS) as threads:
            for _ in threads.map(lambda each: self.call("POST", self.path(each), each), documents):
                pass

    def delete_all(self, paths: list[str]) -> None:
        """Delete many at once."""
        with ThreadPoolExecutor(_WRITERS) as threads:
            for _ in threads.map(lambda each: self.call("DELETE", each), paths):
                pass

    def count_ready(self, namespace: str, plural: str) -> int:
        """Count resources whose Ready condition is true."""
        path = f"{GROUP_VERSION}/namespaces/{namespace}/{plural}?resourceVersion=0"
        items = self.call("GET", path)["items"]
        return sum(condition(each).get("status") == "True" for each in items)

    def versions(self, namespace: str, plural: str) -> dict[str, str]:
        """Return the resourceVersion of each resource."""
        items = self.call("GET", f"{GROUP_VERSION}/namespaces/{namespace}/{plural}")["items"]
        return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in items}
