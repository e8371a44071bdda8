"""updatePolicy: Plan: the status shows what would be done, and its hash approves exactly that."""

import time

import pytest

from support.kube import get, kubectl
from support.kube_cluster import KubeCluster
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_plan_is_shown_and_done_only_when_its_hash_is_approved(namespace):
    with KubeCluster(namespace) as cluster:
        uids = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}

        def plan():
            return cluster.resource()["status"].get("plan", {})

        def is_untouched():
            return uids == {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}

        cluster.spec |= {"updatePolicy": "Plan", "config": {"num.partitions": 3}}
        cluster.apply()
        wait_until(plan, 60, "a plan")
        assert cluster.condition()["reason"] == "Planned"
        actions = "\n".join(plan()["actions"])
        assert "num.partitions: default -> 3" in actions
        assert {f"broker {number}" in actions for number in (1, 2, 3)} == {True}
        time.sleep(5)
        assert is_untouched()

        first = plan()["hash"]
        cluster.spec["config"] = {"num.partitions": 4}
        cluster.spec["approvedPlan"] = first
        cluster.apply()
        wait_until(lambda: plan().get("hash") not in (None, first), 60, "another plan")
        time.sleep(5)
        assert is_untouched(), "a hash approves the plan it was shown with, and no other"

        cluster.spec["approvedPlan"] = plan()["hash"]
        cluster.apply()
        cluster.wait_ready(300)
        assert not plan()
        assert not is_untouched()
        assert cluster.broker_config(1)["num.partitions"] == "4"


def test_a_set_that_is_deleted_while_a_plan_waits_comes_back_as_it_was(namespace):
    with KubeCluster(namespace) as cluster:

        def owners():
            # One that was left behind has none.
            found = [pod["metadata"].get("ownerReferences") for pod in cluster.pods().values()]
            return {each[0]["uid"] if each else "" for each in found}

        def uids():
            return {pod["metadata"]["uid"] for pod in cluster.pods().values()}

        def claims():
            return {name: each["metadata"]["uid"] for name, each in cluster.claims().items()}

        def live():
            return get(namespace, "statefulset", "c-a")

        def is_back(former):
            metadata = live().get("metadata", {})
            return metadata.get("uid") not in (None, former) and owners() == {metadata["uid"]}

        cluster.spec |= {"updatePolicy": "Plan", "config": {"num.partitions": 3}}
        cluster.pool["replicas"] = 4
        cluster.apply()
        wait_until(lambda: cluster.resource()["status"].get("plan"), 60, "a plan")
        pods, spec = uids(), live()["spec"]
        volumes = claims()
        for cascade in ("orphan", "background"):
            former = live()["metadata"]["uid"]
            kubectl("-n", namespace, "delete", "statefulset", "c-a", f"--cascade={cascade}")
            wait_until(lambda was=former: is_back(was), 120, f"the set after {cascade}")
            assert live()["spec"] == spec
            assert (uids() == pods) is (cascade == "orphan")
            assert claims() == volumes
        wait_until(
            lambda: cluster.resource()["status"].get("readyBrokers") == 3, 120, "all brokers"
        )
        assert cluster.condition()["reason"] == "Planned"
        assert cluster.broker_config(1)["num.partitions"] == "1"
        cluster.spec |= {"updatePolicy": "Auto", "config": {}}
        cluster.pool["replicas"] = 3
        cluster.apply()
        cluster.wait_ready()
