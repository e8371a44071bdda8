"""A Cluster on a real Kubernetes: it comes up, is changed, loses pods, while clients use it."""

import time

import pytest

from support.kube_cluster import KubeCluster
from support.kube_traffic import judged, topic_of

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(shared_namespace):
    with KubeCluster(shared_namespace) as running:
        yield running


def uids(cluster):
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}


def restarted(cluster, before):
    return {name for name, uid in uids(cluster).items() if before.get(name) != uid}


def test_live_settings_restart_no_pod(cluster):
    before = uids(cluster)
    with judged(cluster, "a live change of settings"):
        cluster.spec["config"] = {"log.retention.ms": 3_600_000}
        cluster.apply()
        cluster.wait_ready()
    assert restarted(cluster, before) == set()
    assert cluster.broker_config(1)["log.retention.ms"] == "3600000"


def test_other_settings_restart_one_pod_after_the_other_and_the_active_controller_last(cluster):
    before = uids(cluster)
    first = cluster.active_controller()
    order = []
    with judged(cluster, "a rolling change of settings"):
        cluster.spec["config"] = {**cluster.spec.get("config", {}), "num.partitions": 3}
        cluster.apply()
        deadline = time.monotonic() + 300
        while len(order) < len(before) and time.monotonic() < deadline:
            pods = cluster.pods()
            away = {
                name
                for name in before
                if pods.get(name, {"metadata": {}})["metadata"].get("uid") != before[name]
            }
            order += sorted(away - set(order))
            time.sleep(0.1)
        cluster.wait_ready(300)
    assert restarted(cluster, before) == set(before)
    assert order[-1] == cluster.pod_of(first), f"{order} while {first} was active"


@pytest.mark.parametrize(
    "ordinal", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))]
)
def test_any_pod_may_be_killed(cluster, ordinal):
    during = f"the kill of pod {ordinal}"
    with judged(cluster, during) as workload:
        cluster.kill(f"{cluster.name}-a-{ordinal}")
        workload.progress()
        cluster.wait_ready()
        cluster.wait_in_sync(topic_of(during))
