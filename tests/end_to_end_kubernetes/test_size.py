"""Brokers that join and leave, volumes that are lost or grow in number, while clients use it."""

import json
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from faults.workload import create_topic
from support.kube import kubectl
from support.kube_cluster import KubeCluster
from support.kube_traffic import judged, topic_of
from support.processes import wait_until
from support.streams import read_partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(shared_namespace):
    with KubeCluster(shared_namespace) as running:
        yield running


def holders(cluster, topic=None):
    return {node for each in cluster.partitions(topic).values() for node in each.replicas}


def test_three_brokers_become_five_and_three_again(cluster):
    for during, count in (("a scale from 3 to 5", 5), ("a scale from 5 to 3", 3)):
        with judged(cluster, during) as workload:
            cluster.pool["replicas"] = count
            cluster.apply()
            cluster.wait_ready(300)
            everybody = set(range(1, count + 1))
            wait_until(lambda: holders(cluster) == everybody, 120)  # noqa: B023 - it is called at once
            workload.progress()
            cluster.wait_in_sync(topic_of(during))
    wait_until(lambda: len(cluster.claims()) == 3, 60, "the claims of two brokers to go")
    assert holders(cluster, topic_of("a scale from 3 to 5")) == {1, 2, 3}


def test_a_scale_down_that_is_not_safe_is_refused_with_a_reason(cluster):
    before = set(cluster.pods())
    create_topic(cluster, "three", 1)
    try:
        cluster.pool["replicas"] = 2
        cluster.apply()
        wait_until(lambda: "2 brokers would be left" in cluster.condition()["message"], 60)
        assert cluster.condition()["reason"] == "DrainRefused"
        assert set(cluster.pods()) == before
    finally:
        cluster.pool["replicas"] = 3
        cluster.apply()
    cluster.wait_ready()


def test_a_volume_that_is_lost_is_filled_from_the_others(cluster):
    during = "the loss of a volume"
    with judged(cluster, during) as workload:
        pod = f"{cluster.name}-a-1"
        claim = f"data-0-{pod}"
        before = cluster.claims()[claim]["spec"]["volumeName"]
        kubectl("-n", cluster.namespace, "delete", "pvc", claim, "--wait=false")
        cluster.kill(pod)
        wait_until(
            lambda: (
                cluster.claims().get(claim, {}).get("spec", {}).get("volumeName")
                not in (None, before)
            ),
            120,
            "another volume",
        )
        workload.progress()
        cluster.wait_ready(300)
        cluster.wait_in_sync(topic_of(during))
        assert 2 in holders(cluster, topic_of(during))


def test_a_broker_with_two_volumes_uses_both(namespace):
    pool = {
        "name": "a",
        "replicas": 3,
        "storage": {"size": "1Gi", "volumes": 2, "deletionPolicy": "Delete"},
    }
    with KubeCluster(namespace, pools=[pool]) as cluster:
        assert len(cluster.claims()) == 6
        with judged(cluster, "two volumes each"):
            cluster.kill("c-a-2")
            cluster.wait_ready()
        for name in cluster.pods():
            found = kubectl(
                *("-n", namespace, "exec", name, "--"),
                *("sh", "-c", "ls -d /var/lib/headrace/data-*/*/two-volumes-each-*"),
            )
            used = {line.split("/")[4] for line in found.split()}
            assert used == {"data-0", "data-1"}, found


def test_volumes_stay_when_the_cluster_goes_and_are_taken_up_again(namespace):
    pool = {"name": "a", "replicas": 3, "storage": {"size": "1Gi"}}
    first = KubeCluster(namespace, pools=[pool], deletionPolicy="Retain")
    first.apply()
    first.wait_ready()
    with judged(first, "before the cluster goes"):
        pass
    identity = first.identity()
    kubectl("-n", namespace, "delete", "cluster", "c")
    wait_until(lambda: not first.pods(), 120)
    assert len(first.claims()) == 3
    second = KubeCluster(namespace, pools=[pool], deletionPolicy="Retain")
    second.apply()
    second.wait_ready()
    for part in ("clusterId", "lives"):
        assert second.identity()[part] == identity[part]
    assert ("before-the-cluster-goes", 0) in second.partitions()
    second.wait_in_sync("before-the-cluster-goes")


def test_a_cluster_corrected_before_it_ever_started_starts_nothing_else(namespace):
    (node, *_) = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    whole = node["status"]["allocatable"]["cpu"]
    milli = int(whole[:-1]) if whole.endswith("m") else int(whole) * 1000
    pool = {
        "name": "a",
        "replicas": 3,
        "storage": {"size": "1Gi", "deletionPolicy": "Delete"},
        # Room for one of three: it runs, and waits for somebody to vote with.
        "resources": {"requests": {"cpu": f"{milli * 55 // 100}m"}},
        "podTemplate": {
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node["metadata"]["name"]}}
        },
    }
    cluster = KubeCluster(namespace, pools=[pool])

    def run():
        return {
            name
            for name, pod in cluster.pods().items()
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        }

    try:
        cluster.apply()
        wait_until(lambda: len(run()) == 1 and "Unschedulable" in str(cluster.condition()), 120)
        pool["replicas"] = 1
        pool["resources"] = {"requests": {"cpu": "100m"}}
        cluster.apply()
        deadline = time.monotonic() + 120
        while not cluster.is_ready():
            assert len(run()) <= 1, cluster.pods()
            assert time.monotonic() < deadline, cluster.resource()["status"]
        assert [each["nodeId"] for each in cluster.identity()["nodes"]] == [1]
        # Its defaults are those of one broker, too.
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("by-default", 1)])["by-default"].result(30)
        wait_until(lambda: holders(cluster, "by-default") == {1}, 30)
    finally:
        cluster.delete()


def test_a_lost_quorum_says_so_and_a_person_lets_the_survivor_go_on(namespace):
    with KubeCluster(namespace) as cluster:
        with judged(cluster, "before the quorum is lost"):
            time.sleep(3)
        topic = topic_of("before the quorum is lost")
        cluster.wait_in_sync(topic)
        kept = {number: read_partition(cluster.bootstrap, topic, number) for number in range(6)}
        # Their volumes go with their pods, at one moment.
        lost, claims = ["c-a-1", "c-a-2"], ["data-0-c-a-1", "data-0-c-a-2"]
        kubectl("-n", namespace, "delete", "pvc", *claims, "--wait=false")
        kubectl("-n", namespace, "delete", "pod", *lost, "--grace-period=0", "--force")
        wait_until(
            lambda: cluster.condition("Stalled")["reason"] == "QuorumLost", 180, "its reason"
        )
        assert "lost its volumes" in cluster.condition()["message"]
        survivor = "c-a-0"
        command = "headrace recover-quorum /etc/headrace/broker/$POD_NAME.*.properties --execute"
        said = kubectl("-n", namespace, "exec", survivor, "--", "sh", "-c", command)
        assert "becomes the only voter" in said
        kubectl("-n", namespace, "delete", "pod", survivor)
        cluster.wait_ready(300)
        assert cluster.condition("Stalled")["status"] == "False"
        cluster.wait_in_sync(topic, 120)
        for number, records in kept.items():
            assert read_partition(cluster.bootstrap, topic, number) == records
