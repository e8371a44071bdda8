"""A Cluster on a real Kubernetes: it comes up, is changed, loses pods, while clients use it."""

import time
from http import HTTPStatus
from http.client import HTTPSConnection
from urllib.parse import urlsplit

import pytest
import yaml

from headrace_operator.kubernetes.api.connection import find_connection
from support.kube import apply, get, kubectl
from support.kube_cluster import KubeCluster
from support.kube_traffic import judged, topic_of
from support.processes import wait_until

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


def test_a_setting_that_brokers_refuse_keeps_the_cluster_from_being_ready(cluster):
    cluster.spec["config"] = {**cluster.spec.get("config", {}), "log.retention.ms": -7}
    cluster.apply()
    wait_until(lambda: "-7" in cluster.condition("Stalled")["message"], 60, "the refusal")
    for _ in range(40):
        ready = cluster.condition()
        assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
        time.sleep(0.2)
    cluster.spec["config"]["log.retention.ms"] = 7_200_000
    cluster.apply()
    cluster.wait_ready()
    assert cluster.broker_config(1)["log.retention.ms"] == "7200000"


def test_a_typo_in_a_setting_costs_no_broker(cluster):
    before = uids(cluster)
    config = {**cluster.spec.get("config", {}), "log.retention.ms": 3_600_000}
    cluster.spec["config"] = {**config, "num.partitons": 5, "log.retention.ms": "soon"}
    cluster.apply()
    wait_until(lambda: cluster.condition("Stalled")["reason"] == "InvalidSpec", 60, "the typo")
    assert "num.partitons: unknown broker setting" in cluster.condition()["message"]
    time.sleep(3)
    assert restarted(cluster, before) == set()
    files = get(cluster.namespace, "cm", "c-a")["data"].values()
    assert not any("num.partitons" in text for text in files)
    cluster.spec["config"] = config
    cluster.apply()
    cluster.wait_ready()
    assert restarted(cluster, before) == set()


def test_a_roll_puts_right_first_what_pods_need_to_come_back(cluster):
    before = uids(cluster)
    owned = ("pdb/c-brokers", "serviceaccount/c-brokers", "networkpolicy/c-brokers")
    with judged(cluster, "a roll after what surrounds the brokers was deleted"):
        kubectl("-n", cluster.namespace, "delete", "--wait=false", *owned)
        cluster.spec["config"] = {**cluster.spec.get("config", {}), "num.partitions": 4}
        cluster.apply()
        cluster.wait_ready(300)
    assert restarted(cluster, before) == set(before)
    for each in owned:
        assert get(cluster.namespace, *each.split("/"))


def test_a_roll_takes_away_no_broker_that_could_not_come_back(cluster):
    before = uids(cluster)
    cluster.pool["podTemplate"] = {"spec": {"priorityClassName": "nobody-made-it"}}
    with judged(cluster, "a roll to pods that nobody would take"):
        cluster.apply()
        wait_until(
            lambda: "nobody-made-it" in cluster.condition("Stalled")["message"], 60, "the words"
        )
        time.sleep(5)
        assert restarted(cluster, before) == set()
        assert len(cluster.pods()) == len(before)
        del cluster.pool["podTemplate"]
        cluster.apply()
        cluster.wait_ready()
    assert cluster.condition("Stalled")["status"] == "False"


@pytest.mark.slow
def test_a_change_that_no_broker_comes_up_with_is_taken_back(cluster):
    before = uids(cluster)
    with judged(cluster, "an image that is not there, taken back"):
        cluster.spec["image"] = "headrace.invalid/headrace:never"
        cluster.apply()
        wait_until(lambda: cluster.condition("Stalled")["reason"] == "RolledBack", 180, "the end")
        assert "headrace.invalid/headrace:never" in cluster.condition()["message"]
        wait_until(lambda: len(cluster.brokers()) == len(before), 120, "all brokers")
        # Only the one that was tried with it.
        assert len(restarted(cluster, before)) == 1
        images = {pod["spec"]["containers"][0]["image"] for pod in cluster.pods().values()}
        assert "headrace.invalid/headrace:never" not in images
    del cluster.spec["image"]
    cluster.apply()
    cluster.wait_ready()
    assert len(restarted(cluster, before)) == 1


def pod_text(namespace, labels=None, **spec):
    """Return a pod that Pod Security `restricted` takes."""
    container = {
        "name": "c",
        "image": "none",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "executor", "namespace": namespace, "labels": labels or {}},
            "spec": {"securityContext": security, "containers": [container], **spec},
        }
    )


def asked_as(namespace, pod, name):
    """Return the status of a dry run of a ConfigMap's deletion, with a token bound to a pod."""
    connection = find_connection()
    server = urlsplit(connection.server)
    link = HTTPSConnection(server.hostname, server.port, context=connection.ssl_context())
    headers = {
        "Impersonate-User": f"system:serviceaccount:{namespace}:spark",
        "Impersonate-Extra-authentication.kubernetes.io%2Fpod-name": pod,
    }
    if (token := connection.read_token()) is not None:
        headers["Authorization"] = f"Bearer {token}"
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}?dryRun=All"
    link.request("DELETE", path, headers=headers)
    answer = link.getresponse()
    answer.read()
    link.close()
    return answer.status


def test_a_drivers_account_changes_no_object_of_a_cluster(cluster):
    namespace = cluster.namespace
    rules = [{"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["*"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "spark"}
    subject = {"kind": "ServiceAccount", "name": "spark", "namespace": namespace}
    metadata = {"name": "spark", "namespace": namespace}
    rbac = "rbac.authorization.k8s.io/v1"
    apply(
        {"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "name": "executors"}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {**metadata, "name": "headrace-operator"},
        },
    )
    account = f"--as=system:serviceaccount:{namespace}:spark"
    delete = ("-n", namespace, account, "delete", "--dry-run=server")
    create = ("-n", namespace, account, "create", "--dry-run=server", "-f", "-")
    for named in ("pod/c-a-0", "configmap/c-a", "configmap/c-identity"):
        with pytest.raises(RuntimeError, match="a Spark driver changes no object"):
            kubectl(*delete, named)
    kubectl(*delete, "configmap/executors")
    with pytest.raises(RuntimeError, match="goes by the operator's account"):
        kubectl(*create, stdin=pod_text(namespace, serviceAccountName="headrace-operator"))
    with pytest.raises(RuntimeError, match="makes no broker"):
        kubectl(*create, stdin=pod_text(namespace, {"headrace.dev/broker": "true"}))
    kubectl(*create, stdin=pod_text(namespace))
    # By a token that is bound to its pod, as drivers have it, it is known which driver asks.
    assert asked_as(namespace, "a-driver", "executors") == HTTPStatus.FORBIDDEN
    # A pod that is there, or the garbage collector takes what it owns; one that is never scheduled.
    driver = yaml.safe_load(pod_text(namespace, schedulingGates=[{"name": "headrace.dev/none"}]))
    driver["metadata"]["name"] = "a-driver"
    apply(driver)
    uid = get(namespace, "pod", "a-driver")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a-driver", "uid": uid}
    owned = {**metadata, "name": "owned", "ownerReferences": [owner]}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned})
    assert asked_as(namespace, "b-driver", "owned") == HTTPStatus.FORBIDDEN
    assert asked_as(namespace, "a-driver", "owned") == HTTPStatus.OK
    kubectl("-n", namespace, "delete", "--dry-run=server", "pod/c-a-0")
    # Who has no more than a name is not taken for a driver.
    group = ("--as=somebody", "--as-group=system:masters")
    kubectl("-n", namespace, *group, "delete", "--dry-run=server", "configmap/executors")
