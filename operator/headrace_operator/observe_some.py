"""Observes only what a small change affects: some topics and groups instead of all of them.

Blocking, like `observe`. The rest stays as last seen, so that one new Topic among thousands costs
the same few requests as one among ten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace_operator.features import observe_features, observe_levels
from headrace_operator.live_config import observe_live_config
from headrace_operator.observe import (
    observe_groups,
    observe_partitions,
    observe_quorum,
    observe_topics,
    registered_brokers,
)
from headrace_operator.observe_moves import observe_reassignments, observe_sizes
from headrace_operator.plan import ObservedCluster, ObservedTopic
from headrace_operator.plan.features import differing_features

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.plan import Desired, Observed, ObservedPartition, TopicPartition
    from headrace_operator.resources import Topic

__all__ = ["observe_health", "observe_some"]


def observe_some(admin: Any, desired: Desired, known: Observed, *, now_ms: int) -> Observed:
    """Query the topics and groups of `desired`, and merge them into `known`."""
    names = {topic.topic_name for topic in desired.topics}
    for group in desired.groups:
        names |= {*group.spec.topics, *(group.spec.reset.topics if group.spec.reset else ())}
    listed = admin.describe_topics(sorted(names)) if names else []
    found = [topic for topic in listed if not topic["error_code"] and not topic["is_internal"]]
    fresh = observe_topics(admin, found)
    # Copy `known`, and then query only what is needed: a pass over one topic touches no other.
    topics = dict(known.topics)
    former = {name: topics.pop(name) for name in names & topics.keys()}
    topics |= fresh
    groups = dict(known.groups)
    groups |= observe_groups(admin, desired.groups, topics, now_ms=now_ms)
    cluster = known.cluster
    if cluster is not None:
        partitions = dict(cluster.partitions)
        for name, topic in former.items():
            for index in range(topic.partitions):
                partitions.pop((name, index), None)
        partitions |= observe_partitions(found)
        cluster = replace(cluster, partitions=partitions)
        if any(_may_move(topic, fresh.get(topic.topic_name)) for topic in desired.topics):
            moving = observe_reassignments(admin)
            cluster = replace(cluster, reassigning=frozenset(moving), adding=moving)
        wanted = desired.cluster
        if wanted is not None and differing_features(wanted, cluster.features or {}):
            alive = [{"broker_id": each.node_id} for each in cluster.brokers if each.is_registered]
            cluster = replace(cluster, **observe_levels(admin, alive))
    return replace(known, cluster=cluster, topics=topics, groups=groups)


def _may_move(topic: Topic, existing: ObservedTopic | None) -> bool:
    """Whether the topic needs other replicas, or is getting them now."""
    return existing is not None and (
        bool(existing.under_replicated) or topic.spec.replicas not in (None, existing.replicas)
    )


def observe_health(admin: Any, known: Observed) -> Observed:
    """Query who is alive and in sync, everywhere; topics' settings and groups stay as known.

    The brokers' dynamic settings are queried again: a value that they refused keeps the Cluster
    from being ready, and `min.insync.replicas` may be among them.
    """
    described = admin.describe_cluster()
    moving = observe_reassignments(admin)
    live_config = observe_live_config(admin)
    listed = admin.describe_topics()
    partitions = observe_partitions(listed)
    cluster = ObservedCluster(
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
            is_wanted=bool(known.cluster and known.cluster.sizes),
        ),
        live_config=live_config,
        full=known.cluster.full if known.cluster else (),
        quorum=observe_quorum(admin),
        features=observe_features(admin),
        supported_features=known.cluster.supported_features if known.cluster else {},
    )
    names = {topic["name"] for topic in listed}
    topics = {
        name: _with_health(topic, name, partitions)
        for name, topic in known.topics.items()
        if name in names
    }
    return replace(known, cluster=cluster, topics=topics)


def _with_health(
    topic: ObservedTopic, name: str, partitions: Mapping[TopicPartition, ObservedPartition]
) -> ObservedTopic:
    mine = [(index, partitions.get((name, index))) for index in range(topic.partitions)]
    under = tuple(index for index, each in mine if each is None or each.is_under_replicated)
    offline = tuple(index for index, each in mine if each is None or each.leader < 0)
    if (under, offline) == (topic.under_replicated, topic.offline):
        return topic
    return replace(topic, under_replicated=under, offline=offline)
