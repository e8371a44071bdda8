"""What of a Cluster's spec is found wrong before anything is rendered from it."""

from typing import Any

import pytest

from headrace_operator.kubernetes.spec_check import cluster_spec_problems
from support.operator_resources import cluster


def test_a_spec_that_brokers_can_start_with_has_no_problem() -> None:
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": 1 << 30}}
    pools = [{"name": "a", "resources": resources, "storage": {"size": "1.5Gi"}}]
    config = {"num.partitions": 3, "log.retention.ms": "60000"}
    labels = {"example.org/team": "A_1.b", "x": "", "kubernetes.io/metadata.name": "n"}
    allowed = {"namespaces": {"from": "Selector", "selector": {"matchLabels": labels}}}
    assert cluster_spec_problems(cluster(pools, config=config, allowedTopics=allowed)) == ()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"config": {"num.partitons": 3}}, "spec.config: num.partitons: unknown broker setting"),
        ({"config": {"num.partitions": "many"}}, "'many' is not an integer"),
        ({"listeners": [{"name": "x", "port": 9091}]}, "port 9091 is the brokers' own"),
        *(
            ({"listeners": [{"name": name}]}, "the brokers' own listener or port has this name")
            for name in ("controller", "replication", "http", "HTTP")
        ),
        ({"listeners": [{"name": "a--b"}]}, "a--b: a port's name has no two hyphens in a row"),
        (
            {"pools": [{"name": "a", "resources": {"limits": {"memory": "640gb"}}}]},
            "a: resources.limits.memory: '640gb' is no quantity",
        ),
        ({"pools": [{"name": "a", "storage": {"size": "lots"}}]}, "storage.size: 'lots'"),
        ({"version": "3.9"}, "spec.version: 3.9: these brokers offer the features of 4.2"),
        *(
            (
                {"allowedTopics": {"namespaces": {"selector": {"matchLabels": labels}}}},
                "no namespace can have this label",
            )
            for labels in ({"team": "a b"}, {"te am": "a"}, {"a/b/c": "d"}, {"team": "a,b=c"})
        ),
    ],
)
def test_what_brokers_could_not_start_with_is_named(spec: dict[str, Any], words: str) -> None:
    (problem,) = cluster_spec_problems(cluster(**spec))
    assert words in problem
