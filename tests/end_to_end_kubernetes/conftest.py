"""End-to-end tests on a real Kubernetes: any cluster that KUBECONFIG names.

Without KUBECONFIG nothing here runs, and the last lines of pytest's output say so. With it, the
CRDs and the operator are installed from the manifests; each test gets a namespace of its own where
Pod Security `restricted` is enforced; what a failed test left goes to build/end-to-end/TEST/.

    KUBECONFIG     the cluster. Images headrace/headrace and headrace/jobs must be on its nodes.
    KUBELAB        the command of the lab that runs it, if it is one: tests that kill the API server
                   and etcd run only there, and volumes are made by it.
    HEADRACE_TEST_SCOPE   a short name: the operator gets a namespace of its own and serves this
                   run's namespaces alone, so that several runs share a cluster.
    HEADRACE_TEST_IMAGE   what operator and brokers run, if not the image that the manifests name.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace_operator.kubernetes.api.rights import Right
from support.kube import RESTRICTED, ROOT, KubeLab, KubeOperator, apply, collect, kubectl
from support.kube_rights import used
from support.kube_traffic import PAUSES, write_pauses

_HERE = Path(__file__).parent
_SCOPE = os.environ.get("HEADRACE_TEST_SCOPE", "")
# An operator with a list of namespaces watches each one apart.
_NAMESPACES_MAX = 12
_NAMESPACE_SECONDS = 120
_NAMES = [f"{_SCOPE or 'headrace-test'}-{number}" for number in range(_NAMESPACES_MAX)]
#: Free ones of the lab for a namespace: a volume that was used once is not free again.
_VOLUMES = 60
_MISSING = "KUBECONFIG is not set: no end-to-end test on Kubernetes was run"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here without a cluster."""
    if os.environ.get("KUBECONFIG"):
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=_MISSING))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what was not run; and how long clients waited in what was."""
    if PAUSES:
        write_pauses()
        terminalreporter.section("longest pauses of clients", sep="-")
        for each in PAUSES:
            waited = f"writes {each.write_seconds:6.2f} s, reads {each.read_seconds:6.2f} s"
            terminalreporter.line(f"{waited}: {each.during} ({each.records} records)")
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(1 for each in skipped if _MISSING in str(each.longrepr))
    if count:
        terminalreporter.section("KUBERNETES: NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"{_MISSING} ({count} skipped). `make end-to-end` runs them.")
    count = sum(1 for each in skipped if "NODES: " in str(each.longrepr))
    if count:
        terminalreporter.section("SEVERAL NODES: NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(f"{count} skipped: they need a cluster, or a lab, of three nodes.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Write down what is there before a failed test's namespaces go."""
    report = yield
    if report.failed and report.when in ("setup", "call"):  # type: ignore[attr-defined]  # a report
        operator = getattr(item, "funcargs", {}).get("operator")
        for name in _used_by(item):
            folder = collect(name, item.nodeid)
            if operator is not None:
                (folder / "operator.log").write_text(operator.logs(), encoding="utf-8")
            report.sections.append(("Kubernetes", f"objects and logs: {folder.relative_to(ROOT)}"))  # type: ignore[attr-defined]  # a report
    return report


def _used_by(item: pytest.Item) -> list[str]:
    arguments = getattr(item, "funcargs", {})
    return [arguments[name] for name in ("namespace", "shared_namespace") if name in arguments]


@pytest.fixture(scope="session")
def lab() -> KubeLab:
    """The lab, whether the cluster is one or not (`lab.is_there`)."""
    return KubeLab()


@pytest.fixture
def nodes_lab(lab: KubeLab) -> KubeLab:
    """The lab, a node of which may be powered off; elsewhere that is said loudly."""
    if not lab.is_there:
        pytest.skip("NODES: only a lab's node may be powered off")
    return lab


@pytest.fixture(scope="session")
def operator() -> Iterator[KubeOperator]:
    """The operator of this run, installed."""
    image = os.environ.get("HEADRACE_TEST_IMAGE", "")
    found = KubeOperator(scope=_SCOPE, namespaces=_NAMES if _SCOPE else [], image=image)
    found.install()
    yield found
    found.uninstall()


@pytest.fixture(scope="session")
def rights() -> set[Right]:
    """What the operator's requests have needed so far."""
    return set()


@pytest.fixture(autouse=True)
def _note_rights(request: pytest.FixtureRequest, rights: set[Right]) -> Iterator[None]:
    """Note them after each test: an operator that is killed in the next one forgets."""
    yield
    if "operator" in request.fixturenames:
        # It may be gone: then the next test's operator does the same again.
        with suppress(RuntimeError, IndexError):
            rights |= used(request.getfixturevalue("operator").metrics())
    served = request.node.funcargs.get("served")
    if served is not None:
        # Its operator may have been stopped: then it has no page.
        rights |= used(served.metrics())


@pytest.fixture(scope="session")
def new_namespace(operator: KubeOperator, lab: KubeLab) -> Iterator[Callable[..., str]]:
    """Return a function that makes an empty namespace; all are deleted before the operator goes."""
    assert operator.pods()
    names = itertools.cycle(_NAMES)
    made: list[str] = []

    def make(**labels: str) -> str:
        deadline = time.monotonic() + _NAMESPACE_SECONDS
        while kubectl("get", "namespace", "--ignore-not-found", "-o", "name", name := next(names)):
            assert time.monotonic() < deadline, "no namespace is free"
            time.sleep(0.2)
        if lab.is_there:
            lab.add_volumes(_VOLUMES)
        metadata = {"name": name, "labels": {**RESTRICTED, **labels}}
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        made.append(name)
        return name

    yield make
    if made:
        kubectl("delete", "namespace", "--ignore-not-found", "--wait=false", *made)


@pytest.fixture
def namespace(new_namespace: Callable[..., str]) -> Iterator[str]:
    """A namespace of this test alone."""
    name = new_namespace()
    yield name
    kubectl("delete", "namespace", "--ignore-not-found", "--wait=false", name)


@pytest.fixture(scope="module")
def shared_namespace(new_namespace: Callable[..., str]) -> Iterator[str]:
    """A namespace of this module's tests."""
    name = new_namespace()
    yield name
    kubectl("delete", "namespace", "--ignore-not-found", "--wait=false", name)
