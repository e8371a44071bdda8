"""Random members, failures and restarts against the coordinator, with its invariants (seeded)."""

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ErrorCode
from support.groups import GROUP, Client, GroupSimulation, subscription

PARTITIONS = range(4)
NAMES = st.sampled_from(["a", "b", "c", "d"])
STATIC = {"c": "i-c", "d": "i-d"}


class GroupMachine(RuleBasedStateMachine):
    """Clients do what they do, in any order, and now and then what they should not."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = GroupSimulation(initial_rebalance_delay_ms=1_000)
        self.generation_max = 0
        self.acknowledged: dict[str, int] = {}
        self.offset = 0

    @rule(name=NAMES, topic=st.sampled_from(["t", "u"]))
    def join(self, name: str, topic: str) -> None:
        options = {"protocols": [("range", subscription(topic))], "instance_id": STATIC.get(name)}
        answer = self.simulation.enter(name, **options)
        if answer is not None and answer.error_code in {
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_INSTANCE_ID,
        }:
            self.simulation.clients[name] = Client(instance_id=STATIC.get(name))

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        client = self.simulation.client(name)
        work: dict[str, bytes] = {}
        if client.members:
            shares = [
                PARTITIONS[place :: len(client.members)] for place in range(len(client.members))
            ]
            work = {
                member: json.dumps([client.generation, *share]).encode()
                for member, share in zip(client.members, shares, strict=True)
            }
        self.simulation.sync(name, work)

    @rule(names=st.sets(NAMES, min_size=1))
    def everyone_does_what_it_should(self, names: set[str]) -> None:
        """Take the short way to a stable group, which random steps seldom find."""
        for name in sorted(names):
            self.join(name, "t")
        self.simulation.advance(60_000)
        for name in sorted(names):
            self.sync(name)

    @rule(name=NAMES)
    def heartbeat(self, name: str) -> None:
        self.simulation.heartbeat(name)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.simulation.leave(name)

    @rule(name=NAMES)
    def process_dies_and_comes_back(self, name: str) -> None:
        self.simulation.clients[name] = Client(instance_id=STATIC.get(name))

    @rule(name=st.sampled_from(["a", "b", "c", "d", "tool"]), topic=st.sampled_from(["t", "u"]))
    def commit(self, name: str, topic: str) -> None:
        self.offset += 1
        answer = self.simulation.commit(name, self.offset, topic=topic)
        if hasattr(answer, "topics"):
            self.acknowledged[topic] = self.offset

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 10_000, 60_000]))
    def time_passes(self, ms: int) -> None:
        self.simulation.advance(ms)

    @rule()
    def expire(self) -> None:
        self.simulation.expire()

    @precondition(lambda self: self.simulation.log)
    @rule()
    def restart(self) -> None:
        self.simulation.restart()
        # A generation that nobody was assigned in is not recorded, and may be given again.
        group = self.simulation.shard.groups.get(GROUP)
        self.generation_max = 0 if group is None else group.generation

    @invariant()
    def no_partition_is_owned_twice_in_a_generation(self) -> None:
        group = self.simulation.shard.groups.get(GROUP)
        if group is None or group.state is not GroupState.STABLE:
            return
        owned: list[int] = []
        for member in group.members.values():
            if member.assignment:
                generation, *share = json.loads(member.assignment)
                assert generation == group.generation
                owned += share
        assert len(owned) == len(set(owned))

    @invariant()
    def generations_never_go_back(self) -> None:
        group = self.simulation.shard.groups.get(GROUP)
        if group is None:
            self.generation_max = 0
            return
        assert group.generation >= self.generation_max
        self.generation_max = group.generation

    @invariant()
    def acknowledged_offsets_are_there(self) -> None:
        found = {
            topic: value.offset
            for (topic, _), value in self.simulation.shard.offsets_of(GROUP).items()
        }
        assert found == self.acknowledged

    @invariant()
    def replaying_the_log_gives_what_is_there(self) -> None:
        replayed = self.simulation.replayed()
        assert replayed.offsets == self.simulation.shard.offsets
        recorded = {key: group.persisted for key, group in replayed.groups.items()}
        for key, group in self.simulation.shard.groups.items():
            assert recorded.get(key) == group.persisted
            if group.state is GroupState.STABLE:
                assert group.to_value() == group.persisted

    @invariant()
    def whoever_waits_will_be_answered(self) -> None:
        group = self.simulation.shard.groups.get(GROUP)
        if group is None:
            return
        waiting = [item for item in group.members.values() if item.join_ticket or item.sync_ticket]
        kinds = {key.kind.value for key in self.simulation.timers}
        if waiting:
            assert group.state in {GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE}
            assert kinds & {"join", "sync", "session"}
        assert set(group.static_members.values()) <= set(group.members)
        assert group.awaiting_sync <= set(group.members)
        if group.members:
            assert group.leader_id in group.members

    @invariant()
    def every_member_is_watched(self) -> None:
        group = self.simulation.shard.groups.get(GROUP)
        if group is None or group.state is not GroupState.STABLE:
            return
        watched = {key.member_id for key in self.simulation.timers if key.kind.value == "session"}
        assert set(group.members) | group.pending_members == watched


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
