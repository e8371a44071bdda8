"""kube-apiserver and etcd are away for half a minute: clients of brokers notice nothing.

The last of the suites: others may share the lab. Only where the cluster is the lab.
"""

import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException

from support.kube_cluster import KubeCluster
from support.kube_traffic import judged
from support.processes import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AWAY_SECONDS = 30
#: Until the operator has its lease and its watches back, and has done what was asked.
RECOVERY_SECONDS = 60
NODES_SECONDS = 120


def is_set(cluster):
    """Whether a broker has the new setting; clients that begin now may find no ready pod."""
    with suppress(KafkaException):
        return cluster.broker_config(2)["log.retention.ms"] == "3600000"
    return False


@pytest.mark.parametrize("components", [("apiserver",), ("apiserver", "etcd")], ids=" and ".join)
def test_brokers_serve_on_while_the_control_plane_is_away(namespace, operator, lab, components):
    if not lab.is_there:
        pytest.skip("KUBELAB is not set: this cluster's control plane is not ours to kill")
    with KubeCluster(namespace) as cluster:
        uids = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
        restarts = operator.restarts()
        with judged(cluster, f"{AWAY_SECONDS} s without {' and '.join(components)}") as workload:
            try:
                for component in components:
                    lab.kill(component)
                time.sleep(AWAY_SECONDS)
                workload.progress()
            finally:
                for component in reversed(components):
                    lab.start(component)
                lab.wait_ready()
            operator.wait_ready()
            assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == uids
            # And it goes on with its work, the same process that lost its lease and its watches.
            cluster.spec["config"] = {"log.retention.ms": 3_600_000}
            cluster.apply()
            wait_until(lambda: is_set(cluster), RECOVERY_SECONDS, "the change to reach brokers")
            assert operator.restarts() == restarts
            # A node that was not heard of for long is not ready, nor are its pods, until its
            # kubelet has found the API server again.
            cluster.wait_ready(NODES_SECONDS)
