"""The operator is killed, or is gone: brokers serve on, work is taken up, deletion ends."""

import time

import pytest

from support.kube import apply, condition, get, kubectl, resource
from support.kube_cluster import KubeCluster
from support.kube_traffic import judged
from support.processes import wait_until

pytestmark = pytest.mark.timeout(900)

KINDS = "cluster,statefulset,service,configmap,pvc,pdb,networkpolicy,serviceaccount,topic"
#: The resync of everything comes every 30 s.
RESYNC_SECONDS = 35


def versions(namespace):
    return {
        (each["kind"], each["metadata"]["name"]): each["metadata"]["resourceVersion"]
        for each in get(namespace, KINDS)["items"]
    }


def steps(cluster):
    """What a rolling update changes, in the order in which it does, as far as it is visible."""
    pods = cluster.pods()
    ready = {name for name, pod in pods.items() if condition(pod).get("status") == "True"}
    objects = versions(cluster.namespace)
    return (
        objects.get(("ConfigMap", "c-a")),
        get(cluster.namespace, "sts", "c-a")["metadata"]["generation"],
        tuple(sorted((name, pod["metadata"]["uid"]) for name, pod in pods.items())),
        tuple(sorted(name for name, pod in pods.items() if "deletionTimestamp" in pod["metadata"])),
        tuple(sorted(ready)),
    )


def killed_at_steps(cluster, operator, kills_max):
    """Apply was done: kill the operator each time that something changed, until all is done."""
    kills, last = 0, None
    deadline = time.monotonic() + 600
    while not cluster.is_ready() and time.monotonic() < deadline:
        now = steps(cluster)
        if now != last and kills < kills_max:
            operator.kill()
            kills += 1
        last = now
        time.sleep(0.1)
    return kills


@pytest.mark.slow
@pytest.mark.parametrize("kills_max", [2, pytest.param(100, id="at every step")])
def test_an_operator_that_is_killed_in_a_rolling_update_leaves_it_to_the_next(
    namespace, operator, kills_max
):
    with KubeCluster(namespace) as cluster:
        before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
        often = "twice" if kills_max == 2 else "at every step"
        with judged(cluster, f"a roll in which the operator is killed {often}"):
            cluster.spec["config"] = {"num.partitions": 3}
            cluster.apply()
            kills = killed_at_steps(cluster, operator, kills_max)
            operator.wait_ready()
            cluster.wait_ready(300)
        assert kills >= 2
        after = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
        restarts = {name for name in after if after[name] != before[name]}
        assert restarts == set(before)


@pytest.mark.slow
def test_a_cluster_at_rest_is_not_written_whoever_looks_at_it(namespace, operator):
    with KubeCluster(namespace) as cluster:
        apply(
            resource("Topic", namespace, "t", clusterRef={"name": "c"}, partitions=3),
            resource("ConsumerGroup", namespace, "g", clusterRef={"name": "c"}, topics=["t"]),
        )
        wait_until(
            lambda: condition(get(namespace, "topic", "t")).get("status") == "True", 60, "the topic"
        )
        time.sleep(5)
        before = versions(namespace)
        time.sleep(RESYNC_SECONDS)
        assert versions(namespace) == before
        operator.restart()
        operator.wait_ready()
        time.sleep(RESYNC_SECONDS)
        assert versions(namespace) == before
        assert cluster.is_ready()


def resources(namespace):
    return {
        "topic": resource(
            "Topic",
            namespace,
            "t",
            clusterRef={"name": "c"},
            partitions=3,
            deletionPolicy="Delete",
        ),
        "consumergroup": resource(
            "ConsumerGroup",
            namespace,
            "g",
            clusterRef={"name": "c"},
            topics=["t"],
            deletionPolicy="Delete",
        ),
    }


@pytest.mark.parametrize(
    "order",
    [
        ("cluster", "topic", "consumergroup"),
        pytest.param(("topic", "consumergroup", "cluster"), marks=pytest.mark.slow),
        pytest.param(("consumergroup", "cluster", "topic"), marks=pytest.mark.slow),
    ],
    ids=" then ".join,
)
def test_deletion_leaves_nothing_in_any_order(namespace, order):
    cluster = KubeCluster(namespace)
    cluster.apply()
    apply(*resources(namespace).values())
    cluster.wait_ready()
    wait_until(lambda: condition(get(namespace, "topic", "t")).get("status") == "True", 60)
    names = {"cluster": "c", "topic": "t", "consumergroup": "g"}
    for kind in order:
        kubectl("-n", namespace, "delete", kind, names[kind], "--wait=false")
    wait_until(
        lambda: not get(namespace, "cluster,topic,consumergroup,sts,pods,pvc,svc")["items"],
        120,
        "everything to be gone",
    )


@pytest.mark.slow
def test_with_the_operator_gone_first_a_namespace_still_goes(namespace, operator):
    """Pain 1 of operators' users: a namespace that hangs in Terminating for ever."""
    cluster = KubeCluster(namespace)
    cluster.apply()
    apply(*resources(namespace).values())
    cluster.wait_ready()
    wait_until(lambda: condition(get(namespace, "topic", "t")).get("status") == "True", 60)
    operator.scale(0)
    try:
        kubectl("delete", "namespace", namespace, "--wait=false")
        wait_until(
            lambda: not kubectl("get", "namespace", namespace, "--ignore-not-found"),
            120,
            "the namespace to be gone",
        )
    finally:
        operator.scale(1)
