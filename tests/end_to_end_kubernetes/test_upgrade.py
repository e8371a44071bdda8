"""Brokers get another image when their Cluster asks for it or for another version, and never else.

The lab has one image of the brokers. It has two names, and that is what the operator compares.
"""

import json
import time
from contextlib import contextmanager

import pytest

from support.kube import OPERATOR, get, kubectl
from support.kube_cluster import KubeCluster
from support.kube_traffic import judged
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REGISTRY = "docker.io/"


@contextmanager
def own_image(operator, image):
    """An operator of a release that is another image, as kustomize's `images:` would name it."""

    def set_image(wanted):
        path = "/spec/template/spec/containers/0/image"
        patch = [{"op": "replace", "path": path, "value": wanted}]
        where = ("-n", operator.namespace, "patch", f"deployment/{OPERATOR}")
        kubectl(*where, "--type=json", f"--patch={json.dumps(patch)}")
        operator.wait_ready()

    deployment = get(operator.namespace, "deployment", OPERATOR)
    before = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    set_image(image)
    try:
        yield
    finally:
        set_image(before)


def images(cluster):
    return {pod["spec"]["containers"][0]["image"] for pod in cluster.pods().values()}


def uids(cluster):
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}


def test_an_upgrade_is_asked_for_by_the_version_and_planned_like_every_other_change(
    namespace, operator
):
    with KubeCluster(namespace) as cluster:
        (image,) = images(cluster)
        if "/" in image and "." in image.split("/", maxsplit=1)[0]:
            pytest.skip(f"{image} names its registry, and so has one name only")
        newer = f"{REGISTRY}{image}"
        before = uids(cluster)
        with own_image(operator, newer):
            time.sleep(5)
            assert uids(cluster) == before, "a newer operator restarts nothing by itself"

            def plan():
                return cluster.resource()["status"].get("plan", {})

            cluster.spec |= {"version": "4.2.1", "updatePolicy": "Plan"}
            cluster.apply()
            wait_until(plan, 60, "a plan")
            actions = plan()["actions"]
            assert sum(f"image: {image} -> {newer}" in each for each in actions) == len(before)
            time.sleep(5)
            assert uids(cluster) == before, "nobody approved it"
            with judged(cluster, "an upgrade of the brokers"):
                cluster.spec["approvedPlan"] = plan()["hash"]
                cluster.apply()
                cluster.wait_ready(300)
            assert images(cluster) == {newer}
        # And back, without a plan: ready is what runs the wanted image, at no moment before.
        del cluster.spec["updatePolicy"], cluster.spec["approvedPlan"]
        cluster.spec["version"] = "4.2"
        cluster.apply()
        cluster.wait_ready(300)
        assert images(cluster) == {image}
        # A patched image needs no other version.
        with judged(cluster, "an image that the spec names"):
            cluster.spec["image"] = newer
            cluster.apply()
            cluster.wait_ready(300)
        assert images(cluster) == {newer}
