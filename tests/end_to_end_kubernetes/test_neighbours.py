"""An operator for all namespaces beside one for a single namespace: each thing has one of them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.kube import ROOT, apply, condition, get, kubectl, resource
from support.kube_process import OperatorProcess, free_namespace, others_stopped
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_WORKED = "headrace_operator_last_success_timestamp_seconds"


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two: the first one gets an operator of its own."""
    kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "crds"))
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    names = free_namespace(), free_namespace()
    yield names
    kubectl("delete", "namespace", "--wait=false", *names)


def asked(namespace: str, name: str, wide: OperatorProcess) -> float:
    """Ask for a Topic of no Cluster; return since when the wide operator looks there."""
    apply(resource("Topic", namespace, name, clusterRef={"name": f"none-{name}"}))
    wait_until(
        lambda: condition(get(namespace, "topic", name)).get("reason") == "ClusterNotFound",
        60,
        f"{namespace}/{name} to be looked at",
    )
    return wide.metric(_WORKED, f'namespace="{namespace}"', f'name="none-{name}"')


def test_one_for_all_stands_aside_for_one_of_a_single_namespace(
    namespaces: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    own, other = namespaces
    folders = [tmp_path_factory.mktemp(name) for name in ("wide", "narrow")]
    with ExitStack() as stack:
        stack.enter_context(others_stopped())
        wide = OperatorProcess(folders[0], [], {}, f"--lease-namespace={other}")
        stack.enter_context(wide)
        assert asked(own, "before", wide) > 0
        narrow = stack.enter_context(OperatorProcess(folders[1], [own], {}))
        wait_until(lambda: "stands aside" in wide.log(), 60, "it to be said")
        (said,) = [line for line in wide.log().splitlines() if "stands aside" in line]
        assert own in said
        assert f"{own}/headrace-operator" in said
        assert asked(own, "beside", wide) == 0
        assert narrow.metric(_WORKED, f'namespace="{own}"', 'name="none-beside"') > 0
        assert asked(other, "elsewhere", wide) > 0
        assert narrow.metric(_WORKED, f'namespace="{other}"') == 0
        # One that begins later finds it so, too.
        wide.stop()
        wide.start()
        assert asked(own, "again", wide) == 0
        assert asked(other, "again", wide) > 0
