"""A watch whose connection is silent: `/healthz` says so, and new watches tell what was missed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from support.freezing_proxy import FreezingProxy
from support.kube import apply, kubectl
from support.kube_process import Served, others_stopped
from support.processes import LOOPBACK, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Watches are compared with lists so often; one may be late by two of these.
PROBE_SECONDS = 1.0


@pytest.fixture
def proxy() -> Iterator[FreezingProxy]:
    server = urlsplit(kubectl("config", "view", "--minify", "-o", "jsonpath={..server}"))
    with FreezingProxy((server.hostname or "", server.port or 443)) as found:
        yield found


@pytest.fixture
def served(tmp_path: Path, proxy: FreezingProxy) -> Iterator[Served]:
    config: dict[str, Any] = json.loads(
        kubectl("config", "view", "--minify", "--flatten", "-o", "json")
    )
    cluster = config["clusters"][0]["cluster"]
    cluster.pop("certificate-authority-data", None)
    cluster["server"] = f"https://{LOOPBACK}:{proxy.port}"
    # The API server's certificate need not be good for the proxy's address.
    cluster["insecure-skip-tls-verify"] = True
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    more = ("--kubeconfig", str(path), "--probe-seconds", str(PROBE_SECONDS))
    with others_stopped(), Served(tmp_path, *more) as found:
        yield found


def test_healthz_fails_while_a_watch_is_silent(served: Served, proxy: FreezingProxy) -> None:
    apply(served.topic("before"))
    served.wait_ready("Topic", "before")
    assert served.operator.fetch("/healthz") == (200, "ok\n")
    assert proxy.freeze()
    apply(served.topic("unseen"))
    wait_until(
        lambda: served.operator.fetch("/healthz")[0] == 503, 60, "the stale watch to be noticed"
    )
    assert served.operator.metric("headrace_operator_watch_stale_seconds", 'kind="Topic"') > 0
    # Another process, which is what a failed liveness probe gives, sees what this one missed.
    served.operator.process.kill()
    served.operator.start()
    served.wait_ready("Topic", "unseen", 60)
    assert served.operator.fetch("/healthz") == (200, "ok\n")
