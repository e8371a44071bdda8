"""Who the brokers of a Cluster are: node ids, roles and places, apart from StatefulSets' ordinals.

Settled once and kept in a ConfigMap (and on each volume claim, which outlives it). A pod is known
by pool and ordinal, a broker by its node id; this is the only place where both meet. Pure.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

__all__ = [
    "Failed",
    "Good",
    "Identity",
    "Node",
    "cluster_id_of",
    "next_ordinal",
    "started",
    "stopped",
]


class Node(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One broker. `life` counts brokers that had this id: each has a log directory of its own."""

    node_id: int
    pool: str
    ordinal: int
    roles: tuple[str, ...] = ("broker", "controller")
    rack: str | None = None
    life: int = 1
    #: By listener: what the API server gave the Service, so that a recreated one gets the same.
    node_ports: dict[str, int] = {}
    #: By listener: where a load balancer is.
    addresses: dict[str, str] = {}
    #: It joined a formed cluster, and has not been given its share of replicas yet.
    is_joining: bool = False
    #: It was seen to run before the cluster was formed.
    has_run: bool = False
    #: The last request for new volumes (spec.replaceVolumes) that was begun.
    replacement: str = ""
    #: While it is under way: uids of the volume claims and of the pod that it does not keep.
    given_up: tuple[str, ...] = ()
    #: While it begins in a place that a removed broker had: that one's id.
    succeeds: int | None = None

    @property
    def is_broker(self) -> bool:
        """Whether clients talk to it."""
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        """Whether it votes in the metadata quorum."""
        return "controller" in self.roles


class Good(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all brokers served with: enough of the spec to make their pods again."""

    image: str
    version: str
    is_image_named: bool = False
    #: config (of what is read at the start), listeners, imagePullSecrets, and pools' by name.
    spec: dict[str, Any] = {}


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker did not come up with. `key` names it; `reason` says it to people."""

    key: str
    reason: str


class Identity(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was settled when the cluster was formed, and which brokers there are."""

    cluster_id: str
    #: Brokers there were at first: defaults of replication follow from it, for ever.
    formed_with: int = 1
    #: The quorum has written who votes into its log. From then on nobody may begin a second one.
    is_formed: bool = False
    #: How often it was described again before it ever started.
    redescribed: int = 0
    #: What the brokers run. It changes with spec.image, or without one with spec.version, and never
    #: with the operator's own version.
    image: str = ""
    #: spec.image named it.
    is_image_named: bool = False
    version: str = ""
    nodes: tuple[Node, ...] = ()
    #: By node id: how many brokers have had it.
    lives: dict[str, int] = {}
    #: By node id: the volume claims (uids) of each that served and may vote.
    disks: dict[str, tuple[str, ...]] = {}
    #: By listener: the NodePort of all brokers' Service, so that a recreated one gets the same.
    bootstrap_ports: dict[str, int] = {}
    good: Good | None = None
    failed: Failed | None = None
    #: The levels that features worked at when brokers were last asked.
    levels: dict[str, int] = {}
    #: By image: the levels of features that its brokers support, lowest and highest.
    supported: dict[str, dict[str, tuple[int, int]]] = {}

    def node(self, node_id: int) -> Node | None:
        """Return the broker of this id."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def pool(self, name: str) -> tuple[Node, ...]:
        """Return the brokers of a pool, by ordinal."""
        mine = (node for node in self.nodes if node.pool == name)
        return tuple(sorted(mine, key=lambda node: node.ordinal))

    @property
    def controllers(self) -> tuple[Node, ...]:
        """Return the nodes that vote, by id."""
        return tuple(
            sorted(
                (node for node in self.nodes if node.is_controller), key=lambda node: node.node_id
            )
        )

    def replaced(self, node: Node) -> Identity:
        """Return it with this broker instead of the one of the same id."""
        others = [each for each in self.nodes if each.node_id != node.node_id]
        nodes = tuple(sorted([*others, node], key=lambda each: each.node_id))
        return msgspec.structs.replace(self, nodes=nodes)

    def at_version(self, version: str, named: str | None, default: str) -> Identity:
        """Return it with the image that the spec names, as soon as it does.

        Without one it has the `default` where another version is wanted than it has, or where the
        image that it has was named; else what it has.
        """
        if named is not None:
            image = named
        elif self.is_image_named or version != self.version:
            image = default
        else:
            image = self.image
        return msgspec.structs.replace(
            self, version=version, image=image, is_image_named=named is not None
        )


def cluster_id_of(uid: str) -> str:
    """Make a cluster's id of its resource's uid, in Kafka's form (22 characters of base64).

    The same uid gives the same id: an operator that was killed before it wrote it down makes no
    second one.
    """
    digits = uid.replace("-", "")
    text = base64.urlsafe_b64encode(bytes.fromhex(digits)).rstrip(b"=").decode()
    # One that begins with a dash looks like an option to Kafka's tools.
    return f"_{text[1:]}" if text.startswith("-") else text


def next_ordinal(identity: Identity, pool: str) -> int:
    """Return the ordinal of the pool's next pod: StatefulSets count without gaps."""
    return len(identity.pool(pool))


def started(identity: Identity, node: Node) -> Identity:
    """Return it with a broker that joins, or that is known already (then nothing changes)."""
    if identity.node(node.node_id) is not None:
        return identity
    life = identity.lives.get(str(node.node_id), 0) + 1
    lives = identity.lives | {str(node.node_id): life}
    node = msgspec.structs.replace(node, life=life, is_joining=identity.is_formed)
    return msgspec.structs.replace(identity, lives=lives).replaced(node)


def stopped(identity: Identity, node_id: int) -> Identity:
    """Return it without a broker that was removed. Its id is free; its life is remembered."""
    nodes = tuple(node for node in identity.nodes if node.node_id != node_id)
    return msgspec.structs.replace(identity, nodes=nodes)
