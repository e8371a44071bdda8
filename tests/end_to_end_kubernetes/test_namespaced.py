"""The installation of one namespace: Roles alone, what `kubectl apply -k manifests/base` gives."""

from collections.abc import Iterator

import pytest
import yaml

from support.kube import OPERATOR, ROOT, KubeOperator, apply, condition, get, kubectl, resource
from support.kube_cluster import KubeCluster
from support.kube_rights import granted, used
from support.processes import wait_until

pytestmark = pytest.mark.timeout(600)

BASE = str(ROOT / "manifests/base")


class NamespacedOperator(KubeOperator):
    """The operator of a namespace that is there."""

    own = ""

    @property
    def namespace(self) -> str:
        return self.own


@pytest.fixture
def own_operator(namespace: str, operator: KubeOperator) -> Iterator[KubeOperator]:
    """An operator in the test's namespace; the one of all namespaces is stopped meanwhile."""
    operator.scale(0)
    found = NamespacedOperator()
    found.own = namespace
    try:
        documents = list(yaml.safe_load_all(kubectl("kustomize", BASE)))
        if operator.image:
            deployment = next(each for each in documents if each["kind"] == "Deployment")
            deployment["spec"]["template"]["spec"]["containers"][0]["image"] = operator.image
        text = yaml.safe_dump_all(documents)
        kubectl("-n", namespace, "apply", "--server-side", "-f", "-", stdin=text)
        found.wait_ready()
        yield found
        kubectl("-n", namespace, "delete", "deployment", OPERATOR)
    finally:
        operator.scale(1)


def test_an_operator_with_roles_alone_serves_its_namespace(own_operator: KubeOperator) -> None:
    namespace = own_operator.namespace
    account = f"--as=system:serviceaccount:{namespace}:{OPERATOR}"
    for right in ("list nodes", "list pods --all-namespaces", "get secrets"):
        answer = kubectl("-n", namespace, account, "auth", "can-i", *right.split(), check=False)
        assert answer.strip() == "no", right
    with KubeCluster(namespace) as cluster:
        apply(resource("Topic", namespace, "t", clusterRef={"name": "c"}, partitions=3))
        apply(resource("ConsumerGroup", namespace, "g", clusterRef={"name": "c"}))
        for kind, name in (("topic", "t"), ("consumergroup", "g")):
            wait_until(lambda: is_ready(namespace, kind, name), 60, f"{kind} {name} to be ready")  # noqa: B023 - called at once
        before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
        cluster.spec["config"] = {"num.partitions": 3}
        cluster.apply()
        cluster.wait_ready()
        after = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
        assert not set(before.values()) & set(after.values()), "all brokers were restarted"
        metrics = own_operator.metrics()
    roles = granted(yaml.safe_load_all(kubectl("kustomize", BASE)))
    # Nodes and volumes are looked at where that is allowed; here it is asked for and refused.
    lacking = used(metrics) - roles
    assert {each.resource for each in lacking} <= {"nodes", "persistentvolumes"}


def is_ready(namespace: str, kind: str, name: str) -> bool:
    return condition(get(namespace, kind, name)).get("status") == "True"
