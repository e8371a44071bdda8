"""The operator's Roles against what it asked the API server for in all the tests before.

The last of the suites: what it uses is known when everything else was done.
"""

import pytest
import yaml

from headrace_operator.kubernetes.api.rights import Right
from support.kube import ROOT, KubeOperator
from support.kube_rights import granted, watching

#: Added by who wants it (`lostNodePolicy`, `replaceVolumes`, `removeBrokers`).
LOST_VOLUMES = ROOT / "manifests/components/lost-volumes/role.yaml"
#: What is granted for others than our own requests.
FOR_OTHERS = {
    Right("update", "clusters.headrace.dev/finalizers"): "the admission plugin"
    " OwnerReferencesPermissionEnforcement asks for it where an owner blocks its deletion",
    Right("deletecollection", "pods"): "granted to drivers",
    Right("deletecollection", "configmaps"): "granted to drivers",
    Right("list", "persistentvolumeclaims"): "granted to drivers",
    Right("deletecollection", "persistentvolumeclaims"): "granted to drivers",
}
#: What no test here makes the operator ask for.
RARE = {
    Right("get", "persistentvolumeclaims"): "a broker with a volume is rolled on a cordoned node",
}
#: What only some clusters have, or only the tests that are slow.
SELDOM = {
    "podmonitors.monitoring.coreos.com": "the Prometheus operator's kind",
    "sparkapplications.sparkoperator.k8s.io": "the Spark runner's",
    "customresourcedefinitions": "the Spark runner's",
    "rbac.authorization.k8s.io": "the Spark runner's",
}


@pytest.fixture
def roles(operator: KubeOperator) -> set[Right]:
    return granted(operator.documents())


def test_nothing_is_used_that_is_not_granted(roles: set[Right], rights: set[Right]) -> None:
    assert rights
    assert rights <= roles | granted(yaml.safe_load_all(LOST_VOLUMES.read_text()))


def test_nothing_is_granted_that_is_not_used(
    roles: set[Right], rights: set[Right], request: pytest.FixtureRequest
) -> None:
    chosen = request.config.option
    if "test_zz" in chosen.keyword or len(request.session.items) < 2 * len(roles) / 3:
        pytest.skip("only a part of the tests was run: what the others need is not known")
    unused = roles - rights - watching(with_spark=True) - FOR_OTHERS.keys() - RARE.keys()
    if chosen.keyword or chosen.markexpr:
        unused = {each for each in unused if not any(name in each.resource for name in SELDOM)}
    unused = {each for each in unused if not each.resource.startswith("podmonitors.")}
    assert not sorted(f"{each.verb} {each.resource}" for each in unused)
