"""A search server's HTTP with refusals of its own: whole requests, or documents of a bulk.

What a server does that is overloaded, starts, or is gone, at will: everything else is passed on to
the real one.
"""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.processes import LOOPBACK

_REFUSAL = {"error": {"type": "refused", "reason": "for now"}}


class RefusingProxy:
    """What is refused next. A status of 0 hangs up."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        #: Of the next requests.
        self.refusals: list[int] = []
        #: Of the next bulk items, by document.
        self.refused_documents: dict[str, list[int]] = {}
        #: How many documents each bulk request had.
        self.bulk_sizes: list[int] = []

    def bulk(self, body: bytes) -> tuple[bytes, dict[int, Any]]:
        """Return what is left to pass on, and by their places the answers to what is refused."""
        lines = body.decode().splitlines()
        actions = [json.loads(line) for line in lines[::2]]
        self.bulk_sizes.append(len(actions))
        kept, refused = [], {}
        for place, action in enumerate(actions):
            ((name, what),) = action.items()
            statuses = self.refused_documents.get(what["_id"])
            if statuses:
                refused[place] = {name: {"_id": what["_id"], "status": statuses.pop(), **_REFUSAL}}
            else:
                kept += lines[2 * place : 2 * place + 2]
        return ("\n".join(kept) + "\n").encode(), refused


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: RefusingProxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.proxy.refusals:
            self._refuse(self.proxy.refusals.pop())
            return
        refused: dict[int, Any] = {}
        if self.path.startswith("/_bulk"):
            body, refused = self.proxy.bulk(body)
        if refused and not body.strip():
            self._answer(200, json.dumps({"items": []}).encode(), refused)
        else:
            self._answer(*self._asked(body), refused)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the base class's names

    def _asked(self, body: bytes) -> tuple[int, bytes]:
        kind = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.proxy.target}{self.path}", body or None, kind, method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def _refuse(self, status: int) -> None:
        if status:
            self._answer(status, json.dumps(_REFUSAL).encode(), {})
        else:
            self.close_connection = True

    def _answer(self, status: int, body: bytes, refused: dict[int, Any]) -> None:
        if refused:
            found = json.loads(body)
            for place, item in sorted(refused.items()):
                found["items"].insert(place, item)
            body = json.dumps(found | {"errors": True}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def refusing_proxy(target: str) -> Iterator[RefusingProxy]:
    """Serve in front of the server at `target`, on a port of its own."""
    proxy = RefusingProxy(target)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    server = ThreadingHTTPServer((LOOPBACK, 0), handler)
    proxy.url = f"http://{LOOPBACK}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
