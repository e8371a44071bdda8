"""The brokers' state: topics, settings, groups and lag, through Kafka's admin protocol.

Blocking and read-only: `headrace_operator.admin` runs it in a thread. Requests are batched: the
number of calls does not grow with the number of topics, only with that of resets.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_operator.features import observe_levels
from headrace_operator.lag import lag_seconds, oldest_unread
from headrace_operator.live_config import observe_live_config, observe_topic_settings
from headrace_operator.observe_moves import observe_reassignments, observe_sizes
from headrace_operator.plan import (
    Observed,
    ObservedBroker,
    ObservedCluster,
    ObservedGroup,
    ObservedMember,
    ObservedPartition,
    ObservedQuorum,
    ObservedReplica,
    ObservedTopic,
    pending_reset,
)
from headrace_operator.quorum import describe_quorum
from headrace_operator.resources.durations import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_operator.kafka_messages import SharePosition
    from headrace_operator.plan import Desired, TopicPartition
    from headrace_operator.quorum import QuorumReplica
    from headrace_operator.resources import ConsumerGroup, Reset

#: Below this share of free space on a volume, its Cluster reports it.
USABLE_SHARE_MIN = 0.05


def observe_brokers(admin: Any, desired: Desired, *, now_ms: int) -> Observed:
    """Query everything that a plan of `desired` needs.

    `admin` is a `kafka.KafkaAdminClient`; raises `kafka.errors.KafkaError`. Brokers are known by
    id only: pools and settings are the backend's (`merge_observations`).
    """
    described = admin.describe_cluster()
    # First: a move that ends between both answers then counts as one in progress.
    moving = observe_reassignments(admin)
    live_config = observe_live_config(admin)
    every = admin.describe_topics()
    topics = observe_topics(admin, [topic for topic in every if not topic["is_internal"]])
    partitions = observe_partitions(every)
    return Observed(
        cluster=ObservedCluster(
            cluster_id=described["cluster_id"],
            brokers=registered_brokers(described, partitions),
            partitions=partitions,
            reassigning=frozenset(moving),
            adding=moving,
            sizes=observe_sizes(
                admin,
                described["brokers"],
                moving,
                live_config,
                is_wanted=bool(desired.cluster and desired.cluster.spec.replace_volumes),
            ),
            live_config=live_config,
            full=observe_full(admin, described["brokers"]),
            quorum=observe_quorum(admin),
            **observe_levels(admin, described["brokers"]),
        ),
        topics=topics,
        groups=observe_groups(admin, desired.groups, topics, now_ms=now_ms),
    )


def registered_brokers(
    described: Mapping[str, Any], partitions: Mapping[Any, ObservedPartition]
) -> tuple[ObservedBroker, ...]:
    """Return the brokers in a description of the cluster, with their numbers of replicas."""
    replicas = Counter(
        node_id for partition in partitions.values() for node_id in partition.replicas
    )
    return tuple(
        ObservedBroker(
            node_id=broker["broker_id"],
            pool="",
            roles=("broker",),
            is_registered=not broker.get("is_fenced", False),
            address=f"{broker['host']}:{broker['port']}",
            replicas=replicas[broker["broker_id"]],
            rack=broker.get("rack"),
        )
        for broker in described["brokers"]
    )


def merge_observations(backend: Observed, brokers: Observed) -> Observed:
    """Combine the backend's knowledge (pools, processes, settings) with the brokers' state."""
    if backend.cluster is None or brokers.cluster is None:
        return replace(backend, topics=brokers.topics, groups=brokers.groups)
    replicas = Counter(
        node_id
        for partition in brokers.cluster.partitions.values()
        for node_id in partition.replicas
    )
    registered = {broker.node_id: broker for broker in brokers.cluster.brokers}
    known = {broker.node_id for broker in backend.cluster.brokers}
    merged = tuple(
        replace(
            broker,
            # A node that is only a controller never registers as a broker.
            is_registered=(
                broker.is_registered
                if "broker" not in broker.roles
                else broker.node_id in registered and registered[broker.node_id].is_registered
            ),
            replicas=replicas[broker.node_id],
            rack=registered[broker.node_id].rack if broker.node_id in registered else broker.rack,
        )
        for broker in backend.cluster.brokers
    )
    cluster = replace(
        backend.cluster,
        brokers=merged,
        partitions=brokers.cluster.partitions,
        reassigning=brokers.cluster.reassigning,
        adding=brokers.cluster.adding,
        sizes=brokers.cluster.sizes,
        live_config=brokers.cluster.live_config,
        full=brokers.cluster.full,
        quorum=brokers.cluster.quorum,
        features=brokers.cluster.features,
        supported_features=brokers.cluster.supported_features,
        departed=tuple(
            broker.node_id
            for broker in brokers.cluster.brokers
            if broker.node_id not in known and not broker.is_registered and not broker.replicas
        ),
        cluster_id=brokers.cluster.cluster_id,
        is_reachable=brokers.cluster.is_reachable,
        error=brokers.cluster.error,
    )
    return replace(backend, cluster=cluster, topics=brokers.topics, groups=brokers.groups)


def observe_partitions(listed: list[dict[str, Any]]) -> dict[TopicPartition, ObservedPartition]:
    """Extract each partition's replicas from descriptions of topics."""
    return {
        (topic["name"], entry["partition_index"]): ObservedPartition(
            replicas=tuple(entry["replica_nodes"]),
            in_sync=tuple(entry["isr_nodes"]),
            leader=entry["leader_id"],
        )
        for topic in listed
        for entry in topic["partitions"]
    }


def observe_full(
    admin: Any, brokers: Iterable[Mapping[str, Any]], *, share: float = USABLE_SHARE_MIN
) -> tuple[str, ...]:
    """Report log directories with less than this share of free space, or failed ones (KIP-827)."""
    from kafka.errors import KafkaError

    alive = [each["broker_id"] for each in brokers if not each.get("is_fenced", False)]
    try:
        # Without partitions: their sizes would make the answer large.
        answers = admin.describe_log_dirs({}, alive)
    except KafkaError:
        return ()
    return tuple(
        sentence
        for answer in answers
        for directory in answer["log_dirs"]
        if (sentence := full_sentence(answer["broker"], directory, share))
    )


def full_sentence(
    node_id: int, directory: Mapping[str, Any], share: float = USABLE_SHARE_MIN
) -> str:
    """Return what is wrong with a log directory; '' if nothing is. Pure."""
    name = f"broker {node_id}: {directory['log_dir']}"
    if directory["error_code"]:
        return f"{name} has failed: see the broker's log, and replace its volume"
    total, usable = directory.get("total_bytes", -1), directory.get("usable_bytes", -1)
    if total <= 0 or usable < 0 or usable >= total * share:
        return ""
    # In whole percents: a condition that changed with each record would be written at each look.
    return f"{name} is nearly full: {100 * usable // total} % of {total >> 20} MiB are left"


def observe_quorum(admin: Any) -> ObservedQuorum | None:
    """Return the metadata quorum; None while it has no leader."""
    from kafka.errors import KafkaError

    try:
        state = describe_quorum(admin)
    except KafkaError:
        return None
    leader = next((each for each in state.voters if each.node_id == state.leader_id), None)
    if leader is None:
        # This includes one that has just lost its vote; the next leader shows more.
        return None

    def observed(replica: QuorumReplica) -> ObservedReplica:
        # The leader's own last-fetch time is now.
        behind_ms = leader.caught_up_ms - replica.caught_up_ms
        return ObservedReplica(
            node_id=replica.node_id,
            directory_id=replica.directory_id,
            behind_ms=max(0, behind_ms) if replica.caught_up_ms >= 0 else None,
        )

    return ObservedQuorum(
        leader_id=state.leader_id,
        voters=tuple(map(observed, state.voters)),
        observers=tuple(map(observed, state.observers)),
    )


def observe_topics(admin: Any, listed: list[dict[str, Any]]) -> dict[str, ObservedTopic]:
    """Add the settings of topics to their descriptions (`admin.describe_topics()`)."""
    if not listed:
        return {}
    settings = observe_topic_settings(admin, [topic["name"] for topic in listed])
    return {
        topic["name"]: _observed_topic(topic, settings.get(topic["name"], {})) for topic in listed
    }


def _observed_topic(topic: Mapping[str, Any], settings: Mapping[str, str]) -> ObservedTopic:
    partitions = topic["partitions"]
    return ObservedTopic(
        partitions=len(partitions),
        # During a reassignment a partition has extra replicas: use the smallest number.
        replicas=min((len(entry["replica_nodes"]) for entry in partitions), default=0),
        config=dict(settings),
        topic_id=str(topic.get("topic_id") or ""),
        under_replicated=tuple(
            sorted(
                entry["partition_index"]
                for entry in partitions
                if len(entry["isr_nodes"]) < len(entry["replica_nodes"])
            )
        ),
        offline=tuple(
            sorted(entry["partition_index"] for entry in partitions if entry["leader_id"] < 0)
        ),
    )


def observe_groups(
    admin: Any,
    groups: Iterable[ConsumerGroup],
    topics: Mapping[str, ObservedTopic],
    *,
    now_ms: int,
) -> dict[str, ObservedGroup]:
    """Describe the groups that resources name: state, members, offsets, lag, reset targets."""
    by_id = {group.group_id: group for group in groups}
    if not by_id:
        return {}
    described = _describe_groups(admin, list(by_id))
    committed: dict[str, dict[TopicPartition, int]] = {
        group_id: {(where.topic, where.partition): item.offset for where, item in offsets.items()}
        for group_id, offsets in admin.list_group_offsets(list(by_id)).items()
    }
    shared = _share_positions(admin, described)
    committed |= {
        group_id: {key: item.start_offset for key, item in positions.items()}
        for group_id, positions in shared.items()
    }
    partitions = {
        group_id: _partitions(by_id[group_id], committed.get(group_id, {}), topics)
        for group_id in by_id
    }
    every = {partition for group in partitions.values() for partition in group}
    earliest, latest = -2, -1  # ListOffsets' special timestamps (KIP-79)
    ends = list_offsets(admin, dict.fromkeys(every, latest))
    resets = {group_id: pending_reset(group) for group_id, group in by_id.items()}
    starts: dict[TopicPartition, int] = {}
    if any(resets.values()):
        starts = list_offsets(admin, dict.fromkeys(every, earliest))
    result = {}
    for group_id in by_id:
        mine = partitions[group_id]
        result[group_id] = ObservedGroup(
            state=described[group_id]["group_state"],
            type=described[group_id].get("group_type", "classic"),
            assignor=_assignor(described[group_id]),
            epoch=described[group_id].get("group_epoch"),
            assignment_epoch=described[group_id].get("assignment_epoch"),
            members=tuple(map(_observed_member, described[group_id]["members"])),
            offsets={
                where: offset
                for where, offset in committed.get(group_id, {}).items()
                if where in mine
            },
            start_offsets={key: starts[key] for key in mine if key in starts},
            end_offsets={key: ends[key] for key in mine if key in ends},
            reset_offsets=_reset_offsets(admin, resets[group_id], mine, ends, now_ms=now_ms),
            told_lag={
                key: item.lag
                for key, item in shared.get(group_id, {}).items()
                if item.lag is not None
            },
        )
    oldest = oldest_unread(admin, result)
    return {
        group_id: replace(group, lag_seconds=lag_seconds(group, oldest[group_id], now_ms=now_ms))
        for group_id, group in result.items()
    }


def _describe_groups(admin: Any, group_ids: list[str]) -> dict[str, Any]:
    """Describe groups of all kinds; the classic request reports the others as dead."""
    from kafka.errors import KafkaError

    from headrace_operator.kafka_messages import describe_consumer_groups, describe_share_groups

    described: dict[str, Any] = admin.describe_groups(group_ids)
    for kind, describe in (
        ("consumer", describe_consumer_groups),
        ("share", describe_share_groups),
    ):
        dead = [name for name, group in described.items() if group["group_state"] in {"", "Dead"}]
        if not dead:
            break
        try:
            found = describe(admin, dead)
        except KafkaError:
            break  # a broker that does not support the request has no such groups
        described |= {name: group | {"group_type": kind} for name, group in found.items()}
    return described


def _share_positions(
    admin: Any, described: Mapping[str, Any]
) -> dict[str, dict[TopicPartition, SharePosition]]:
    """Return the positions of share groups, which commit no offsets."""
    from headrace_operator.kafka_messages import share_group_offsets

    names = [name for name, group in described.items() if group.get("group_type") == "share"]
    return share_group_offsets(admin, names) if names else {}


def _partitions(
    group: ConsumerGroup,
    committed: Iterable[TopicPartition],
    topics: Mapping[str, ObservedTopic],
) -> set[TopicPartition]:
    """Return the existing partitions that the group reads or has committed."""
    reset = group.spec.reset
    names = {*group.spec.topics, *(reset.topics if reset else ())}
    if reset is not None and reset.to.offsets is not None:
        names |= {entry.topic for entry in reset.to.offsets}
    names |= {topic for topic, _ in committed}
    return {
        (name, index)
        for name in names
        if name in topics
        for index in range(topics[name].partitions)
    }


def _assignor(group: Mapping[str, Any]) -> str:
    """Return the assignor; for a classic group its protocol, if the members are consumers."""
    return str(group.get("assignor_name") or group.get("protocol_data") or "")


def _observed_member(member: Mapping[str, Any]) -> ObservedMember:
    # A member without an assignment yet has an empty one, or none.
    assignment = member.get("member_assignment") or member.get("assignment") or {}
    if not isinstance(assignment, dict):
        assignment = {}
    shares = [
        (entry["topic"], entry["partitions"]) for entry in assignment.get("assigned_partitions", ())
    ]
    shares += [
        (entry["topic_name"], entry["partitions"])
        for entry in assignment.get("topic_partitions", ())
    ]
    return ObservedMember(
        member_id=member["member_id"],
        client_id=member["client_id"],
        host=member["client_host"].lstrip("/"),
        assignment=tuple(
            sorted((topic, index) for topic, partitions in shares for index in partitions)
        ),
        # For a classic member it is `group_instance_id`; a share group's member has none.
        instance_id=member.get("instance_id") or member.get("group_instance_id") or "",
        epoch=member.get("member_epoch"),
    )


def list_offsets(admin: Any, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offset at each timestamp; partitions without an answer are left out."""
    from kafka import TopicPartition as ClientPartition
    from kafka.errors import KafkaError

    if not timestamps:
        return {}
    asked = {ClientPartition(*key): timestamp for key, timestamp in timestamps.items()}
    try:
        answers = admin.list_partition_offsets(asked)
    except KafkaError:
        # One partition without a leader fails the whole call; query the others.
        answers = {}
        for partition, timestamp in asked.items():
            try:
                answers |= admin.list_partition_offsets({partition: timestamp})
            except KafkaError:
                continue
    return {
        (partition.topic, partition.partition): answer.offset
        for partition, answer in answers.items()
        if answer.offset >= 0
    }


def _reset_offsets(
    admin: Any,
    reset: Reset | None,
    partitions: set[TopicPartition],
    ends: Mapping[TopicPartition, int],
    *,
    now_ms: int,
) -> dict[TopicPartition, int]:
    """Look up a reset's offsets by time; past the last record it is the end, as in Kafka's tool."""
    if reset is None:
        return {}
    if reset.to.timestamp is not None:
        timestamp_ms = parse_timestamp_ms(reset.to.timestamp)
    elif reset.to.duration is not None:
        timestamp_ms = now_ms - parse_duration_ms(reset.to.duration)
    else:
        return {}
    known = [key for key in partitions if key in ends]
    found = list_offsets(admin, dict.fromkeys(known, timestamp_ms))
    return {key: found.get(key, ends[key]) for key in known}


def parse_timestamp_ms(text: str) -> int:
    """Return the epoch milliseconds of an RFC 3339 moment. Raises ValueError."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; end it with Z or an offset")
    return int(moment.timestamp() * 1000)
