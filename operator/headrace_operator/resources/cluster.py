"""`Cluster`: brokers in pools, their listeners and settings."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace_operator.resources.common import (
    Condition,
    ConfigValue,
    DeletionPolicy,
    Object,
    Spec,
)

Role = Literal["broker", "controller"]


class Storage(Spec, frozen=True, kw_only=True):
    """Where a broker of the pool stores its log directories."""

    type: Literal["Persistent", "Ephemeral"] = "Persistent"
    size: str | int = "10Gi"
    storage_class_name: str | None = None
    volumes: int = 1
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    #: For a volume that is bound to a node that no longer exists.
    lost_node_policy: Literal["Wait", "Replace"] = "Wait"


class Resources(Spec, frozen=True, kw_only=True):
    """CPU and memory of one broker, as in a container."""

    requests: dict[str, str | int] = msgspec.field(default_factory=dict)
    limits: dict[str, str | int] = msgspec.field(default_factory=dict)


class PodTemplateMetadata(Spec, frozen=True, kw_only=True):
    """Labels and annotations for brokers' pods besides Headrace's own."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class PodTemplate(Spec, frozen=True, kw_only=True):
    """What is merged into the pods of a pool; `spec` is a partial PodSpec."""

    metadata: PodTemplateMetadata = PodTemplateMetadata()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class Pool(Spec, frozen=True, kw_only=True):
    """Brokers with the same configuration. Node ids never follow from ordinals."""

    name: str
    replicas: int = 1
    roles: tuple[Role, ...] = ("broker", "controller")
    racks: tuple[str, ...] = ()
    storage: Storage = Storage()
    resources: Resources = Resources()
    pod_template: PodTemplate = PodTemplate()


class TlsCertificate(Spec, frozen=True, kw_only=True):
    """A Secret of type kubernetes.io/tls; absent: the operator issues certificates."""

    secret_name: str


class Tls(Spec, frozen=True, kw_only=True):
    """Encryption of a listener."""

    enabled: bool = False
    certificate: TlsCertificate | None = None


class Authentication(Spec, frozen=True, kw_only=True):
    """How clients of a listener authenticate."""

    type: Literal["None", "ScramSha512", "MutualTls"] = "None"


class Listener(Spec, frozen=True, kw_only=True):
    """An address for clients."""

    name: str
    port: int = 9092
    type: Literal["Internal", "NodePort", "LoadBalancer"] = "Internal"
    #: The port of the brokers' shared Service; absent: the API server chooses one, which is kept.
    node_port: int | None = None
    tls: Tls = Tls()
    authentication: Authentication = Authentication()


class LabelSelector(Spec, frozen=True, kw_only=True):
    """Labels that a namespace must have."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)


class AllowedNamespaces(Spec, frozen=True, kw_only=True):
    """Namespaces whose Topics and ConsumerGroups may refer to the Cluster."""

    from_: Literal["Same", "All", "Selector"] = msgspec.field(default="Same", name="from")
    selector: LabelSelector = LabelSelector()


class AllowedTopics(Spec, frozen=True, kw_only=True):
    """Which Topics and ConsumerGroups the Cluster accepts (as in the Gateway API)."""

    namespaces: AllowedNamespaces = AllowedNamespaces()


class Monitoring(Spec, frozen=True, kw_only=True):
    """What the operator creates for Prometheus."""

    enabled: bool = True
    interval: str = "30s"
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Moves(Spec, frozen=True, kw_only=True):
    """How replicas move to joining brokers and away from leaving ones."""

    #: Bytes per second that each broker sends and receives for moves; 0: unlimited.
    throttle: str | int = "50Mi"
    #: How many partitions' replicas are copied at the same time.
    concurrent: int = 10
    #: No move begins; moves in progress continue.
    paused: bool = False


class VolumeReplacement(Spec, frozen=True, kw_only=True):
    """A broker that must start again with new volumes. Done once for each `request_id`."""

    broker: int
    request_id: str


class LocalObjectReference(Spec, frozen=True, kw_only=True):
    """An object of the Cluster's own namespace."""

    name: str


class ClusterSpec(Spec, frozen=True, kw_only=True):
    """The desired state of a cluster."""

    pools: tuple[Pool, ...]
    version: str = "4.2"
    #: Absent: the operator's own, kept until `version` changes.
    image: str | None = None
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    moves: Moves = Moves()
    replace_volumes: tuple[VolumeReplacement, ...] = ()
    #: Node ids of brokers that are to leave: drained, and gone for good.
    remove_brokers: tuple[int, ...] = ()
    #: Levels that the whole cluster is to work at, by feature; the others stay.
    features: dict[str, int] = msgspec.field(default_factory=dict)
    listeners: tuple[Listener, ...] = (Listener(name="plain"),)
    config: dict[str, ConfigValue] = msgspec.field(default_factory=dict)
    deletion_policy: DeletionPolicy = "Retain"
    update_policy: Literal["Auto", "Plan"] = "Auto"
    approved_plan: str | None = None
    paused: bool = False
    allowed_topics: AllowedTopics = AllowedTopics()
    monitoring: Monitoring = Monitoring()


class PoolStatus(Spec, frozen=True, kw_only=True):
    """The node ids of a pool."""

    name: str
    node_ids: tuple[int, ...] = ()
    ready: int = 0


class PlanStatus(Spec, frozen=True, kw_only=True):
    """The proposed actions, and the hash that approves them."""

    hash: str = ""
    actions: tuple[str, ...] = ()


class OrphanTopics(Spec, frozen=True, kw_only=True):
    """Topics without a Topic resource: their number, and the first names."""

    count: int = 0
    names: tuple[str, ...] = ()


class MovesStatus(Spec, frozen=True, kw_only=True):
    """The progress of moving replicas."""

    partitions_moving: int = 0
    partitions_left: int = 0
    bytes_total: int | None = None
    bytes_left: int | None = None
    seconds_left: int | None = None


class ClusterStatus(Spec, frozen=True, kw_only=True):
    """The observed state of a cluster."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    cluster_id: str | None = None
    bootstrap_servers: str | None = None
    brokers: int = 0
    ready_brokers: int = 0
    pools: tuple[PoolStatus, ...] = ()
    plan: PlanStatus = PlanStatus()
    orphan_topics: OrphanTopics = OrphanTopics()
    moves: MovesStatus | None = None
    features: dict[str, int] = msgspec.field(default_factory=dict)


class Cluster(Object, frozen=True, kw_only=True):
    """A cluster of brokers."""

    spec: ClusterSpec
    status: ClusterStatus = ClusterStatus()
