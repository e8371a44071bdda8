"""Volumes grow where their class allows it; what it does not allow is reported and stops nothing.

The resizing itself is a storage driver's, and the lab has none: its part is the test's.
"""

import json

import pytest

from support.kube import apply, get, kubectl
from support.kube_cluster import KubeCluster
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLASS = "headrace-test-growing"
_TAKEN = "headrace-test-taken"


@pytest.fixture
def storage_class(lab):
    """A class that does not let volumes grow at first, and has one volume of 10Gi."""
    if not lab.is_there:
        pytest.skip("KUBELAB is not set: volumes of this cluster are not made by hand")
    lab.add_volumes(1)
    volumes = json.loads(kubectl("get", "pv", "-o", "json"))["items"]
    free = next(
        each
        for each in volumes
        if each["status"]["phase"] == "Available" and each["spec"]["storageClassName"] != _TAKEN
    )
    # Nobody else may take its folder, now or with what will be in it. Its name stays taken.
    taken = json.dumps({"spec": {"storageClassName": _TAKEN}})
    kubectl("patch", f"pv/{free['metadata']['name']}", "--type=merge", "-p", taken)
    allow_expansion(allowed=False)
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLASS}}
    apply({**volume, "spec": {**free["spec"], "storageClassName": CLASS}})
    yield CLASS
    kubectl("delete", "--wait=false", "--ignore-not-found", f"pv/{CLASS}", f"storageclass/{CLASS}")


def allow_expansion(*, allowed):
    """Make the class, or change it."""
    found = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS}}
    found |= {"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": allowed}
    apply(found)


def patch_status(target, status, *where):
    """Write a status as the storage driver would."""
    kubectl(
        *(*where, "patch", target, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )


def test_a_volume_grows_when_its_class_allows_it_and_no_pod_restarts(namespace, storage_class):
    storage = {"size": "1Gi", "storageClassName": storage_class, "deletionPolicy": "Delete"}
    with KubeCluster(namespace, pools=[{"name": "a", "storage": storage}]) as cluster:
        (before,) = (pod["metadata"]["uid"] for pod in cluster.pods().values())
        (claim,) = cluster.claims()

        def asked():
            spec = cluster.claims()[claim]["spec"]
            return spec["resources"]["requests"]["storage"]

        storage["size"] = "20Gi"
        cluster.apply()
        refusal = f"PersistentVolumeClaim {claim}: Forbidden: it cannot grow from 1Gi to 20Gi"
        wait_until(lambda: refusal in cluster.condition("Stalled")["message"], 60, "the refusal")
        assert asked() == "1Gi"

        allow_expansion(allowed=True)
        wait_until(lambda: asked() == "20Gi", 60, "the claim to ask for more")
        growing = f"volume {claim} grows from 10Gi to 20Gi"
        wait_until(
            lambda: growing in cluster.condition()["message"], 60, "the wait in the condition"
        )
        assert cluster.condition()["status"] == "False"

        capacity = {"storage": "20Gi"}
        kubectl("patch", f"pv/{storage_class}", "-p", json.dumps({"spec": {"capacity": capacity}}))
        patch_status(f"pvc/{claim}", {"capacity": capacity}, "-n", namespace)
        cluster.wait_ready()
        templates = get(namespace, "sts", "c-a")["spec"]["volumeClaimTemplates"]
        assert templates[0]["spec"]["resources"]["requests"]["storage"] == "20Gi"
        assert [pod["metadata"]["uid"] for pod in cluster.pods().values()] == [before]


def test_a_class_that_volumes_do_not_have_is_refused(namespace):
    storage = {"size": "1Gi", "deletionPolicy": "Delete"}
    with KubeCluster(namespace, pools=[{"name": "a", "storage": storage}]) as cluster:
        made = get(namespace, "statefulset", "c-a")["metadata"]["uid"]
        (claim,) = cluster.claims()
        has = cluster.claims()[claim]["spec"]["storageClassName"]
        storage["storageClassName"] = "another"
        cluster.apply()
        wait_until(
            lambda: cluster.condition("Stalled")["reason"] == "StorageClassDiffers", 60, "a reason"
        )
        assert f"volume {claim} is of class {has}" in cluster.condition()["message"]
        assert get(namespace, "statefulset", "c-a")["metadata"]["uid"] == made
        storage["storageClassName"] = has
        cluster.apply()
        cluster.wait_ready()
