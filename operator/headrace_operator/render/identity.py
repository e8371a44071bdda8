"""The identities of a Cluster's brokers: node ids, roles and pods, independent of ordinals.

They are fixed once and stored in a ConfigMap (and on each volume claim, which outlives it). A pod
is identified by pool and ordinal, a broker by its node id; only this module maps one to the other.
Pure.
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
    "as_read",
    "cluster_id_of",
    "next_ordinal",
    "started",
    "stopped",
]


class Node(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One broker. `life` counts the brokers that had this id: each has its own log directory."""

    node_id: int
    pool: str
    ordinal: int
    roles: tuple[str, ...] = ("broker", "controller")
    rack: str | None = None
    life: int = 1
    #: By listener: the port of the Service, so that a recreated Service gets the same.
    node_ports: dict[str, int] = {}
    #: By listener: the load balancer's address.
    addresses: dict[str, str] = {}
    #: It joined a formed cluster, and has not got its share of replicas yet.
    is_joining: bool = False
    #: It ran before the cluster was formed.
    has_run: bool = False
    #: The last request for new volumes (spec.replaceVolumes) that was begun.
    replacement: str = ""
    #: While that is in progress: uids of the volume claims and of the pod to be replaced.
    given_up: tuple[str, ...] = ()
    #: While it begins in a place that a removed broker had: that one's id.
    succeeds: int | None = None

    @property
    def is_broker(self) -> bool:
        """Whether it serves clients."""
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        """Whether it votes in the metadata quorum."""
        return "controller" in self.roles


class Good(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all brokers served with: enough of the spec to recreate their pods."""

    image: str
    version: str
    is_image_named: bool = False
    #: config (settings read at start), listeners, imagePullSecrets, and pools' fields by name.
    spec: dict[str, Any] = {}


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A spec that a broker could not start with. `key` identifies it; `reason` is for users."""

    key: str
    reason: str


class Identity(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was fixed when the cluster was formed, and its present brokers."""

    cluster_id: str
    #: The initial number of brokers: the replication defaults follow from it forever.
    formed_with: int = 1
    #: The quorum's log names the voters. From then on no node may start a second quorum.
    is_formed: bool = False
    #: How often its spec was replaced before it ever started.
    redescribed: int = 0
    #: The brokers' image. It changes with spec.image, or without that with spec.version, and never
    #: with the operator's own version.
    image: str = ""
    #: Whether spec.image named it.
    is_image_named: bool = False
    version: str = ""
    nodes: tuple[Node, ...] = ()
    #: By node id: how many brokers have had this id.
    lives: dict[str, int] = {}
    #: By node id: the volume claims (uids) of each broker that served and may vote.
    disks: dict[str, tuple[str, ...]] = {}
    #: Who voted when the quorum last had a leader; (): not known.
    voters: tuple[int, ...] = ()
    #: By listener: the NodePort of the brokers' shared Service, so that a recreated one keeps it.
    bootstrap_ports: dict[str, int] = {}
    good: Good | None = None
    failed: Failed | None = None
    #: What pods were last rendered from: config (settings read at start), listeners,
    #: imagePullSecrets, and whole pools.
    described: dict[str, Any] = {}
    #: The finalized feature levels when brokers were last asked.
    levels: dict[str, int] = {}
    #: By image: the feature levels that its brokers support, lowest and highest.
    supported: dict[str, dict[str, tuple[int, int]]] = {}

    def node(self, node_id: int) -> Node | None:
        """Return the broker with this id."""
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
        """Return the identity with this broker in place of the one with the same id."""
        others = [each for each in self.nodes if each.node_id != node.node_id]
        nodes = tuple(sorted([*others, node], key=lambda each: each.node_id))
        return msgspec.structs.replace(self, nodes=nodes)

    def at_version(self, version: str, named: str | None, default: str) -> Identity:
        """Return the identity with the image that the spec names.

        If it names none, use the `default` if the version has changed, or if the present image came
        from the spec; otherwise keep the present image.
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


def as_read(value: Any) -> Any:
    """Return a value as it is read again once it was stored: with lists in place of tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def cluster_id_of(uid: str) -> str:
    """Derive a cluster's id from its resource's uid, in Kafka's form (22 characters of base64).

    The same uid gives the same id: an operator that was killed before it stored the id does not
    make a second one.
    """
    digits = uid.replace("-", "")
    text = base64.urlsafe_b64encode(bytes.fromhex(digits)).rstrip(b"=").decode()
    # Kafka's tools would take a leading dash for an option.
    return f"_{text[1:]}" if text.startswith("-") else text


def next_ordinal(identity: Identity, pool: str) -> int:
    """Return the ordinal of the pool's next pod: StatefulSets count without gaps."""
    return len(identity.pool(pool))


def started(identity: Identity, node: Node) -> Identity:
    """Return the identity with a joining broker; a known one changes nothing."""
    if identity.node(node.node_id) is not None:
        return identity
    life = identity.lives.get(str(node.node_id), 0) + 1
    lives = identity.lives | {str(node.node_id): life}
    node = msgspec.structs.replace(node, life=life, is_joining=identity.is_formed)
    return msgspec.structs.replace(identity, lives=lives).replaced(node)


def stopped(identity: Identity, node_id: int) -> Identity:
    """Return the identity without a removed broker. Its id is free; its life is remembered."""
    nodes = tuple(node for node in identity.nodes if node.node_id != node_id)
    return msgspec.structs.replace(identity, nodes=nodes)
