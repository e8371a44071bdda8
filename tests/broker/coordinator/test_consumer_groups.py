"""Consumer groups of the consumer protocol, decided and replayed (KIP-848)."""

from uuid import UUID

import pytest

from headrace_broker.coordinator.consumer.heartbeat import decide_consumer_heartbeat
from headrace_broker.coordinator.consumer.leaving import decide_consumer_timer
from headrace_broker.coordinator.consumer.states import ConsumerGroupState, MemberState
from headrace_broker.coordinator.decision import GroupDecision, TimerKey, TimerKind
from headrace_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.offsets import read_offsets
from headrace_broker.coordinator.records import (
    CurrentAssignmentRecord,
    EpochRecord,
    MemberRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from headrace_broker.coordinator.states import GroupState
from headrace_broker.coordinator.transactional_offsets import decide_txn_commit
from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    TopicPartition as OwnedPartitions,
)
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace_broker.protocol.types import Generation, TimestampMs
from support.consumer_groups import GROUP, ConsumerSimulation, topic_view


def owned(simulation: ConsumerSimulation, *names: str) -> list[int]:
    return sorted(len(simulation.client(name).partitions()) for name in names)


def test_the_first_member_gets_everything_in_one_batch_of_records() -> None:
    simulation = ConsumerSimulation()
    answer = simulation.join("a")
    assert answer.member_epoch == 1
    assert answer.heartbeat_interval_ms == 5_000
    assert owned(simulation, "a") == [6]
    kinds = [type(record) for record in simulation.batches[0]]
    assert kinds == [
        MemberRecord,
        EpochRecord,
        TargetRecord,
        TargetEpochRecord,
        CurrentAssignmentRecord,
    ]
    assert simulation.group.state is ConsumerGroupState.STABLE


def test_a_newcomer_waits_until_the_owner_has_given_up() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    answer = simulation.join("b")
    assert answer.member_epoch == 2
    assert owned(simulation, "b") == [0]
    assert simulation.group.members["m-b"].state is MemberState.UNRELEASED_PARTITIONS
    # a has its new assignment, but has not said yet that it gave anything up.
    simulation.heartbeat("a", topic_partitions=None)
    assert simulation.group.members["m-a"].state is MemberState.UNREVOKED_PARTITIONS
    simulation.heartbeat("b")
    assert owned(simulation, "b") == [0]
    assert simulation.heartbeat("a").member_epoch == 2
    simulation.heartbeat("b")
    assert owned(simulation, "a", "b") == [3, 3]
    assert simulation.group.state is ConsumerGroupState.STABLE


def test_a_member_that_leaves_changes_nothing_for_those_who_stay_but_what_they_gain() -> None:
    simulation = ConsumerSimulation(topic_view("t", 9))
    for name in "abc":
        simulation.join(name)
    simulation.settle("a", "b", "c")
    before = simulation.client("a").partitions()
    simulation.leave("b")
    assert simulation.group.state is ConsumerGroupState.ASSIGNING
    simulation.settle("a", "c")
    assert simulation.client("a").partitions() >= before
    assert sum(owned(simulation, "a", "c")) == 9


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(3, ErrorCode.FENCED_MEMBER_EPOCH), (99, ErrorCode.FENCED_MEMBER_EPOCH)],
)
def test_a_member_from_the_future_is_fenced(epoch: int, code: ErrorCode) -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    assert simulation.heartbeat("a", member_epoch=epoch) is code


@pytest.mark.parametrize(("epoch", "which"), [(1, "smaller"), (9, "greater")])
def test_a_fenced_member_is_told_whether_it_is_behind_or_ahead(epoch: int, which: str) -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.join("b")
    simulation.settle("a", "b")
    simulation.join("c")
    simulation.settle("a", "b", "c")
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="m-a", member_epoch=epoch, topic_partitions=[]
    )
    with pytest.raises(ApiError, match=rf"a {which} member epoch \({epoch}\)") as caught:
        decide_consumer_heartbeat(
            simulation.shard, request, simulation.caller("a"), simulation.context
        )
    assert caught.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_previous_epoch_is_accepted_when_the_answer_got_lost() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.join("b")
    simulation.heartbeat("a")
    simulation.heartbeat("a", lose_answer=True)  # the coordinator moved it to epoch 2
    assert simulation.group.members["m-a"].epoch == 2
    assert simulation.client("a").epoch == 1
    assert simulation.heartbeat("a").member_epoch == 2


def test_the_previous_epoch_is_fenced_with_partitions_that_are_not_its_own() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    everything = simulation.client("a").owned
    simulation.join("b")
    simulation.heartbeat("a")
    simulation.heartbeat("a", lose_answer=True)
    simulation.client("a").owned = everything
    assert simulation.heartbeat("a") is ErrorCode.FENCED_MEMBER_EPOCH


def test_an_unknown_member_and_an_unknown_group_are_distinguished() -> None:
    simulation = ConsumerSimulation()
    assert simulation.heartbeat("a", member_epoch=4) is ErrorCode.GROUP_ID_NOT_FOUND
    simulation.join("a")
    assert simulation.heartbeat("b", member_epoch=4) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "(?=a)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "a" * 5_000}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "((a{1,99}){99}){99}"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_an_incomplete_or_impossible_request_is_refused(
    fields: dict[str, object], code: ErrorCode
) -> None:
    simulation = ConsumerSimulation()
    assert simulation.heartbeat("a", **fields) is code
    assert not simulation.log


def test_a_full_group_refuses_newcomers_but_not_those_who_rejoin() -> None:
    simulation = ConsumerSimulation(size_max=1)
    simulation.join("a")
    assert simulation.join("b") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert simulation.join("a").member_epoch == 1


def test_a_member_that_joins_again_gets_everything() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    answer = simulation.join("a")
    assert answer.assignment is not None
    assert owned(simulation, "a") == [6]


def test_a_silent_member_loses_its_place() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.join("b")
    simulation.advance(44_000)
    simulation.heartbeat("b")
    simulation.advance(2_000)
    assert list(simulation.group.members) == ["m-b"]
    simulation.settle("b")
    assert owned(simulation, "b") == [6]
    assert simulation.heartbeat("a") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_fenced() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.join("b")
    for _ in range(8):
        simulation.heartbeat("a", topic_partitions=None)
        simulation.heartbeat("b")
        simulation.advance(5_000)
    assert list(simulation.group.members) == ["m-b"]
    simulation.settle("b")
    assert owned(simulation, "b") == [6]


def test_a_coordinator_that_takes_over_still_times_a_revocation() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.join("b")
    simulation.heartbeat("a", topic_partitions=None)
    simulation.restart()
    for _ in range(8):
        simulation.heartbeat("a", topic_partitions=None)
        simulation.heartbeat("b")
        simulation.advance(5_000)
    assert list(simulation.group.members) == ["m-b"]


def test_a_static_member_that_goes_away_keeps_its_partitions_for_its_successor() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a", instance_id="i")
    simulation.join("b")
    simulation.settle("a", "b")
    before = simulation.client("a").partitions()
    epoch = simulation.group.epoch
    assert simulation.join("c", instance_id="i") is ErrorCode.UNRELEASED_INSTANCE_ID
    simulation.leave("a", epoch=-2)
    simulation.heartbeat("b")
    assert owned(simulation, "b") == [3]
    simulation.join("c", instance_id="i")
    assert simulation.client("c").partitions() == before
    assert simulation.group.epoch == epoch
    assert simulation.heartbeat("a", member_epoch=epoch) is ErrorCode.FENCED_INSTANCE_ID


def test_a_late_heartbeat_does_not_bring_a_static_member_back_that_went_away() -> None:
    """The successor would be refused until the session of the one that is gone has expired."""
    simulation = ConsumerSimulation()
    simulation.join("a", instance_id="i")
    epoch = simulation.client("a").epoch
    simulation.leave("a", epoch=-2)
    late = {"member_epoch": epoch, "topic_partitions": []}
    assert simulation.heartbeat("a", **late) is ErrorCode.FENCED_MEMBER_EPOCH
    answer = simulation.join("c", instance_id="i")
    assert answer.member_epoch == epoch


def test_a_static_member_that_does_not_come_back_in_time_loses_its_place() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a", instance_id="i")
    simulation.join("b")
    simulation.settle("a", "b")
    simulation.leave("a", epoch=-2)
    simulation.advance(30_000)
    simulation.heartbeat("b")
    simulation.advance(16_000)
    simulation.settle("b")
    assert owned(simulation, "b") == [6]


def test_a_regular_expression_is_resolved_and_follows_the_topics() -> None:
    simulation = ConsumerSimulation(topic_view("orders-a", 2), topic_view("other", 2))
    simulation.join("a", topics=[], pattern="orders-.*")
    assert owned(simulation, "a") == [0]
    simulation.heartbeat("a")
    assert owned(simulation, "a") == [2]
    kinds = [type(record) for record in simulation.batches[1]]
    assert kinds == [RegexRecord, EpochRecord]
    simulation.set_topics(
        topic_view("orders-a", 2), topic_view("orders-b", 3), topic_view("not-orders-c", 1)
    )
    simulation.heartbeat("a")
    assert owned(simulation, "a") == [2]  # not before its time: metadata may change every moment
    simulation.advance(10_000)
    simulation.heartbeat("a")
    simulation.heartbeat("a")
    assert owned(simulation, "a") == [5]
    simulation.leave("a")
    assert not simulation.group.regexes


def test_a_new_coordinator_that_counts_versions_from_earlier_on_resolves_no_more_often() -> None:
    """A broker's version is that of the metadata in which it first saw the present topics."""
    topics = [topic_view("orders-a", 2), topic_view("other", 2)]
    simulation = ConsumerSimulation(*topics)
    simulation.topics = TopicsView.of(topics, version=9)
    simulation.join("a", topics=[], pattern="orders-.*")
    simulation.heartbeat("a")
    simulation.restart()
    simulation.topics = TopicsView.of(topics, version=3)
    before = simulation.resolutions
    for _ in range(10):
        simulation.advance(10_000)
        simulation.heartbeat("a")
    assert simulation.resolutions == before
    for _ in range(70):
        simulation.advance(10_000)
        simulation.heartbeat("a")
    assert simulation.resolutions == before + 1, "group.consumer.regex.refresh.interval.ms"
    simulation.topics = TopicsView.of([*topics, topic_view("orders-b", 3)], version=10)
    for _ in range(3):
        simulation.advance(10_000)
        simulation.heartbeat("a")
    assert owned(simulation, "a") == [5]


def test_a_coordinator_whose_metadata_is_behind_takes_no_topic_away() -> None:
    topics = [topic_view("orders-a", 2), topic_view("orders-b", 3)]
    simulation = ConsumerSimulation(*topics)
    simulation.topics = TopicsView.of(topics, version=9)
    simulation.join("a", topics=[], pattern="orders-.*")
    simulation.heartbeat("a")
    simulation.restart()
    simulation.topics = TopicsView.of(topics[:1], version=3)
    for _ in range(80):
        simulation.advance(10_000)
        simulation.heartbeat("a")
    assert simulation.group.regexes["orders-.*"].topics == {"orders-a", "orders-b"}


def test_partitions_that_are_added_are_assigned_and_a_deleted_topics_are_given_up() -> None:
    simulation = ConsumerSimulation(topic_view("t", 2), topic_view("u", 2))
    simulation.join("a", topics=["t", "u"])
    assert owned(simulation, "a") == [4]
    simulation.set_topics(topic_view("t", 3))
    simulation.settle("a")
    assert owned(simulation, "a") == [3]


def test_commits_are_fenced_by_the_members_epoch() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    assert hasattr(simulation.commit("a", 1), "topics")
    assert simulation.commit("a", 2, epoch=0) is ErrorCode.STALE_MEMBER_EPOCH
    assert simulation.commit("a", 2, epoch=2) is ErrorCode.STALE_MEMBER_EPOCH
    assert simulation.commit("b", 2, epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert simulation.commit("a", 2, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert simulation.commit("b", 2, epoch=-1) is ErrorCode.UNKNOWN_MEMBER_ID
    simulation.leave("a")
    assert hasattr(simulation.commit("tool", 3, epoch=-1), "topics")


def test_reads_of_offsets_are_fenced_by_the_members_epoch() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    member = simulation.client("a").member_id

    def read(member_id: str | None, epoch: int) -> ErrorCode:
        asked = OffsetFetchRequestGroup(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, topics=None
        )
        try:
            read_offsets(simulation.shard, asked, lambda _name: UUID(int=0), require_stable=False)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    assert read(member, 1) is ErrorCode.NONE
    assert read(member, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert read(member, 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert read("former", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert read(None, -1) is ErrorCode.NONE  # an administrator


def test_commits_of_transactions_are_fenced_by_the_members_epoch() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    member = simulation.client("a").member_id

    def commit(member_id: str, epoch: int) -> ErrorCode:
        topics = [
            TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
        ]
        request = TxnOffsetCommitRequest(
            group_id=GROUP, generation_id=epoch, member_id=member_id, topics=topics
        )
        try:
            decision = decide_txn_commit(
                simulation.shard,
                simulation.config,
                request,
                simulation.caller("a", 5),
                TimestampMs(simulation.now_ms),
                lambda _topic, _index: ErrorCode.NONE,
            )
        except ApiError as error:
            return error.code
        assert len(decision.records) == 1
        return ErrorCode.NONE

    assert commit(member, 1) is ErrorCode.NONE
    assert commit(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert commit(member, 2) is ErrorCode.ILLEGAL_GENERATION
    assert commit("former", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    # A producer before KIP-447 names no member: its transactional id alone fences it.
    assert commit("", -1) is ErrorCode.NONE


def test_what_most_members_ask_for_assigns() -> None:
    simulation = ConsumerSimulation(topic_view("t", 4), topic_view("u", 4))
    for name in "ab":
        simulation.join(name, topics=["t", "u"], assignor="range")
    simulation.settle("a", "b")
    shares = [simulation.client(name).owned for name in "ab"]
    for share in shares:
        first, second = share.values()
        assert first == second, "co-partitioned topics go to the same member"


def cooperative_member(name: str, generation: int, owned: set[int]) -> Member:
    """Return a member of the classic protocol that says what it still has, as it rejoined."""
    told = ConsumerProtocolSubscription(
        topics=["t"],
        owned_partitions=[OwnedPartitions(topic="t", partitions=sorted(owned))],
        generation_id=generation,
    )
    return Member(
        member_id=name,
        group_instance_id=None,
        client_id=name,
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocols=(("cooperative-sticky", (2).to_bytes(2, "big") + encode_bytes(told, 2)),),
    )


def test_a_group_that_is_upgraded_between_join_and_sync_gives_nobody_what_another_still_has() -> (
    None
):
    world = ConsumerSimulation()
    # The late one missed a generation: what it says that it has, the newer one has now.
    late = cooperative_member("late", 3, {0, 1, 2})
    newer = cooperative_member("newer", 4, {2, 3, 4, 5})
    world.shard.groups["g"] = Group(
        group_id="g",
        state=GroupState.COMPLETING_REBALANCE,
        generation=Generation(5),
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name="cooperative-sticky",
        leader_id="late",
        members={"late": late, "newer": newer},
    )
    answer = world.join("native")
    topic = world.topics.by_name["t"].topic_id
    assert not any(each.partitions for each in answer.assignment.topic_partitions)
    owners = {item: world.group.owner_of(topic, item) for item in range(6)}
    assert owners == dict.fromkeys((0, 1), "late") | dict.fromkeys((2, 3, 4, 5), "newer")


def test_a_timer_of_a_member_that_is_gone_does_nothing() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    for kind in (TimerKind.SESSION, TimerKind.REVOCATION):
        key = TimerKey(kind=kind, group_id=GROUP, member_id="gone")
        assert decide_consumer_timer(simulation.shard, key, simulation.context) == GroupDecision()
    assert list(simulation.group.members) == ["m-a"]


def test_an_expression_that_another_member_has_too_stays_resolved() -> None:
    simulation = ConsumerSimulation()
    for name in "abc":
        simulation.join(name, topics=[], pattern="t.*" if name != "c" else "u.*")
    simulation.join("a", topics=[], pattern="u.*")
    assert set(simulation.group.regexes) == {"t.*", "u.*"}
    simulation.join("b", topics=[], pattern="u.*")
    assert set(simulation.group.regexes) == {"u.*"}


def test_a_member_that_says_all_again_without_a_change_writes_nothing() -> None:
    simulation = ConsumerSimulation()
    simulation.join("a")
    simulation.settle("a")
    written = len(simulation.log)
    simulation.client("a").has_told = False
    simulation.heartbeat("a")
    assert len(simulation.log) == written
