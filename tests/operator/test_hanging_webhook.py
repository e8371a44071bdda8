"""An admission webhook that never answers: the API server is real, and so is the webhook."""

import base64
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.control_plane import own_api_server
from support.kube import apply, condition, get, kubectl, resource
from support.kube_process import Served
from support.processes import LOOPBACK, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NAME = "hangs.headrace.dev"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("webhook")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with own_api_server(folder), Served(folder) as found:
        yield found


@contextmanager
def hanging_webhook(signed: Path, resources: list[str], seconds: int = 30) -> Iterator[list[str]]:
    """Let a webhook be asked about objects, and not answer. Yields what it was asked.

    `seconds`: how long the API server waits for it.
    """
    asked: list[str] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            ended.wait()

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The API server's own certificate is for the same address.
    context.load_cert_chain(signed / "apiserver.crt", signed / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rule = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": resources,
    }
    webhook = {
        "name": NAME,
        "clientConfig": {
            "url": f"https://{LOOPBACK}:{server.server_port}/",
            "caBundle": base64.b64encode((signed / "ca.crt").read_bytes()).decode(),
        },
        "rules": [rule],
        "timeoutSeconds": seconds,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [webhook],
        }
    )
    try:
        yield asked
    finally:
        kubectl("delete", "validatingwebhookconfiguration", NAME)
        ended.set()
        server.shutdown()
        server.server_close()


def test_a_webhook_that_hangs_holds_up_only_what_it_is_asked_about(
    served: Served, folder: Path
) -> None:
    spec = {"pools": [{"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}]}

    def says() -> str:
        found = condition(served.get("Cluster", "m"), "Reconciling")
        return str(found.get("message", "")) if found.get("status") == "True" else ""

    with hanging_webhook(folder / "plane", ["services"]) as asked:
        apply(resource("Cluster", served.namespace, "m", **spec))
        wait_until(lambda: asked, 30, "the webhook to be asked")
        wait_until(lambda: get(served.namespace, "statefulset", "m-a"), 25, "the set, beside that")
        # One wait is for all Services: the next would hang as well.
        wait_until(lambda: "Service m-" in says(), 25, "the Service to be named")
        assert "imeout" in says()
        assert not get(served.namespace, "service", "m-brokers")
    wait_until(lambda: get(served.namespace, "service", "m-brokers"), 60, "the Services")
    wait_until(lambda: "Service m-" not in says(), 60, "the reason to go")


@pytest.mark.parametrize("seconds", [30, 5])
def test_a_webhook_that_hangs_on_a_status_holds_up_only_that(
    served: Served, folder: Path, seconds: int
) -> None:
    many = [f"many{seconds}-{number}" for number in range(40)]
    later, readers = f"later{seconds}", f"g{seconds}"

    def failed() -> float:
        name = "headrace_operator_reconciliations_total"
        return served.operator.metric(name, 'result="error"')

    def warned() -> bool:
        events = get(served.namespace, "events")["items"]
        return any("its status cannot be written" in each["message"] for each in events)

    before = failed()
    with hanging_webhook(folder / "plane", ["topics/status"], seconds) as asked:
        apply(*(served.topic(name) for name in many), served.group(readers, topics=many))
        wait_until(lambda: asked, 30, "the webhook to be asked")
        served.wait_ready("ConsumerGroup", readers, 60)
        assert served.topics() >= set(many)
        apply(served.topic(later))
        wait_until(lambda: later in served.topics(), 60, "a topic that came later")
        wait_until(warned, 30, "an Event")
        assert not served.ready("Topic", later)
        assert served.ready("Cluster", "c") == "True"
        # Of those that were sent at once, and hardly any since.
        assert len(asked) < len(many)
    for name in (*many, later):
        served.wait_ready("Topic", name, 120)
    assert failed() == before
