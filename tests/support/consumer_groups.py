"""A consumer group (KIP-848) in simulated time: named clients, a shard, and what must always hold.

Plays the driver and the clients. After every decision it checks that nobody shares a partition,
that the moves are legal, and that replaying the records, compacted at random too, gives what is
there.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headrace_broker.coordinator import protocols
from headrace_broker.coordinator.config import ConsumerGroupConfig, GroupConfig
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.heartbeat import decide_consumer_heartbeat
from headrace_broker.coordinator.consumer.loading import finish_loading_modern_groups
from headrace_broker.coordinator.consumer.regexes import decide_regexes
from headrace_broker.coordinator.consumer.states import (
    GROUP_TRANSITIONS,
    MEMBER_TRANSITIONS,
    ConsumerGroupState,
)
from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import Caller, GroupDecision, SetTimer, Ticket, TimerKey
from headrace_broker.coordinator.modern.regex import resolve_regexes
from headrace_broker.coordinator.modern.topics import TopicsView, TopicView
from headrace_broker.coordinator.offsets import decide_commit
from headrace_broker.coordinator.records import CoordinatorRecord, read_record, write_record
from headrace_broker.coordinator.shard import GroupShard, finish_loading, replay
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace_broker.protocol.types import PartitionIndex, TimestampMs

GROUP = "g"
Owned = dict[UUID, set[int]]


def topic_view(name: str, partitions: int, *racks: Iterable[str]) -> TopicView:
    """Return a topic whose id follows from its name; `racks` are one set for each partition."""
    return TopicView(
        topic_id=UUID(int=sum(byte << (8 * place) for place, byte in enumerate(name.encode()))),
        name=name,
        partition_count=partitions,
        racks=tuple(frozenset(item) for item in racks),
    )


@dataclass
class NativeClient:
    """What a member of the consumer protocol knows of itself."""

    member_id: str
    instance_id: str | None = None
    epoch: int = 0
    owned: Owned = field(default_factory=dict)
    topics: list[str] | None = field(default_factory=lambda: ["t"])
    pattern: str | None = None
    assignor: str | None = None
    rack: str | None = None
    has_told: bool = False  # its whole subscription, since it joined

    def partitions(self) -> set[tuple[UUID, int]]:
        return {(topic, item) for topic, items in self.owned.items() for item in items}


class ConsumerSimulation:
    """One shard, the group `g`, and any number of clients by name."""

    def __init__(self, *topics: TopicView, seed: int = 0, **config: Any) -> None:
        self.config = GroupConfig(
            initial_rebalance_delay_ms=0, consumer=ConsumerGroupConfig(**config)
        )
        self.topics = TopicsView.of(topics or [topic_view("t", 6)], version=1)
        self.shard = GroupShard(partition=PartitionIndex(0))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.batches: list[list[CoordinatorRecord]] = []
        self.now_ms = 0
        self.timers: dict[TimerKey, int] = {}
        self.clients: dict[str, NativeClient] = {}
        self.answers: dict[Ticket, Any] = {}
        self.resolutions = 0
        self._tickets = 0
        self._random = random.Random(seed)

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.consumer_groups[GROUP]

    @property
    def context(self) -> ConsumerContext:
        return ConsumerContext(
            config=self.config, topics=self.topics, now_ms=TimestampMs(self.now_ms)
        )

    def set_topics(self, *topics: TopicView) -> None:
        self.topics = TopicsView.of(topics, version=self.topics.version + 1)

    def client(self, name: str) -> NativeClient:
        return self.clients.setdefault(name, NativeClient(member_id=f"m-{name}"))

    def caller(self, name: str, version: int = 1) -> Caller:
        self._tickets += 1
        return Caller(
            ticket=Ticket(self._tickets),
            api_version=version,
            client_id=name,
            client_host="/127.0.0.1",
            new_member_id=f"new-{self._tickets}",
        )

    def join(self, name: str, **fields: Any) -> Any:
        """Join with everything that the client wants; `fields` change the client first."""
        client = self.client(name)
        for key, value in fields.items():
            setattr(client, key, value)
        client.epoch, client.owned, client.has_told = 0, {}, False
        return self.heartbeat(name)

    def heartbeat(self, name: str, *, lose_answer: bool = False, **override: Any) -> Any:
        """Send what a client would now; return the answer or the refusal's code."""
        client = self.client(name)
        full = not client.has_told
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            rack_id=client.rack if full else None,
            rebalance_timeout_ms=30_000 if full else -1,
            subscribed_topic_names=client.topics if full else None,
            subscribed_topic_regex=client.pattern if full else None,
            server_assignor=client.assignor if full else None,
            topic_partitions=[
                ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=topic, partitions=sorted(items)
                )
                for topic, items in client.owned.items()
            ],
        )
        for key, value in override.items():
            setattr(request, key, value)
        caller = self.caller(name)
        try:
            decision = decide_consumer_heartbeat(self.shard, request, caller, self.context)
        except ApiError as error:
            if error.code in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
                client.epoch, client.owned, client.has_told = 0, {}, False
            return error.code
        self.carry_out(decision)
        answer = self.answers[caller.ticket]
        if not lose_answer and request.member_epoch >= 0:
            client.epoch = answer.member_epoch
            client.has_told = True
            if answer.assignment is not None:
                client.owned = {
                    item.topic_id: set(item.partitions)
                    for item in answer.assignment.topic_partitions
                }
        return answer

    def leave(self, name: str, epoch: int = -1) -> Any:
        answer = self.heartbeat(name, member_epoch=epoch)
        client = self.client(name)
        client.epoch, client.owned, client.has_told = 0, {}, False
        return answer

    def settle(self, *names: str, rounds: int = 20) -> None:
        """Let everybody heartbeat until the group is stable."""
        for _ in range(rounds):
            for name in names:
                self.heartbeat(name)
            if self.group.state is ConsumerGroupState.STABLE:
                return
        raise AssertionError(f"not stable after {rounds} rounds: {self.group.state}")

    def commit(self, name: str, offset: int, *, epoch: int | None = None, version: int = 9) -> Any:
        client = self.client(name)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=client.epoch if epoch is None else epoch,
            member_id=client.member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
                    ],
                )
            ],
        )
        caller = self.caller(name, version)
        try:
            decision = decide_commit(
                self.shard,
                self.config,
                request,
                caller,
                TimestampMs(self.now_ms),
                lambda _topic, _index: ErrorCode.NONE,
            )
        except ApiError as error:
            return error.code
        self.carry_out(decision)
        return self.answers[caller.ticket]

    def advance(self, ms: int) -> None:
        """Let time pass and fire what is due, in order."""
        end_ms = self.now_ms + ms
        while self.timers:
            key = min(self.timers, key=lambda item: (self.timers[item], str(item)))
            if self.timers[key] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.carry_out(protocols.decide_timer(self.shard, key, self.context))
        self.now_ms = end_ms

    def carry_out(self, decision: GroupDecision) -> None:
        before = {key: group.copy() for key, group in self.shard.consumer_groups.items()}
        if decision.records:
            self.batches.append(decision.records)
        for record in decision.records:
            self.log.append(write_record(record))
            replay(self.shard, record)
        for effect in decision.timers:
            if not isinstance(effect, SetTimer):
                self.timers.pop(effect.key, None)
            elif not (effect.unless_set and effect.key in self.timers):
                self.timers[effect.key] = self.now_ms + effect.delay_ms
        self.answers.update(decision.replies)
        self.check(before)
        for work in decision.resolutions:
            self.resolutions += 1
            found = resolve_regexes(
                work.patterns, self.topics.by_name, self.topics.version, self.now_ms
            )
            self.carry_out(decide_regexes(self.shard, work.group_id, found, self.context))

    def replayed(self, log: list[tuple[bytes, bytes | None]] | None = None) -> GroupShard:
        """Return what a coordinator that loads this log comes to."""
        shard = GroupShard(partition=PartitionIndex(0))
        for key, value in self.log if log is None else log:
            record = read_record(key, value)
            assert record is not None
            replay(shard, record)
        return shard

    def compacted(self) -> list[tuple[bytes, bytes | None]]:
        """Return the log as a cleaner may leave it: superseded records go, up to some point."""
        end = self._random.randint(0, len(self.log))
        last = {key: place for place, (key, _) in enumerate(self.log[:end])}
        return [
            entry
            for place, entry in enumerate(self.log)
            if place >= end
            or (last[entry[0]] == place and (entry[1] is not None or self._random.random() < 0.5))
        ]

    def restart(self) -> None:
        """Forget everything but the log."""
        self.shard = self.replayed(self.compacted())
        self.timers.clear()
        self.carry_out(finish_loading(self.shard))
        self.carry_out(finish_loading_modern_groups(self.shard, lambda _group: self.config))

    def check(self, before: dict[str, ConsumerGroup]) -> None:
        for group_id, group in self.shard.consumer_groups.items():
            former = before.get(group_id, ConsumerGroup(group_id=group_id))
            check_group(group)
            check_moves(former, group)
        for shard in (self.replayed(), self.replayed(self.compacted())):
            assert shard.offsets == self.shard.offsets
            assert shard.consumer_groups.keys() == self.shard.consumer_groups.keys()
            for group_id, group in self.shard.consumer_groups.items():
                check_equal(shard.consumer_groups[group_id], group)


def check_group(group: ConsumerGroup) -> None:
    """No partition has two owners, nothing is of an epoch to come, and the indexes are right."""
    seen: dict[tuple[UUID, int], str] = {}
    for member in group.members.values():
        assert member.epoch <= group.epoch
        for partitions in (member.assigned, member.revoking):
            for topic, items in partitions.items():
                assert items, "a topic without partitions"
                for item in items:
                    assert (topic, item) not in seen, f"{item} of {member} and {seen}"
                    seen[topic, item] = member.member_id
    flat = {
        (topic, item): owner for topic, held in group.owners.items() for item, owner in held.items()
    }
    assert flat == seen
    targets: dict[tuple[UUID, int], str] = {}
    for member_id, target in group.targets.items():
        assert member_id in group.members
        assert group.target_sizes[member_id] == sum(map(len, target.values()))
        for topic, items in target.items():
            for item in items:
                assert (topic, item) not in targets
                targets[topic, item] = member_id
    flat = {
        (topic, item): owner
        for topic, held in group.target_owners.items()
        for item, owner in held.items()
    }
    assert flat == targets
    assert group.target_epoch <= group.epoch
    assert group.native_count == sum(item.classic is None for item in group.members.values())
    assert sum(group.subscriptions.values()) == len(group.members)
    assert group.regexes.keys() <= group.patterns(), "what nobody subscribes to is forgotten"


def check_moves(before: ConsumerGroup, after: ConsumerGroup) -> None:
    """Epochs never go back, and states move along the tables' edges."""
    assert after.epoch >= before.epoch
    assert after.target_epoch >= before.target_epoch
    assert after.state is before.state or after.state in GROUP_TRANSITIONS[before.state]
    for member_id, member in after.members.items():
        former = before.members.get(member_id)
        if former is not None:
            assert member.state is former.state or member.state in MEMBER_TRANSITIONS[former.state]
            assert member.epoch >= former.epoch or member.epoch == -2


def check_equal(one: ConsumerGroup, other: ConsumerGroup) -> None:
    """Both have the same state."""
    for name in (
        "epoch",
        "metadata_hash",
        "target_epoch",
        "members",
        "targets",
        "regexes",
        "static_members",
        "owners",
        "target_owners",
        "subscriptions",
        "assignors",
        "native_count",
    ):
        assert getattr(one, name) == getattr(other, name), name
