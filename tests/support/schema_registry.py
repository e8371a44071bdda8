"""A registry of schemas that tests fill: the HTTP of Confluent's API, with their own answers."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.processes import LOOPBACK, free_port

Answer = Callable[[str, str], dict[str, Any] | None]
"""Of a path and a query; None is 404."""


class _Api(BaseHTTPRequestHandler):
    asked: list[str]
    answer: Answer

    def do_GET(self) -> None:
        self.asked.append(self.path)
        path, _, query = self.path.partition("?")
        found = type(self).answer(path, query)
        body = json.dumps({"error_code": 40402} if found is None else found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serving_schemas(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Return the registry's URL, and the paths that it is asked for, in their order."""
    asked: list[str] = []
    handler = type("Handler", (_Api,), {"asked": asked, "answer": staticmethod(answer)})
    server = ThreadingHTTPServer((LOOPBACK, free_port()), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
