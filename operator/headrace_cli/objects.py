"""Topics, groups and brokers from the brokers' answers, as objects to print.

Documents of topics and groups are manifests that can be applied again.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from headrace_cli.output import Item
from headrace_cli.up.views import describe_age
from headrace_operator.balance import cordoned_brokers
from headrace_operator.observe import (
    list_offsets,
    observe_brokers,
    observe_groups,
    observe_partitions,
)
from headrace_operator.plan import Desired
from headrace_operator.plan.replicas import count_replicas
from headrace_operator.resources import (
    API_VERSION,
    ConsumerGroup,
    ConsumerGroupSpec,
    ObjectMeta,
    Reference,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_cli.clients import Target
    from headrace_operator.plan import ObservedGroup, ObservedTopic, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "broker_items",
    "cluster_item",
    "group_items",
    "load_groups",
    "load_topics",
    "topic_items",
]

# ListOffsets' special timestamps (KIP-79).
LATEST, EARLIEST = -1, -2


def load_topics(admin: Any) -> Mapping[str, ObservedTopic]:
    """Query all topics except the internal ones."""
    return observe_brokers(admin, Desired(), now_ms=0).topics


def load_groups(admin: Any, names: Sequence[str] | None = None) -> Mapping[str, ObservedGroup]:
    """Query groups, by default all; with members, offsets and ends."""
    if names is None:
        names = [group["group_id"] for group in admin.list_groups()]
    groups = [
        ConsumerGroup(
            api_version=API_VERSION,
            kind="ConsumerGroup",
            metadata=ObjectMeta(name=name),
            spec=ConsumerGroupSpec(cluster_ref=Reference(name="")),
        )
        for name in names
    ]
    now_ms = int(time.time() * 1000)
    return observe_groups(admin, groups, load_topics(admin), now_ms=now_ms)


def topic_items(admin: Any, topics: Mapping[str, ObservedTopic], target: Target) -> list[Item]:
    """Make objects of topics, with how many records each has."""
    keys = [(name, index) for name, topic in topics.items() for index in range(topic.partitions)]
    starts = list_offsets(admin, dict.fromkeys(keys, EARLIEST))
    ends = list_offsets(admin, dict.fromkeys(keys, LATEST))
    return [
        Item(
            kind="Topic",
            name=name,
            columns={
                "PARTITIONS": str(topic.partitions),
                "REPLICAS": str(topic.replicas),
                "RECORDS": str(_records(name, topic.partitions, starts, ends)),
                "STATE": _topic_state(topic),
            },
            wide={
                "ID": topic.topic_id,
                "CONFIG": ",".join(f"{key}={text}" for key, text in sorted(topic.config.items())),
            },
            document=_document(
                "Topic",
                name,
                target,
                spec=({"topicName": name} if _object_name(name) != name else {})
                | {"partitions": topic.partitions, "replicas": topic.replicas}
                | ({"config": dict(sorted(topic.config.items()))} if topic.config else {}),
                status={
                    "topicName": name,
                    "topicId": topic.topic_id,
                    "partitions": topic.partitions,
                    "replicas": topic.replicas,
                },
            ),
        )
        for name, topic in sorted(topics.items())
    ]


def group_items(groups: Mapping[str, ObservedGroup], target: Target) -> list[Item]:
    """Make objects of groups, with their lag."""
    return [
        Item(
            kind="ConsumerGroup",
            name=name,
            columns={
                "TYPE": group.type,
                "STATE": group.state or "-",
                "MEMBERS": str(len(group.members)),
                "LAG": str(group.lag_records) if group.offsets else "-",
            },
            wide={
                "LAG-TIME": describe_age(group.lag_seconds),
                "TOPICS": ",".join(_group_topics(group)) or "-",
            },
            document=_document(
                "ConsumerGroup",
                name,
                target,
                spec=({"groupId": name} if _object_name(name) != name else {})
                | ({"type": "Share"} if group.is_share else {})
                | {"topics": _group_topics(group)},
                status={
                    "groupId": name,
                    "type": group.type,
                    "state": group.state,
                    "members": len(group.members),
                }
                | ({"lagRecords": group.lag_records} if group.offsets else {})
                | ({} if group.lag_seconds is None else {"lagSeconds": group.lag_seconds}),
            ),
        )
        for name, group in sorted(groups.items())
    ]


def broker_items(admin: Any, target: Target) -> list[Item]:
    """Make objects of brokers; pools and health addresses are known for a local cluster."""
    known = {broker.node_id: broker for broker in (target.state.brokers if target.state else [])}
    reached = target.kubernetes
    described = admin.describe_cluster()
    counts = count_replicas(observe_partitions(admin.describe_topics()))
    alive = [each["broker_id"] for each in described["brokers"] if not each.get("is_fenced")]
    cordoned = cordoned_brokers(admin, alive)
    items = []
    for broker in sorted(described["brokers"], key=lambda broker: broker["broker_id"]):
        node_id = broker["broker_id"]
        local = known.get(node_id)
        state = "Fenced" if broker.get("is_fenced") else "Registered"
        if node_id in cordoned:
            state += ",Cordoned"
        address = f"{broker['host']}:{broker['port']}"
        pool, http = (local.pool, local.http) if local else (None, None)
        if reached is not None:
            pool, http = reached.pools.get(broker["host"]), None
        items.append(
            Item(
                kind="Broker",
                name=str(node_id),
                columns={
                    "ADDRESS": address,
                    "STATE": state,
                    "LEADERS": str(counts.leaders[node_id]),
                    "IN-SYNC": f"{counts.in_sync[node_id]}/{counts.replicas[node_id]}",
                    "POOL": pool or "-",
                    "HTTP": http or "-",
                },
                wide={
                    "ROLES": ",".join(local.roles) if local else "-",
                    "RACK": broker.get("rack") or "-",
                    "CONTROLLER": str(node_id == described["controller_id"]).lower(),
                },
                document={
                    "nodeId": node_id,
                    "address": address,
                    "state": state,
                    "cordoned": node_id in cordoned,
                    "leaders": counts.leaders[node_id],
                    "replicas": counts.replicas[node_id],
                    "inSyncReplicas": counts.in_sync[node_id],
                    "rack": broker.get("rack"),
                    "pool": pool,
                    "http": http,
                },
            )
        )
    return items


def cluster_item(admin: Any, target: Target) -> Item:
    """Make an object of the cluster."""
    described = admin.describe_cluster()
    name = target.name or described["cluster_id"]
    ready = sum(not broker.get("is_fenced") for broker in described["brokers"])
    wanted = len(target.state.brokers) if target.state else len(described["brokers"])
    known_status: dict[str, Any] = {}
    alive = [each["broker_id"] for each in described["brokers"] if not each.get("is_fenced")]
    cordoned = sorted(cordoned_brokers(admin, alive))
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "metadata": {"name": name},
    }
    if target.layout is not None:
        from headrace_operator.local.desired import DesiredStore

        stored = DesiredStore(target.layout).documents()
        clusters = [each for each in stored if each["kind"] == "Cluster"]
        document = next((each for each in clusters if each["metadata"]["name"] == name), document)
    bootstrap_servers = target.bootstrap_servers
    if target.kubernetes is not None:
        document = target.kubernetes.document
        known_status = document.get("status", {})
        wanted = known_status.get("brokers", wanted)
        # The address for clients inside Kubernetes; outside, use this command.
        bootstrap_servers = known_status.get("bootstrapServers", "-")
    status = known_status | {
        "clusterId": described["cluster_id"],
        "bootstrapServers": bootstrap_servers,
        "brokers": wanted,
        "readyBrokers": ready,
        "cordonedBrokers": cordoned,
    }
    notes = {"CORDONED": ",".join(map(str, cordoned))} if cordoned else {}
    for condition in known_status.get("conditions", ()):
        if condition["type"] == "Ready":
            notes["READY"] = f"{condition['status']} ({condition['reason']})"
    return Item(
        kind="Cluster",
        name=name,
        columns={"BROKERS": f"{ready}/{wanted}", "BOOTSTRAP": bootstrap_servers} | notes,
        wide={"ID": described["cluster_id"], "CONTROLLER": str(described["controller_id"])},
        document=document | {"status": status},
    )


def _document(
    kind: str, name: str, target: Target, *, spec: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    reference = {"clusterRef": {"name": target.name}} if target.name else {}
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": _object_name(name)},
        "spec": reference | spec,
        "status": status,
    }


def _object_name(name: str) -> str:
    """Derive a Kubernetes name from a topic's or group's, which may have other characters."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "unnamed"


def _records(
    name: str,
    partitions: int,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> int:
    keys = [(name, index) for index in range(partitions)]
    return sum(ends[key] - starts.get(key, 0) for key in keys if key in ends)


def _topic_state(topic: ObservedTopic) -> str:
    if topic.offline:
        return f"{len(topic.offline)} offline"
    if topic.under_replicated:
        return f"{len(topic.under_replicated)} under-replicated"
    return "Ready"


def _group_topics(group: ObservedGroup) -> list[str]:
    assigned = {topic for member in group.members for topic, _ in member.assignment}
    return sorted({topic for topic, _ in group.offsets} | assigned)
