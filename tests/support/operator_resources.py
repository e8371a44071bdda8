"""Short ways to make resources and observations for the operator's tests."""

from typing import Any

from headrace_operator.plan import Desired, Observed, ObservedBroker, ObservedCluster, ObservedTopic
from headrace_operator.resources import (
    API_VERSION,
    Cluster,
    ConsumerGroup,
    SparkApplication,
    Topic,
    parse_resource,
)

CONFIG = {"default.replication.factor": "1"}


def make(kind: str, name: str, spec: dict[str, Any], **rest: Any) -> Any:
    api_version = "sparkoperator.k8s.io/v1beta2" if kind == "SparkApplication" else API_VERSION
    metadata = {"name": name, **rest.pop("metadata", {})}
    return parse_resource(
        {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, **rest}
    )


def cluster(pools: list[dict[str, Any]] | None = None, **spec: Any) -> Cluster:
    body = {"pools": pools or [{"name": "a"}], "config": CONFIG, **spec}
    return make("Cluster", "c", body)  # type: ignore[no-any-return]  # make returns any kind


def topic(name: str = "t", **spec: Any) -> Topic:
    rest = {key: spec.pop(key) for key in ("metadata", "status") if key in spec}
    body = {"clusterRef": {"name": "c"}, **spec}
    return make("Topic", name, body, **rest)  # type: ignore[no-any-return]  # as above


def group(name: str = "g", **spec: Any) -> ConsumerGroup:
    rest = {key: spec.pop(key) for key in ("metadata", "status") if key in spec}
    body = {"clusterRef": {"name": "c"}, **spec}
    return make("ConsumerGroup", name, body, **rest)  # type: ignore[no-any-return]  # as above


def application(name: str = "job", **spec: Any) -> SparkApplication:
    return make("SparkApplication", name, {"type": "Python", **spec})  # type: ignore[no-any-return]  # as above


def broker(node_id: int = 1, pool: str = "a", **rest: Any) -> ObservedBroker:
    return ObservedBroker(node_id=node_id, pool=pool, **{"config": CONFIG, **rest})


def observed(*brokers: ObservedBroker, **rest: Any) -> Observed:
    return Observed(cluster=ObservedCluster(brokers=brokers or (broker(),)), **rest)


def desired(*topics: Topic, **rest: Any) -> Desired:
    return Desired(**{"cluster": cluster(), "topics": topics, **rest})


def existing(partitions: int = 1, replicas: int = 1, **config: str) -> ObservedTopic:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return ObservedTopic(partitions=partitions, replicas=replicas, config=settings)
