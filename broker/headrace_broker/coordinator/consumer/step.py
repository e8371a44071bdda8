"""One decision about a consumer group in progress, and the parts that all such decisions share.

Records come in the order in which Kafka writes them: 5 (member), 3 (epoch), 7 and 6 (targets), 8
(the member's partitions). They form one batch: a new coordinator sees all of them or none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.member import ConsumerMember
from headrace_broker.coordinator.consumer.reconcile import Goal, reconcile
from headrace_broker.coordinator.consumer.records import (
    epoch_record,
    regex_record,
    target_epoch_record,
    target_record,
)
from headrace_broker.coordinator.consumer.replay import replay_consumer
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.consumer.target import compute_targets
from headrace_broker.coordinator.decision import (
    CancelTimer,
    GroupDecision,
    ResolveRegexes,
    SetTimer,
    TimerKey,
    TimerKind,
)
from headrace_broker.coordinator.modern.assignment import Partitions, TopicPartitionsStruct
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.records import ConsumerGroupRecord
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.protocol.types import TimestampMs

_REGEX_REFRESH_PAUSE_MS: Final = 10_000  # KAFKA-18813: at most this often for new metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerContext:
    """What a decision about a consumer group uses besides the shard."""

    config: GroupConfig
    topics: TopicsView
    now_ms: TimestampMs


@dataclass(slots=True, kw_only=True)
class ConsumerStep:
    """The group of a decision, as the records decided so far leave it."""

    shard: GroupShard
    group: ConsumerGroup
    context: ConsumerContext
    decision: GroupDecision = field(default_factory=GroupDecision)
    is_draft: bool = False

    def emit(self, records: Iterable[ConsumerGroupRecord]) -> None:
        """Add records that the rest of the decision does not depend on."""
        self.decision.records.extend(records)

    def emit_and_apply(self, records: Iterable[ConsumerGroupRecord]) -> None:
        """Add records that the rest of the decision builds on: the group becomes a draft."""
        if not self.is_draft:
            self.group, self.is_draft = self.group.copy(), True
        for record in records:
            self.decision.records.append(record)
            replay_consumer(self.group, record)

    def apply_all(self) -> None:
        """Make the group a draft that has everything decided so far."""
        self.group, self.is_draft = self.shard.consumer_groups[self.group.group_id].copy(), True
        for record in self.decision.records:
            if isinstance(record, ConsumerGroupRecord):
                replay_consumer(self.group, record)

    def set_timer(
        self, kind: TimerKind, member_id: str, delay_ms: int, *, unless_set: bool = False
    ) -> None:
        """Set a timer of a member."""
        key = TimerKey(kind=kind, group_id=self.group.group_id, member_id=member_id)
        self.decision.timers.append(SetTimer(key=key, delay_ms=delay_ms, unless_set=unless_set))

    def cancel_timers(self, member_id: str, *kinds: TimerKind) -> None:
        """Cancel timers of a member."""
        self.decision.timers.extend(
            CancelTimer(key=TimerKey(kind=kind, group_id=self.group.group_id, member_id=member_id))
            for kind in kinds
        )

    def extend_session(self, member: ConsumerMember) -> None:
        """Restart a member's session timeout."""
        delay_ms = session_timeout_ms(member, self.context.config)
        self.set_timer(TimerKind.SESSION, member.member_id, delay_ms)

    def resolve_regexes(self, patterns: frozenset[str]) -> None:
        """Request the topics of regular expressions that are unresolved or outdated."""
        if patterns:
            self.decision.resolutions.append(
                ResolveRegexes(group_id=self.group.group_id, patterns=patterns)
            )


def session_timeout_ms(member: ConsumerMember, config: GroupConfig) -> int:
    """Return the timeout that a classic member chose; the group's for all other members."""
    if member.classic is not None:
        return member.classic.session_timeout_ms
    return config.consumer.session_timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberUpdate:
    """A member before and after its request; `before` is blank for one that joins."""

    before: ConsumerMember
    after: ConsumerMember
    owned: Iterable[TopicPartitionsStruct] | None

    @property
    def has_new_subscription(self) -> bool:
        """Whether its subscription has changed."""
        return self.before.subscription != self.after.subscription


def update_member(step: ConsumerStep, update: MemberUpdate) -> ConsumerMember:
    """Record a member's data, bump the epoch and compute targets if needed, and reconcile it.

    Returns the resulting member.
    """
    group, after = step.group, update.after
    group_id = group.group_id
    if after.member_id not in group.members or not update.before.has_same_metadata(after):
        step.emit([after.metadata_record(group_id)])
    epoch = _update_epoch(step, update)
    target_epoch, target = group.target_epoch, group.target_of(after.member_id)
    if epoch > group.target_epoch:
        targets = compute_targets(group, after, step.context.topics, step.context.config.consumer)
        step.emit(target_record(group_id, key, value) for key, value in targets.items())
        step.emit([target_epoch_record(group_id, epoch)])
        target_epoch, target = epoch, targets.get(after.member_id, target)
    return reconcile_member(step, update, target_epoch, target)


def reconcile_member(
    step: ConsumerStep, update: MemberUpdate, target_epoch: int, target: Partitions
) -> ConsumerMember:
    """Move a member one step further, and set the revocation timer if the step needs one."""
    group, after = step.group, update.after
    goal = Goal(
        epoch=target_epoch,
        target=target,
        subscribed=step.context.topics.ids_of(group.names_of(after.subscription)),
        owner_of=group.owner_of,
        owned=update.owned,
        has_new_subscription=update.has_new_subscription,
    )
    reconciled = reconcile(after, goal)
    recorded = group.members.get(after.member_id)
    if recorded is None or not recorded.has_same_assignment(reconciled):
        step.emit([reconciled.assignment_record(group.group_id)])
        if reconciled.state is MemberState.UNREVOKED_PARTITIONS:
            delay_ms = reconciled.rebalance_timeout_ms
            step.set_timer(TimerKind.REVOCATION, reconciled.member_id, delay_ms)
        else:
            step.cancel_timers(reconciled.member_id, TimerKind.REVOCATION)
    return reconciled


def _update_epoch(step: ConsumerStep, update: MemberUpdate) -> int:
    """Bump the group's epoch when the subscriptions or the topics changed; return it."""
    group, topics = step.group, step.context.topics
    before, after = update.before, update.after
    names = group.subscribed_topics()
    bump = group.epoch == 0
    if update.has_new_subscription:
        subscriptions = group.subscriptions.copy()
        if before.member_id in group.members:
            subscriptions[before.subscription] -= 1
        subscriptions[after.subscription] += 1
        left = [item for item, count in subscriptions.items() if count > 0]
        names = group.names_of_all(left)
        bump = bump or before.topic_names != after.topic_names
        if before.topic_regex and all(pattern != before.topic_regex for _, pattern in left):
            step.emit([regex_record(group.group_id, before.topic_regex, None)])
        if before.topic_regex != after.topic_regex:
            # An unresolved expression bumps the epoch once it is resolved.
            bump = bump or not after.topic_regex or after.topic_regex in group.regexes
    metadata_hash = topics.metadata_hash(names)
    step.resolve_regexes(_stale_patterns(step, after))
    if not bump and metadata_hash == group.metadata_hash:
        return group.epoch
    step.emit([epoch_record(group.group_id, group.epoch + 1, metadata_hash)])
    return group.epoch + 1


def _stale_patterns(step: ConsumerStep, member: ConsumerMember) -> frozenset[str]:
    """Return the group's expressions if any of them must be resolved again, else none."""
    group, context = step.group, step.context
    patterns = group.patterns()
    if member.topic_regex:
        patterns |= {member.topic_regex}
    refresh_ms = context.config.consumer.regex_refresh_interval_ms
    for pattern in patterns:
        resolved = group.regexes.get(pattern)
        if resolved is None:
            return patterns
        age_ms = context.now_ms - resolved.timestamp_ms
        # A former coordinator may have counted further for the same topics: that is not outdated.
        if age_ms >= refresh_ms or (
            resolved.version < context.topics.version and age_ms >= _REGEX_REFRESH_PAUSE_MS
        ):
            return patterns
    return frozenset()
