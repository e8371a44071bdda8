"""Brokers that join and leave, volumes that are lost or grow in number, while clients use it."""

import json
import re
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from faults.workload import create_topic
from support.kube import apply, condition, get, kubectl, resource
from support.kube_chaos import wait_all_ready
from support.kube_cluster import KubeCluster
from support.kube_rights import may_give_up_volumes
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


def volume_of(cluster, pod):
    """Return the claim (its uid) that a pod has; None while it has none."""
    return cluster.claims().get(f"data-0-{pod}", {}).get("metadata", {}).get("uid")


def test_a_broker_begins_again_with_new_volumes_when_a_person_asks_for_it(cluster, operator):
    during = "new volumes for a broker"
    pod = cluster.pod_of(1)
    before = {name: volume_of(cluster, name) for name in cluster.pods()}
    uids = {name: each["metadata"]["uid"] for name, each in cluster.pods().items()}
    with judged(cluster, during) as workload:
        cluster.spec |= {
            "replaceVolumes": [{"broker": 1, "requestId": "disk"}],
            "updatePolicy": "Plan",
        }
        cluster.apply()

        def planned():
            return cluster.resource()["status"].get("plan", {}).get("actions", [])

        wait_until(planned, 60, "a proposal")
        (action,) = planned()
        assert re.search(r"broker 1: new volumes \(disk\);.* \d+ partitions, \d+ bytes", action)
        workload.progress(20)
        assert volume_of(cluster, pod) == before[pod], "nobody approved it"
        cluster.spec["approvedPlan"] = cluster.resource()["status"]["plan"]["hash"]
        cluster.apply()
        wait_until(lambda: condition(cluster.resource(), "Stalled").get("status") == "True", 60)
        message = condition(cluster.resource(), "Stalled")["message"]
        assert "cannot delete resource" in message, message
        assert volume_of(cluster, pod) == before[pod], "the operator may not"
        with may_give_up_volumes(operator):
            wait_until(lambda: volume_of(cluster, pod) not in (None, before[pod]), 180)
            workload.progress()
            cluster.wait_ready(300)
            cluster.wait_in_sync(topic_of(during))
    after = {name: volume_of(cluster, name) for name in cluster.pods()}
    assert {name for name in after if after[name] != before[name]} == {pod}
    now = {name: each["metadata"]["uid"] for name, each in cluster.pods().items()}
    assert {name for name in now if now[name] != uids[name]} == {pod}, "once, and no other"
    assert 1 in holders(cluster, topic_of(during))
    del cluster.spec["updatePolicy"], cluster.spec["approvedPlan"], cluster.spec["replaceVolumes"]
    cluster.apply()
    cluster.wait_ready()
    assert volume_of(cluster, pod) == after[pod], "what was done is not done again"


def test_a_certain_broker_leaves_for_good_with_its_volume(namespace, operator):
    """Four become three, and the second is drained first: no replica is missing at any time."""
    during = "a certain broker leaves"
    pool = {"name": "a", "replicas": 4, "storage": {"size": "1Gi", "deletionPolicy": "Delete"}}
    with KubeCluster(namespace, pools=[pool]) as cluster:
        with judged(cluster, during) as workload:
            pod = cluster.pod_of(2)
            before = volume_of(cluster, pod)
            cluster.pool["replicas"] = 3
            cluster.spec["removeBrokers"] = [2]
            cluster.apply()
            wait_until(lambda: 2 not in holders(cluster), 180, "its replicas to be elsewhere")
            wait_until(lambda: condition(cluster.resource(), "Stalled")["status"] == "True", 60)
            message = condition(cluster.resource(), "Stalled")["message"]
            assert "cannot delete resource" in message, message
            assert volume_of(cluster, pod) == before, "the operator may not"
            workload.progress()
            with may_give_up_volumes(operator):
                cluster.wait_ready(400)
            workload.progress()
            cluster.wait_in_sync(topic_of(during))
        assert volume_of(cluster, pod) not in (None, before)
        assert holders(cluster) == {1, 3, 5}
        (told,) = cluster.resource()["status"]["pools"]
        assert told == {"name": "a", "nodeIds": [1, 3, 5], "ready": 3}
        assert [each["ordinal"] for each in cluster.identity()["nodes"]] == [0, 2, 1]
        # Its id is nobody's as long as it is named.
        cluster.pool["replicas"] = 4
        cluster.apply()
        cluster.wait_ready(200)
        assert {each["nodeId"] for each in cluster.identity()["nodes"]} == {1, 3, 4, 5}
        assert len(cluster.claims()) == 4


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


def test_records_survive_the_deletion_of_a_set_and_volumes_go_with_the_cluster(namespace, operator):
    with KubeCluster(namespace) as cluster:  # with deletionPolicy: Delete
        during = "before the set goes"
        with judged(cluster, during):
            pass
        topic = topic_of(during)
        cluster.wait_in_sync(topic)
        numbers = range(len(cluster.partitions(topic)))
        kept = {number: read_partition(cluster.bootstrap, topic, number) for number in numbers}
        claims = {name: each["metadata"]["uid"] for name, each in cluster.claims().items()}
        for cascade in ("background", "foreground"):
            former = get(namespace, "sts", "c-a")["metadata"]["uid"]
            delete = ("delete", "sts", "c-a", f"--cascade={cascade}", "--wait=false")
            kubectl("-n", namespace, *delete)

            def is_another(was=former):
                return get(namespace, "sts", "c-a").get("metadata", {}).get("uid", was) != was

            wait_until(is_another, 120, "another set")
            cluster.wait_ready(300)
            cluster.wait_in_sync(topic)
            assert claims == {n: each["metadata"]["uid"] for n, each in cluster.claims().items()}
            for number, records in kept.items():
                assert read_partition(cluster.bootstrap, topic, number) == records
        operator.scale(0)
        try:
            cluster.delete()  # waits until pods and claims are gone
        finally:
            operator.scale(1)


def test_moves_can_be_paused_and_say_how_far_they_are(namespace):
    pool = {"name": "a", "replicas": 3, "storage": {"size": "1Gi", "deletionPolicy": "Delete"}}
    with KubeCluster(namespace, pools=[pool], moves={"paused": True}) as cluster:
        name = {"name": cluster.name}
        spec = {"clusterRef": name, "partitions": 6, "replicas": 1}
        apply(resource("Topic", namespace, "grows", **spec))
        wait_all_ready(namespace)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for number in range(120):
            producer.produce("grows", bytes(100_000), partition=number % 6)
        assert producer.flush(60) == 0
        apply(resource("Topic", namespace, "grows", **{**spec, "replicas": 2}))

        def told():
            return condition(get(namespace, "topic", "grows"))["reason"]

        wait_until(lambda: told() == "Paused", 60, "the pause to be told")
        assert all(len(each.replicas) == 1 for each in cluster.partitions("grows").values())
        # Twelve megabytes onto three brokers: some forty seconds.
        cluster.spec["moves"] = {"throttle": "100k"}
        cluster.apply()
        moves = {}
        deadline = time.monotonic() + 60
        while not moves.get("bytesLeft"):
            assert time.monotonic() < deadline, cluster.resource()["status"]
            moves = cluster.resource()["status"].get("moves", {})
        assert moves["partitionsMoving"] > 0
        assert 0 < moves["bytesLeft"] <= moves["bytesTotal"] <= 13_000_000
        assert moves["secondsLeft"] > 0
        # It is found too slow: what moves already goes on faster.
        cluster.spec["moves"] = {"throttle": "50Mi"}
        cluster.apply()
        wait_all_ready(namespace)
        assert all(len(each.isrs) == 2 for each in cluster.partitions("grows").values())
        wait_until(lambda: "moves" not in cluster.resource()["status"], 60, "the end of it")


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
        command = ("headrace", "recover-quorum", "--execute")
        said = kubectl("-n", namespace, "exec", survivor, "--", *command)
        assert "becomes the only voter" in said
        kubectl("-n", namespace, "delete", "pod", survivor)
        cluster.wait_ready(300)
        assert cluster.condition("Stalled")["status"] == "False"
        cluster.wait_in_sync(topic, 120)
        for number, records in kept.items():
            assert read_partition(cluster.bootstrap, topic, number) == records
