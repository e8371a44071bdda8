"""Where Spark's own pages are: on the terminal under `headrace up`, in the status in Kubernetes."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace_cli.up.board import Board
from headrace_cli.up.views import JobView
from headrace_jobs.jobs.runner import _say_where_pages_are
from headrace_operator.kubernetes.spark.states import Decision, State
from headrace_operator.kubernetes.spark.status import render_status
from headrace_operator.local.backend import LocalBackend, _RunningApplication
from headrace_operator.local.layout import ClusterLayout
from headrace_operator.local.processes import ProcessSpec, SupervisedProcess
from headrace_operator.resources import SparkApplication, parse_resource
from support.processes import free_port
from support.spark_world import World, application, rendered


class Events:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.states: dict[str, str | None] = {}

    def event(self, text: str, *, is_problem: bool = False) -> None:
        assert not is_problem
        self.events.append(text)

    def status(self, name: str, text: str | None) -> None:
        self.states[name] = text

    def results(self, *_: Any) -> None:
        """Nothing is read."""

    def close(self) -> None:
        """Nothing is open."""


def test_the_terminal_says_where_the_pages_are_once_a_job_has_them(tmp_path: Path) -> None:
    layout, display = ClusterLayout(root=tmp_path), Events()
    backend = LocalBackend(cluster="c", layout=layout, on_event=lambda _: None)
    resource = parse_resource(application())
    assert isinstance(resource, SparkApplication)
    address = layout.jobs_directory / "job" / "metrics.address"
    address.parent.mkdir(parents=True)
    url = "http://127.0.0.1:4040"
    command = (sys.executable, "-c", "import time; time.sleep(600)")

    async def scenario() -> None:
        spec = ProcessSpec(name="job-job", command=command, log_path=tmp_path / "log")
        process = SupervisedProcess(spec, lambda _: None)
        await process.start()
        backend._applications[resource.key] = _RunningApplication(
            resource=resource,
            fingerprint="",
            process=process,
            metrics=f"http://127.0.0.1:{free_port()}/metrics",
        )
        job = JobView(name="job", key=resource.key, input_topic=None, output_topic=None, group=None)
        board = Board(backend, display)
        try:
            for pages in (None, url, url, None):
                _say_where_pages_are(pages, address)
                await board._show_job(job, None)
                board._show_addresses([job])
                assert display.states["Spark's pages"] == (pages and f"job job: {pages}")
        finally:
            await process.stop()
        assert backend.spark_pages_of(resource.key) is None

    asyncio.run(scenario())
    assert [each for each in display.events if "pages" in each] == [
        "job job: Spark's pages at http://127.0.0.1:4040"
    ]


@pytest.mark.parametrize(
    ("spec", "pages"),
    [
        ({}, {"webUIServiceName": "job-ui-svc", "webUIPort": 4040, "host": "job-ui-svc.data.svc"}),
        (
            {"sparkUIOptions": {"servicePort": 80}},
            {"webUIServiceName": "job-ui-svc", "webUIPort": 80, "host": "job-ui-svc.data.svc"},
        ),
        ({"sparkConf": {"spark.ui.enabled": "false"}}, {}),
    ],
)
def test_the_status_says_where_the_pages_are(spec: dict[str, Any], pages: dict[str, Any]) -> None:
    seen = World(**spec).seen()
    info = render_status(seen, Decision(state=State.RUNNING))["driverInfo"]
    assert info.pop("podName") == "job-driver"
    host = pages.pop("host", None)
    if host is not None:
        pages["webUIAddress"] = f"{host}:{pages['webUIPort']}"
        ports = rendered(application(**spec), "Service")["spec"]["ports"]
        assert pages["webUIPort"] in [each["port"] for each in ports]
    assert info == pages
