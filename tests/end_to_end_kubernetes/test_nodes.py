"""Several nodes: drained one after the other, lost for good, while clients write and read.

Any cluster of at least three nodes; nodes are powered off only where the cluster is a lab.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from faults.workload import create_topic
from support.kube import (
    OPERATOR,
    KubeLab,
    KubeOperator,
    apply,
    condition,
    get,
    kubectl,
    resource,
)
from support.kube_cluster import KubeCluster
from support.kube_rights import may_give_up_volumes
from support.kube_traffic import judged, topic_of
from support.processes import wait_until

pytestmark = pytest.mark.timeout(600)

NODES_MIN = 3
BULK = "bulk"
BULK_RECORDS, RECORD_BYTES = 3000, 10_000
#: So that what was written while a broker was away takes it some fifteen seconds.
RATE = RECORD_BYTES * BULK_RECORDS // 15
#: A lab's node counts as not ready after 12 s; what the operator's pod tolerates, 30 s; its start,
#: and the first look at everything.
LOST_OPERATOR_SECONDS = 120
RATE_SETTING = "follower.replication.throttled.rate"


def node_names() -> list[str]:
    """Return the nodes that take pods."""
    items = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    return sorted(
        node["metadata"]["name"]
        for node in items
        if not node["spec"].get("taints") and not node["spec"].get("unschedulable")
    )


@pytest.fixture(scope="module")
def nodes() -> list[str]:
    """The nodes; fewer than three are said loudly (conftest)."""
    found = node_names()
    if len(found) < NODES_MIN:
        pytest.skip("NODES: this cluster has fewer than three nodes")
    return found


@pytest.fixture(scope="module")
def cluster(nodes: list[str], shared_namespace: str) -> Iterator[KubeCluster]:
    assert nodes
    with KubeCluster(shared_namespace) as running:
        yield running


@pytest.fixture
def spread(nodes: list[str], namespace: str) -> Iterator[KubeCluster]:
    """A cluster whose brokers are on nodes of their own: one of them may be lost with its node.

    After a loss two are on one node, where their volumes are.
    """
    with KubeCluster(namespace) as running:
        assert nodes
        assert len({node_of(running, pod) for pod in running.pods()}) == len(running.pods())
        yield running


def node_of(cluster: KubeCluster, pod: str) -> str:
    """Return the node that a pod runs on; '' while it has none."""
    found = cluster.pods().get(pod, {})
    return str(found.get("spec", {}).get("nodeName", ""))


def evict(cluster: KubeCluster, pod: str) -> bool:
    """Ask once for an eviction, as a drain does; False: the budget says no."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": cluster.namespace},
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/eviction"
    try:
        kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    except RuntimeError as error:
        if "disruption budget" not in str(error):
            raise
        return False
    return True


@contextmanager
def cordoned(node: str) -> Iterator[None]:
    """Let a node take no pod meanwhile."""
    kubectl("cordon", node)
    try:
        yield
    finally:
        kubectl("uncordon", node)


def set_rate(cluster: KubeCluster, rate: int | None) -> None:
    """Let followers that are behind fetch so many bytes a second; None: as fast as they can."""
    operation = AlterConfigOpType.DELETE if rate is None else AlterConfigOpType.SET
    entry = ConfigEntry(RATE_SETTING, str(rate or ""), incremental_operation=operation)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def is_taken(broker: str) -> bool:
        # librdkafka takes one broker in a request, and may lose it where it learns of brokers:
        # then the future ends late, or not at all.
        wanted = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[entry])
        with suppress(KafkaException, TimeoutError):
            admin.incremental_alter_configs([wanted])[wanted].result(10)
            return True
        return False

    for broker in ("1", "2", "3"):
        wait_until(partial(is_taken, broker), 60, "the setting to be taken")


def fewest_in_sync(cluster: KubeCluster) -> int:
    """Return the size of the smallest in-sync set of the bulk topic; 3 while nobody answers."""
    with suppress(KafkaException):
        return min(len(each.isrs) for each in cluster.partitions(BULK).values())
    return 3


def test_no_broker_is_evicted_while_another_that_serves_is_behind(cluster: KubeCluster) -> None:
    create_topic(
        cluster, BULK, 3, min_insync_replicas="2", follower_replication_throttled_replicas="*"
    )
    first, second = (cluster.pod_of(node_id) for node_id in (1, 2))
    set_rate(cluster, RATE)
    with cordoned(node_of(cluster, first)):
        assert evict(cluster, first)
        wait_until(lambda: not node_of(cluster, first), 60, "the pod to be away")
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for number in range(BULK_RECORDS):
            producer.produce(BULK, b"x" * RECORD_BYTES, partition=number % 3)
        assert producer.flush(60) == 0
    try:
        refused, fewest, deadline = 0, 3, time.monotonic() + 120
        while not evict(cluster, second):
            assert time.monotonic() < deadline, "the eviction was never allowed"
            refused += 1
            fewest = min(fewest, fewest_in_sync(cluster))
        wait_until(lambda: len(cluster.pods()) == 3, 60, "the pod to be made again")
        while not cluster.is_ready():
            assert time.monotonic() < deadline + 120
            fewest = min(fewest, fewest_in_sync(cluster))
        assert refused
        assert fewest == 2, "an in-sync set fell below min.insync.replicas"
    finally:
        cluster.wait_ready()
        set_rate(cluster, None)


def test_all_nodes_are_drained_one_right_after_the_other(
    cluster: KubeCluster, nodes: list[str]
) -> None:
    during = "drains of all nodes, one right after the other"
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    with judged(cluster, during) as workload:
        for node in nodes:
            try:
                kubectl(
                    *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data"),
                    *(f"--pod-selector={cluster.labels}", "--timeout=180s"),
                )
            finally:
                # At once: the next drain waits for the broker, and not for us.
                kubectl("uncordon", node)
            workload.progress(20)
        cluster.wait_ready(180)
        cluster.wait_in_sync(topic_of(during))
    after = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    assert not before.items() & after.items()


@pytest.mark.slow
def test_a_node_that_is_lost_for_good_with_its_volume_is_replaced(
    spread: KubeCluster, nodes: list[str], nodes_lab: KubeLab
) -> None:
    during = "the loss of a node for good"
    # The first one runs the lab's control plane.
    pod = next(name for name in spread.pods() if node_of(spread, name) not in ("", nodes[0]))
    node = node_of(spread, pod)
    with judged(spread, during) as workload:
        try:
            nodes_lab.run("lose", node)
            workload.progress()
            kubectl("delete", "node", node)
            kubectl(
                *("-n", spread.namespace, "delete", "pod", pod, "--grace-period=0", "--force"),
                "--wait=false",
            )
            claims = [name for name in spread.claims() if name.endswith(f"-{pod}")]
            kubectl("-n", spread.namespace, "delete", "pvc", "--wait=false", *claims)
            # One that was made meanwhile waits for the node of the old claim.
            kubectl("-n", spread.namespace, "delete", "pod", pod, "--wait=false", check=False)
            workload.progress()
            spread.wait_ready(180)
            spread.wait_in_sync(topic_of(during), 120)
        finally:
            nodes_lab.heal(node)
    assert node_of(spread, pod) != node
    assert get(spread.namespace, "pvc", claims[0])["status"]["phase"] == "Bound"


@pytest.mark.slow
def test_an_operator_whose_node_is_lost_goes_on_elsewhere_within_a_bound(
    spread: KubeCluster, nodes: list[str], nodes_lab: KubeLab, operator: KubeOperator
) -> None:
    spread.wait_ready()

    def places() -> set[str]:
        pods = get(operator.namespace, "pods", "-l", f"app.kubernetes.io/name={OPERATOR}")["items"]
        return {each["spec"].get("nodeName", "") for each in pods}

    if places() & {nodes[0]}:
        # That node runs the lab's control plane.
        with cordoned(nodes[0]):
            operator.restart()
            operator.wait_ready()
            wait_until(lambda: nodes[0] not in places(), 60, "the operator on another node")
    [node] = places()
    reference = {"name": spread.name}
    topic = resource("Topic", spread.namespace, "while-lost", clusterRef=reference, replicas=1)
    try:
        nodes_lab.run("lose", node)
        apply(topic)
        wait_until(
            lambda: condition(get(spread.namespace, "topic", "while-lost")).get("status") == "True",
            LOST_OPERATOR_SECONDS,
            "another operator, and what it was asked for",
        )
        assert places() - {node}
    finally:
        nodes_lab.heal(node)
        kubectl("-n", spread.namespace, "delete", "--ignore-not-found", "topic", "while-lost")
    spread.wait_ready(180)


@pytest.mark.slow
def test_a_volume_of_a_lost_node_is_given_up_where_the_pool_says_so(
    spread: KubeCluster, nodes: list[str], nodes_lab: KubeLab, operator: KubeOperator
) -> None:
    spread.wait_ready()
    pod = next(name for name in spread.pods() if node_of(spread, name) not in ("", nodes[0]))
    node = node_of(spread, pod)
    [claim] = [name for name in spread.claims() if name.endswith(f"-{pod}")]
    before = spread.claims()[claim]["metadata"]["uid"]
    during = "the loss of a node, whose volume the operator gives up"

    def says(*words: str) -> bool:
        message = spread.condition().get("message", "")
        return all(word in message for word in (f"(pod {pod}) waits for node {node}", *words))

    with judged(spread, during) as workload, may_give_up_volumes(operator):
        try:
            nodes_lab.run("lose", node)
            wait_until(lambda: says("it is not ready since"), 90, "the operator to say so")
            kubectl("delete", "node", node)
            wait_until(lambda: says(claim, "does not exist any more"), 180, "it to say that, too")
            assert spread.claims()[claim]["metadata"]["uid"] == before
            workload.progress()
            spread.pool["storage"]["lostNodePolicy"] = "Replace"
            spread.apply()
            spread.wait_ready(240)
            spread.wait_in_sync(topic_of(during), 120)
        finally:
            nodes_lab.heal(node)
    assert spread.claims()[claim]["metadata"]["uid"] != before
    assert node_of(spread, pod) != node


@pytest.mark.slow
def test_two_brokers_that_a_node_takes_with_it_are_named_and_go_on_when_it_is_back(
    namespace: str, nodes: list[str], nodes_lab: KubeLab
) -> None:
    """Nobody leads the metadata quorum meanwhile, and the one that is left can decide nothing."""
    pools = [
        {
            "name": name,
            "replicas": replicas,
            "storage": {"size": "1Gi", "deletionPolicy": "Delete"},
            "podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}},
        }
        for name, replicas, node in (("a", 2, nodes[1]), ("b", 1, nodes[0]))
    ]
    with KubeCluster(namespace, pools=pools) as cluster:

        def says(*words: str) -> bool:
            message = cluster.condition().get("message", "")
            return all(word in message for word in words)

        try:
            nodes_lab.run("lose", nodes[1])
            wait_until(
                lambda: says(*(f"(pod c-a-{each}) waits for node {nodes[1]}" for each in (0, 1))),
                90,
                "both to be named",
            )
        finally:
            nodes_lab.heal(nodes[1])
        cluster.wait_ready(180)


@pytest.mark.slow
def test_a_broker_whose_zone_is_lost_says_the_one_that_it_moved_to(
    namespace: str, nodes: list[str], nodes_lab: KubeLab, operator: KubeOperator
) -> None:
    listed = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    zones = {
        each["metadata"]["name"]: each["metadata"]["labels"].get("topology.kubernetes.io/zone")
        for each in listed
    }
    if not all(zones.values()):
        pytest.skip("NODES: these have no zones")
    storage = {"size": "1Gi", "deletionPolicy": "Delete", "lostNodePolicy": "Replace"}
    racks = sorted(str(zone) for zone in set(zones.values()))
    pool = {"name": "a", "replicas": 3, "racks": racks, "storage": storage}
    during = "the loss of a zone"
    with KubeCluster(namespace, pools=[pool]) as cluster, may_give_up_volumes(operator):

        def told() -> bool:
            """Whether each broker says the zone of the node that its pod is on."""
            placed = {number + 1: zones[node_of(cluster, f"c-a-{number}")] for number in range(3)}
            return cluster.racks() == placed

        wait_until(told, 60, "three zones")
        assert sorted(cluster.racks().values()) == racks
        pod = next(name for name in sorted(cluster.pods()) if node_of(cluster, name) != nodes[0])
        node = node_of(cluster, pod)
        with judged(cluster, during) as workload:
            try:
                nodes_lab.run("lose", node)
                kubectl("delete", "node", node)
                workload.progress()
                wait_until(lambda: node_of(cluster, pod) not in ("", node), 180, "another node")
                cluster.wait_ready(240)
                cluster.wait_in_sync(topic_of(during), 120)
                wait_until(told, 60, "the zone that it moved to")
            finally:
                nodes_lab.heal(node)
        assert len(set(cluster.racks().values())) == len(racks) - 1
