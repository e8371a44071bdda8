"""What becomes of volume claims: with Kubernetes' own controllers, and without any node.

Pods stay pending, and claims have no volume: whose a claim is, and with what it goes, is all that
is asked here.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.control_plane import own_api_server
from support.kube import apply, get, kubectl, resource
from support.kube_process import Served
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CONTROLLERS = (
    "statefulset-controller",
    "garbage-collector-controller",
    "persistentvolumeclaim-protection-controller",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("volumes")
    with own_api_server(folder, *CONTROLLERS), Served(folder) as found:
        yield found


def make(served: Served, name: str, policy: str, *, when_scaled: str = "Retain") -> None:
    """Make a Cluster of two brokers that never run."""
    pool = {"name": "a", "replicas": 2, "storage": {"deletionPolicy": when_scaled}}
    apply(resource("Cluster", served.namespace, name, pools=[pool], deletionPolicy=policy))


def claims(served: Served, name: str) -> dict[str, str]:
    """Return the uids of a Cluster's claims that are not being deleted, by name."""
    found = get(served.namespace, "pvc", "-l", f"headrace.dev/cluster={name}")["items"]
    metadata = [each["metadata"] for each in found]
    return {each["name"]: each["uid"] for each in metadata if "deletionTimestamp" not in each}


def owners(served: Served, name: str) -> list[list[str]]:
    """Return the kinds of the owners of each of a Cluster's claims."""
    found = get(served.namespace, "pvc", "-l", f"headrace.dev/cluster={name}")["items"]
    every = [each["metadata"].get("ownerReferences") or [] for each in found]
    return [sorted(owner["kind"] for owner in each) for each in every]


def wait_claims(served: Served, name: str, *kinds: str, count: int = 2) -> dict[str, str]:
    """Wait until a Cluster has so many claims, each with these owners; return their uids."""
    wanted = [sorted(kinds)] * count
    wait_until(lambda: owners(served, name) == wanted, 60, f"claims with owners {kinds}")
    return claims(served, name)


def delete_set(served: Served, name: str, cascade: str) -> None:
    """Delete a Cluster's set, and wait until there is another with as many pods."""
    former = get(served.namespace, "sts", f"{name}-a")["metadata"]["uid"]
    delete = ("delete", "sts", f"{name}-a", f"--cascade={cascade}", "--wait=false")
    kubectl("-n", served.namespace, *delete)

    def is_back() -> bool:
        found = get(served.namespace, "sts", f"{name}-a")
        return (
            found.get("metadata", {}).get("uid", former) != former
            and found.get("status", {}).get("replicas") == 2
        )

    wait_until(is_back, 60, "another set")


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_a_set_that_somebody_deletes_takes_no_volume_with_it(served: Served, cascade: str) -> None:
    name = f"set-{cascade}"
    make(served, name, "Delete")
    wait_until(lambda: len(claims(served, name)) == 2, 60, "its claims")
    # As long as it takes until all is as it is to be.
    wait_until(lambda: all(owners(served, name)), 60, "somebody whom the claims go with")
    before = claims(served, name)
    delete_set(served, name, cascade)
    assert claims(served, name) == before


def test_a_set_that_somebody_scales_keeps_its_volumes(served: Served) -> None:
    """Also where those of a broker that is removed are to go."""
    make(served, "scaled", "Retain", when_scaled="Delete")
    before = wait_claims(served, "scaled")
    for replicas in (0, 1, 4):
        former = {each["metadata"]["uid"] for each in pods(served, "scaled")}
        kubectl("-n", served.namespace, "scale", "sts", "scaled-a", f"--replicas={replicas}")

        def is_put_right(was: set[str] = former, count: int = replicas) -> bool:
            now = {each["metadata"]["uid"] for each in pods(served, "scaled")}
            spec = get(served.namespace, "sts", "scaled-a")["spec"]
            return spec["replicas"] == len(now) == 2 and (count > 2 or now != was)

        wait_until(is_put_right, 60, f"two pods again after {replicas}")
        # What was added goes again, with its volumes.
        wait_until(lambda: len(claims(served, "scaled")) == 2, 60, "two claims")
        assert claims(served, "scaled") == before


def pods(served: Served, name: str) -> list[dict[str, Any]]:
    found = get(served.namespace, "pods", "-l", f"headrace.dev/cluster={name}")
    return found["items"]  # type: ignore[no-any-return]  # JSON


def test_volumes_of_a_pool_that_is_removed_follow_its_policy(served: Served) -> None:
    names = ("a", "keeps", "drops")
    policies = ("Retain", "Retain", "Delete")
    pools = [
        {"name": name, "storage": {"deletionPolicy": policy}}
        for name, policy in zip(names, policies, strict=True)
    ]
    apply(resource("Cluster", served.namespace, "pools", pools=pools))
    wait_claims(served, "pools", count=3)
    apply(resource("Cluster", served.namespace, "pools", pools=pools[:1]))
    for name in names[1:]:
        wait_until(lambda: not get(served.namespace, "sts", f"pools-{name}"), 60, "the set to go")  # noqa: B023 - at once
    wait_until(lambda: len(claims(served, "pools")) == 2, 60, "one claim to go")
    assert set(claims(served, "pools")) == {"data-0-pools-a-0", "data-0-pools-keeps-0"}


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_volumes_go_with_the_cluster_also_while_the_operator_is_away(
    served: Served, cascade: str
) -> None:
    name = f"cluster-{cascade}"
    make(served, name, "Delete")
    wait_claims(served, name, "Cluster")
    served.operator.stop()
    try:
        delete = ("delete", "cluster", name, f"--cascade={cascade}", "--wait=false")
        kubectl("-n", served.namespace, *delete)
        kinds = "cluster,sts,pods,pvc,svc"
        left = (kinds, "-l", f"headrace.dev/cluster={name}")
        wait_until(lambda: not get(served.namespace, *left)["items"], 60, "all of it to go")
        wait_until(lambda: not served.get("Cluster", name), 60, "the Cluster to go")
    finally:
        served.operator.start()


def test_volumes_follow_the_policy_of_the_cluster(served: Served) -> None:
    make(served, "turns", "Retain")
    before = wait_claims(served, "turns")
    for policy, kinds in (("Delete", ["Cluster"]), ("Protect", []), ("Delete", ["Cluster"])):
        make(served, "turns", policy)
        assert wait_claims(served, "turns", *kinds) == before
    make(served, "turns", "Retain")
    wait_claims(served, "turns")
    kubectl("-n", served.namespace, "delete", "cluster", "turns", "--cascade=foreground")
    wait_until(lambda: not get(served.namespace, "sts", "turns-a"), 60, "its set to go")
    assert claims(served, "turns") == before
    # One of the same name takes them up, and has them deleted with it.
    make(served, "turns", "Delete")
    assert wait_claims(served, "turns", "Cluster") == before


def test_sets_of_a_former_operator_are_rid_of_their_volumes(served: Served) -> None:
    """They were made with whenDeleted: Delete, and own the claims, also those of no pod."""
    make(served, "older", "Delete")
    before = wait_claims(served, "older", "Cluster")
    served.operator.stop()
    retention = {"whenDeleted": "Delete", "whenScaled": "Retain"}
    spec = {"persistentVolumeClaimRetentionPolicy": retention}
    patch(served, "sts", "older-a", {"spec": spec})
    wait_claims(served, "older", "Cluster", "StatefulSet")
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "older-a"}
    owner["uid"] = get(served.namespace, "sts", "older-a")["metadata"]["uid"]
    for number in range(2):
        alone = {"metadata": {"ownerReferences": [owner]}}
        patch(served, "pvc", f"data-0-older-a-{number}", alone)
    # Of a broker that is gone: the set's controller does not look at it any more.
    left = get(served.namespace, "pvc", "data-0-older-a-1")
    keys = ("labels", "ownerReferences", "namespace")
    metadata = {key: left["metadata"][key] for key in keys} | {"name": "data-0-older-a-7"}
    apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": left["spec"],
        }
    )
    served.operator.start()
    after = wait_claims(served, "older", "Cluster", count=3)
    assert after.items() > before.items()
    delete_set(served, "older", "background")
    assert claims(served, "older") == after


def patch(served: Served, kind: str, name: str, body: dict[str, Any]) -> None:
    kubectl("-n", served.namespace, "patch", kind, name, "--type=merge", "-p", json.dumps(body))


def test_a_cluster_waits_for_claims_that_go_with_a_former_one(served: Served) -> None:
    make(served, "again", "Delete")
    before = wait_claims(served, "again", "Cluster")
    # As if a pod used it.
    patch(served, "pvc", "data-0-again-a-0", {"metadata": {"finalizers": ["example.org/held"]}})
    kubectl("-n", served.namespace, "delete", "cluster", "again", "--wait=false")
    make(served, "again", "Delete")

    def waits() -> bool:
        return "data-0-again-a-0" in json.dumps(served.get("Cluster", "again").get("status", {}))

    wait_until(waits, 60, "the Cluster to wait")
    patch(served, "pvc", "data-0-again-a-0", {"metadata": {"finalizers": None}})
    wait_until(lambda: len(claims(served, "again")) == 2, 60, "claims of its own")
    assert not set(claims(served, "again").values()) & set(before.values())


@pytest.mark.parametrize("when_scaled", ["Delete", "Retain"])
def test_volumes_of_a_broker_that_is_removed_follow_the_policy_of_its_pool(
    served: Served, when_scaled: str
) -> None:
    name = f"fewer-{when_scaled.lower()}"
    make(served, name, "Delete", when_scaled=when_scaled)
    before = wait_claims(served, name, "Cluster")
    pool = {"name": "a", "replicas": 1, "storage": {"deletionPolicy": when_scaled}}
    apply(resource("Cluster", served.namespace, name, pools=[pool], deletionPolicy="Delete"))
    wait_until(
        lambda: get(served.namespace, "sts", f"{name}-a")["status"].get("replicas") == 1,
        60,
        "the pod to go",
    )
    if when_scaled == "Delete":
        wait_until(lambda: len(claims(served, name)) == 1, 60, "the claim to go")
    else:
        assert claims(served, name) == before
        assert owners(served, name) == [["Cluster"], ["Cluster"]]
    kubectl("-n", served.namespace, "delete", "cluster", name)
    wait_until(lambda: not claims(served, name), 60, "all claims to go")
