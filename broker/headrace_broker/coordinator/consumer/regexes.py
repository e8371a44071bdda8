"""Applies resolved regular expressions: records 16, and record 3 if the topics changed."""

from collections.abc import Mapping
from dataclasses import replace

from headrace_broker.coordinator.consumer.records import epoch_record, regex_record
from headrace_broker.coordinator.consumer.step import ConsumerContext, ConsumerStep
from headrace_broker.coordinator.decision import GroupDecision
from headrace_broker.coordinator.modern.regex import ResolvedRegex
from headrace_broker.coordinator.shard import GroupShard


def decide_regexes(
    shard: GroupShard,
    group_id: str,
    resolved: Mapping[str, ResolvedRegex],
    context: ConsumerContext,
) -> GroupDecision:
    """Record the result for expressions that are still subscribed to (KAFKA-18961)."""
    group = shard.consumer_groups.get(group_id)
    if group is None:
        return GroupDecision()
    step = ConsumerStep(shard=shard, group=group, context=context)
    wanted = group.patterns()
    is_new = False
    for pattern, found in resolved.items():
        known = group.regexes.get(pattern)
        differs = known is None or known.topics != found.topics
        is_older = known is not None and known.version > found.version
        if pattern not in wanted or (is_older and differs):
            continue  # this broker's metadata is behind a former coordinator's
        is_new = is_new or differs
        version = found.version if known is None else max(found.version, known.version)
        step.emit_and_apply([regex_record(group_id, pattern, replace(found, version=version))])
    if is_new:
        metadata_hash = context.topics.metadata_hash(step.group.subscribed_topics())
        step.emit([epoch_record(group_id, group.epoch + 1, metadata_hash)])
    return step.decision
