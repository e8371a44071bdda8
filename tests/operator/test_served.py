"""The operator's process with an API server of the test's own: namesakes, refusals, leftovers.

One broker is reached beside it. There is no kubelet and no controller: sets make no pods, and what
has owners stays until a test deletes it.
"""

from collections.abc import Iterator

import pytest

from support.control_plane import own_api_server
from support.kube import apply, kubectl
from support.kube_process import Served
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with own_api_server(folder), Served(folder) as found:
        yield found


def delete(served: Served, kind: str, name: str) -> None:
    kubectl("-n", served.namespace, "delete", kind, name, "--wait=false")
    wait_until(lambda: not served.get(kind, name), 30, f"{kind} {name} to go")


def test_a_cluster_that_is_made_again_keeps_the_topics_of_its_former_topics(served: Served) -> None:
    for name in ("before", "between"):
        apply(served.topic(name, deletionPolicy="Delete"))
        served.wait_ready("Topic", name)
    served.broker.stop()
    delete(served, "Topic", "before")
    delete(served, "Cluster", "c")
    delete(served, "Topic", "between")
    # With retained volumes it is the same topics, by the same ids.
    served.broker.start()
    served.apply_cluster()
    wait_until(lambda: served.ready("Cluster", "c") == "True", 60, "the new Cluster")
    apply(served.topic("after"))
    served.wait_ready("Topic", "after")
    assert served.topics() >= {"before", "between", "after"}
