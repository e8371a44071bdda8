"""PodMonitors find the pods that they are for, and give the labels that rules group by."""

from typing import Any

import yaml

from headrace_operator.render.policies import render_pod_monitor
from headrace_operator.render.spark_submission import ROLE_LABEL
from headrace_operator.resources import parse_resource
from support.monitoring import MANIFESTS, MONITORING


def monitors() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((MONITORING / "pod-monitors.yaml").read_text())
    return {each["metadata"]["name"]: each["spec"] for each in documents}


def test_the_operators_pods_and_port_are_found() -> None:
    deployment = yaml.safe_load((MANIFESTS / "base" / "deployment.yaml").read_text())
    template = deployment["spec"]["template"]
    monitor = monitors()["headrace-operator"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [container] = template["spec"]["containers"]
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}


def test_drivers_are_found_and_keep_their_own_label_job() -> None:
    monitor = monitors()["headrace-jobs"]
    assert monitor["selector"]["matchLabels"] == {ROLE_LABEL: "driver"}
    assert monitor["podMetricsEndpoints"][0]["honorLabels"] is True


def test_brokers_are_labelled_by_cluster_and_scraped_without_single_partitions() -> None:
    cluster = parse_resource(
        {
            "apiVersion": "headrace.dev/v1beta1",
            "kind": "Cluster",
            "metadata": {"name": "main", "namespace": "prod"},
            "spec": {"pools": [{"name": "brokers"}]},
        }
    )
    [endpoint] = render_pod_monitor(cluster)["spec"]["podMetricsEndpoints"]  # type: ignore[arg-type]  # a Cluster
    assert endpoint["path"] == "/metrics/summary"
    labels = {each["targetLabel"]: each["sourceLabels"] for each in endpoint["relabelings"]}
    assert labels["headrace_cluster"] == ["__meta_kubernetes_pod_label_headrace_dev_cluster"]
