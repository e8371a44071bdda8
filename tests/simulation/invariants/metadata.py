"""Invariants of partitions in the metadata: what a change may do to one, and that all see the same.

Rules: KIP-497 (partition epochs), KIP-966 (eligible leader replicas), KRaft's elections.
"""

import dataclasses
from typing import Any
from uuid import UUID

from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant


class Metadata(Invariant):
    """Remembers each state of each partition by its partition epoch, and each image by its offset.

    One node replays the log and another loads a snapshot: both must see the same.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._states: dict[tuple[UUID, int, int], Any] = {}
        self._images: dict[int, Any] = {}
        self._published: dict[int, Any] = {}
        self._applied: dict[int, Any] = {}
        self._by_offset: dict[int, Any] = {}

    def check_process(self, node: Node) -> None:
        """Look at the metadata that a node has published last."""
        self._compare(node)
        replicas: Any = getattr(node.broker, "replicas", None)
        if replicas is None:
            return
        image = replicas.host.image
        self._check_applied(node, replicas, image)
        if self._images.get(node.node_id) is image:
            return
        self._images[node.node_id] = image
        for topic_id, topic in image.topics_by_id.items():
            for index, partition in topic.partitions.items():
                key = (topic_id, int(index), int(partition.partition_epoch))
                known = self._states.get(key)
                if known is None:
                    self._states[key] = partition
                    former = self._states.get((topic_id, int(index), key[2] - 1))
                    self._check(f"{topic.name}-{index}", former, partition)
                elif known is not partition and _facts(known) != _facts(partition):
                    self.history.violate(
                        "metadata-differs",
                        f"{topic.name}-{index}: {node} has {_facts(partition)}, another node had "
                        f"{_facts(known)}",
                    )

    def _check_applied(self, node: Node, replicas: Any, image: Any) -> None:
        """A broker's replicas are what its published image says, wherever that is from."""
        quorum: Any = getattr(node.broker, "_metadata_quorum", None)
        if self._applied.get(node.node_id) is image or quorum.loader.image is not image:
            return
        self._applied[node.node_id] = image
        for topic in image.topics.values():
            held = replicas.partitions_of(topic.name)
            for index, partition in topic.partitions.items():
                is_offline = (topic.topic_id, index) in replicas._offline
                if node.node_id not in partition.replicas or is_offline:
                    continue
                replica = held.get(index)
                if replica is None or replica.leader_epoch != partition.leader_epoch:
                    self.history.violate(
                        "metadata-not-applied",
                        f"{node}: {topic.name}-{index} is of leader epoch "
                        f"{None if replica is None else replica.leader_epoch}, the image of offset "
                        f"{image.offset} says {partition.leader_epoch}",
                    )

    def _compare(self, node: Node) -> None:
        quorum: Any = getattr(node.broker, "_metadata_quorum", None)
        if quorum is None or self._published.get(node.node_id) is quorum.loader.image:
            return
        image = self._published[node.node_id] = quorum.loader.image
        known = self._by_offset.setdefault(int(image.offset), image)
        if known != image:
            names = [
                field.name
                for field in dataclasses.fields(image)
                if getattr(known, field.name) != getattr(image, field.name)
            ]
            self.history.violate(
                "metadata-differs",
                f"{node} at offset {image.offset}: "
                + "; ".join(
                    f"{name} {getattr(image, name)}, another node had {getattr(known, name)}"
                    for name in names
                ),
            )

    def _note(self, former: Any, now: Any) -> None:
        """Count what is rare."""
        if now.leader < 0:
            self.history.reach("a partition is without a leader")
        elif former is not None and now.leader != former.leader and now.leader not in former.isr:
            if now.leader in former.eligible_leader_replicas:
                self.history.reach("an eligible replica that is not in sync leads")
            elif now.leader in former.last_known_elr:
                self.history.reach("a last known leader leads")

    def _check(self, where: str, former: Any, now: Any) -> None:
        self._note(former, now)
        replicas, isr = set(now.replicas), set(now.isr)
        elr = set(now.eligible_leader_replicas)
        wrong = ""
        if not isr <= replicas:
            wrong = "in-sync replicas that are none"
        elif not elr <= replicas or elr & isr:
            wrong = "eligible leaders that are no replicas, or in sync"
        elif not set(now.last_known_elr) <= replicas:
            wrong = "last known eligible leaders that are no replicas"
        elif now.leader >= 0 and now.leader not in isr:
            wrong = "a leader that is not in sync"
        elif former is not None:
            wrong = _wrong_change(former, now)
        if wrong:
            before = None if former is None else _facts(former)
            self.history.violate("metadata", f"{where}: {wrong}: {before} -> {_facts(now)}")


def _wrong_change(former: Any, now: Any) -> str:
    if now.leader_epoch < former.leader_epoch:
        return "a leader epoch that goes back"
    if set(former.replicas) - set(now.replicas) and now.leader_epoch == former.leader_epoch:
        return "a replica that goes on in its leader epoch though it was removed"
    moved = former.adding_replicas or former.removing_replicas
    original = set(former.replicas) - set(former.adding_replicas)
    is_over = moved and not (now.adding_replicas or now.removing_replicas)
    if is_over and set(now.replicas) != original and not set(now.replicas) <= set(now.isr):
        return "a reassignment that is over before its replicas are in sync"
    if now.leader != former.leader:
        if now.leader_epoch == former.leader_epoch:
            return "another leader in the same epoch"
        if now.leader >= 0 and now.leader not in _electable(former, now):
            return "a leader that was neither in sync nor eligible"
    return ""


def _electable(former: Any, now: Any) -> set[int]:
    """Who may lead next; the last known leader where nobody is left (KIP-966's balanced mode)."""
    last = former.last_known_elr
    is_last_resort = len(last) == 1 and not former.isr and not now.eligible_leader_replicas
    # The last of a reassignment's new replicas joins, which completes it, and leads at once.
    joins = set(now.isr) if now.replicas != former.replicas else set()
    return {
        *former.isr,
        *former.eligible_leader_replicas,
        *(last if is_last_resort else ()),
        *joins,
    }


def _facts(partition: Any) -> tuple[Any, ...]:
    return (
        partition.leader,
        partition.leader_epoch,
        tuple(partition.replicas),
        tuple(partition.isr),
        tuple(partition.eligible_leader_replicas),
        tuple(partition.last_known_elr),
    )
