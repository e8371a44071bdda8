"""Random members, failures, topics and restarts against consumer groups (seeded by Hypothesis)."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace_broker.protocol.errors import ErrorCode
from support.consumer_groups import GROUP, ConsumerSimulation, NativeClient, topic_view

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
STATIC = {"d": "i-d", "e": "i-e"}
SUBSCRIPTIONS = st.sampled_from(
    [(["t"], None), (["t", "u"], None), ([], "t.*"), (["u"], "t2"), ([], None)]
)


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Clients do what they do, in any order, lose answers, die and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = ConsumerSimulation(topic_view("t", 5), topic_view("u", 3), seed=1)
        self.committed: dict[str, int] = {}
        self.offset = 0
        self.lives = 0

    @rule(name=NAMES, wants=SUBSCRIPTIONS, assignor=st.sampled_from([None, "range", "uniform"]))
    def join(self, name: str, wants: tuple[list[str], str | None], assignor: str | None) -> None:
        self.simulation.join(
            name,
            topics=wants[0],
            pattern=wants[1],
            assignor=assignor,
            instance_id=STATIC.get(name),
        )

    @rule(name=NAMES, lose=st.booleans(), silent=st.booleans())
    def heartbeat(self, name: str, *, lose: bool, silent: bool) -> None:
        client = self.simulation.client(name)
        if client.epoch == 0:
            return
        override: dict[str, Any] = {"topic_partitions": None} if silent else {}
        self.simulation.heartbeat(name, lose_answer=lose, **override)

    @rule(names=st.sets(NAMES))
    def everyone_heartbeats(self, names: set[str]) -> None:
        for name in sorted(names) * 3:
            self.heartbeat(name, lose=False, silent=False)

    @rule(name=NAMES, wants=SUBSCRIPTIONS)
    def change_subscription(self, name: str, wants: tuple[list[str], str | None]) -> None:
        client = self.simulation.client(name)
        if client.epoch:
            client.topics, client.pattern = wants[0], wants[1] or ""
            client.has_told = False
            self.simulation.heartbeat(name)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if self.simulation.client(name).epoch:
            self.simulation.leave(name)

    @rule(name=st.sampled_from(sorted(STATIC)))
    def go_away_for_a_while(self, name: str) -> None:
        if self.simulation.client(name).epoch:
            self.simulation.leave(name, epoch=-2)
            self._new_process(name)

    @rule(name=NAMES)
    def process_dies_and_comes_back(self, name: str) -> None:
        self._new_process(name)

    def _new_process(self, name: str) -> None:
        self.lives += 1
        self.simulation.clients[name] = NativeClient(
            member_id=f"m-{name}-{self.lives}", instance_id=STATIC.get(name)
        )

    @rule(name=NAMES)
    def commit(self, name: str) -> None:
        """A member in its epoch may commit; a former one, or one that is behind, may not."""
        self.offset += 1
        client = self.simulation.client(name)
        group = self.simulation.shard.consumer_groups.get(GROUP)
        answer = self.simulation.commit(name, self.offset)
        if hasattr(answer, "topics"):
            self.committed["t"] = self.offset
            assert group is not None
            assert group.members[client.member_id].epoch == client.epoch
        else:
            assert answer in {
                ErrorCode.GROUP_ID_NOT_FOUND,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.STALE_MEMBER_EPOCH,
            }

    @rule(ms=st.sampled_from([1, 5_000, 20_000, 46_000]))
    def time_passes(self, ms: int) -> None:
        self.simulation.advance(ms)

    @rule(count=st.integers(min_value=0, max_value=6), more=st.booleans())
    def topics_change(self, count: int, *, more: bool) -> None:
        have = self.simulation.topics.by_name
        grown = max(count, have["t"].partition_count if "t" in have else 0)
        topics = [topic_view("u", 3)]
        topics += [topic_view("t", grown)] if grown else []
        topics += [topic_view("t2", 2)] if more else []
        self.simulation.set_topics(*topics)

    @rule()
    def restart(self) -> None:
        self.simulation.restart()

    @invariant()
    def clients_that_are_members_share_nothing(self) -> None:
        """What two clients in good standing believe to own never overlaps."""
        group = self.simulation.shard.consumer_groups.get(GROUP)
        if group is None:
            return
        seen: set[tuple[Any, int]] = set()
        for client in self.simulation.clients.values():
            member = group.members.get(client.member_id)
            if client.epoch > 0 and member is not None and not member.is_away:
                assert seen.isdisjoint(client.partitions())
                seen |= client.partitions()

    @invariant()
    def acknowledged_offsets_are_there(self) -> None:
        offsets = self.simulation.shard.offsets_of(GROUP)
        assert {topic: value.offset for (topic, _), value in offsets.items()} == self.committed

    def teardown(self) -> None:
        """Once faults stop, the group comes to rest with everything assigned."""
        group = self.simulation.shard.consumer_groups.get(GROUP)
        if group is None:
            return
        self.simulation.advance(46_000)
        for client in self.simulation.clients.values():
            client.topics, client.pattern = ["u"], ""
        names = ["a", "b"]
        for name in names:
            self.simulation.clients[name] = NativeClient(member_id=f"last-{name}", topics=["u"])
            self.simulation.join(name)
        self.simulation.settle(*names)
        held = [self.simulation.client(name).partitions() for name in names]
        assert sorted(map(len, held)) == [1, 2]


TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
TestConsumerGroupMachine.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None
)
