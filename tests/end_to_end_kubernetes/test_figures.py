"""How fast Topics become ready, and what thousands of them cost at rest.

The operator and its one broker are processes beside the API server. Figures are written to
`build/figures/operator.json`; what is asserted is what is promised for an idle machine.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kube import ROOT, apply, condition
from support.kube_api import Api
from support.kube_process import Served, others_stopped
from support.processes import wait_until

_FIGURES = ROOT / "build/figures/operator.json"
#: A pass over everything is made this often where looking is cheap.
_RESYNC_SECONDS = 36.0


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    found = Api()
    yield found
    found.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with others_stopped(), Served(tmp_path) as found:
        yield found


@pytest.fixture
def record() -> Callable[..., None]:
    """Return a function that writes figures down."""

    def write(**figures: float | str) -> None:
        _FIGURES.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(_FIGURES.read_text()) if _FIGURES.exists() else {}
        rounded = {
            name: value if isinstance(value, str) else round(value, 4)
            for name, value in figures.items()
        }
        _FIGURES.write_text(json.dumps(known | rounded, indent=1, sort_keys=True) + "\n")

    return write


def seconds_to_ready(api: Api, document: dict[str, Any]) -> float:
    """Create a resource and poll until it is ready."""
    began = time.monotonic()
    api.call("POST", api.path(document), document)
    path = api.path(document, document["metadata"]["name"])
    while condition(api.call("GET", path)).get("status") != "True":
        if time.monotonic() - began > 30:
            raise TimeoutError(f"{path} is not ready")
        time.sleep(0.005)
    return time.monotonic() - began


def test_a_topic_is_ready_soon_after_it_was_applied(
    served: Served, api: Api, record: Callable[..., None]
) -> None:
    times = [
        seconds_to_ready(api, served.topic(f"t-{number}", partitions=3)) for number in range(25)
    ]
    record(topic_ready_seconds_median=statistics.median(times), topic_ready_seconds_max=max(times))
    assert statistics.median(times) < 0.3


def make(served: Served, api: Api, topics: int, groups: int, seconds: float = 250) -> float:
    """Create so many of both, and wait until all are ready; return how long it took."""
    began = time.monotonic()
    api.create_all([served.topic(f"t-{number}") for number in range(topics)])
    api.create_all([served.group(f"g-{number}", topics=["t-0"]) for number in range(groups)])
    for plural, count in (("topics", topics), ("consumergroups", groups)):
        wait_ready(served, api, plural, count, seconds)
    return time.monotonic() - began


def wait_ready(served: Served, api: Api, plural: str, count: int, seconds: float) -> None:
    """Wait until so many are ready. To list thousands costs: it is done once a second."""
    deadline = time.monotonic() + seconds
    while (ready := api.count_ready(served.namespace, plural)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ready} of {count} {plural} are ready after {seconds} s")
        time.sleep(1)


@pytest.mark.slow
def test_a_thousand_topics_at_once_are_made_in_few_calls(
    served: Served, api: Api, record: Callable[..., None]
) -> None:
    """From the start of `kubectl apply`, which sends one after the other, until all are ready."""
    passes = "headrace_operator_reconciliations_total"
    before, cpu = served.operator.metric(passes), served.operator.process.cpu_seconds()
    began = time.monotonic()
    apply(*(served.topic(f"t-{number}") for number in range(1000)))
    applied = time.monotonic() - began
    wait_ready(served, api, "topics", 1000, 250)
    took = time.monotonic() - began
    made = served.operator.metric(passes) - before
    record(
        thousand_topics_applied_seconds=applied,
        thousand_topics_ready_seconds=took,
        thousand_topics_passes=made,
        thousand_topics_operator_cpu_seconds=served.operator.process.cpu_seconds() - cpu,
    )
    assert took < 60
    assert made < 100


def rest(served: Served, api: Api, seconds: float) -> dict[str, Any]:
    """Wait until nothing is written any more, then see what rest costs for so long."""
    wait_until(lambda: is_quiet(served, 5), 300, "the operator to have nothing left to write")
    namespace = served.namespace
    before = {plural: api.versions(namespace, plural) for plural in ("topics", "consumergroups")}
    writes, cpu = served.operator.writes_by_kind(), served.operator.process.cpu_seconds()
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    after = {plural: api.versions(namespace, plural) for plural in before}
    return {
        "rest_cpu_share": (served.operator.process.cpu_seconds() - cpu) / elapsed,
        "rest_rss_megabytes": served.operator.process.rss_bytes() / 1e6,
        "rest_writes": written(writes, served.operator.writes_by_kind()),
        "rest_changed": sum(before[plural] != after[plural] for plural in before),
    }


def written(before: dict[str, float], after: dict[str, float]) -> str:
    """Say what was written in between, and nothing where nothing was."""
    more = {kind: count - before.get(kind, 0.0) for kind, count in sorted(after.items())}
    return ", ".join(f"{count:.0f} {kind}" for kind, count in more.items() if count)


def is_quiet(served: Served, seconds: float) -> bool:
    """Whether nothing was written for a while."""
    before = served.operator.writes()
    time.sleep(seconds)
    return served.operator.writes() == before


def test_nothing_is_written_at_rest_and_after_a_restart(served: Served, api: Api) -> None:
    make(served, api, 200, 20)
    found = rest(served, api, _RESYNC_SECONDS)
    assert (found["rest_writes"], found["rest_changed"]) == ("", 0)
    before = (
        api.versions(served.namespace, "topics"),
        api.versions(served.namespace, "consumergroups"),
    )
    served.operator.stop()
    served.operator.start()
    time.sleep(5)
    assert served.operator.writes() == 0
    assert before == (
        api.versions(served.namespace, "topics"),
        api.versions(served.namespace, "consumergroups"),
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_at_rest_cost_little(
    served: Served, api: Api, record: Callable[..., None]
) -> None:
    took = make(served, api, 5000, 500, seconds=2400)
    # Everything is looked at every few minutes: three could have two such looks in them, or none.
    found = rest(served, api, 300)
    record(five_thousand_topics_seconds=took, **found)
    assert (found["rest_writes"], found["rest_changed"]) == ("", 0)
    assert found["rest_cpu_share"] < 0.02
    assert found["rest_rss_megabytes"] < 200
