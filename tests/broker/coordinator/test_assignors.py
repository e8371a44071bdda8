"""The server-side assignors: even, sticky, near, and deterministic."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.coordinator.modern.assignment import Partitions
from headrace_broker.coordinator.modern.assignor import AssignmentSpec, Assignor
from headrace_broker.coordinator.modern.range import assign_range
from headrace_broker.coordinator.modern.topics import TopicView
from headrace_broker.coordinator.modern.uniform import assign_uniform
from support.consumer_groups import topic_view

ASSIGNORS = {"uniform": assign_uniform, "range": assign_range}
TOPICS = [topic_view(name, count) for name, count in (("t", 7), ("u", 7), ("v", 3), ("w", 1))]


def assign(
    assignor: Assignor,
    subscriptions: Mapping[str, frozenset[UUID]],
    topics: list[TopicView],
    current: Mapping[str, Partitions] | None = None,
    racks: Mapping[str, str] | None = None,
) -> dict[str, Partitions]:
    """Return the whole target, from one that members who left are no part of."""
    current = {key: value for key, value in (current or {}).items() if key in subscriptions}
    owners: dict[UUID, dict[int, str]] = {}
    for member, target in current.items():
        for topic, items in target.items():
            owners.setdefault(topic, {}).update(dict.fromkeys(items, member))
    distinct = set(subscriptions.values())
    spec = AssignmentSpec(
        members=list(subscriptions),
        subscriptions=distinct.pop() if len(distinct) == 1 else subscriptions,
        topics={topic.topic_id: topic for topic in topics},
        current=current,
        sizes={key: sum(map(len, value.values())) for key, value in current.items()},
        owners=owners,
        racks=racks or {},
    )
    return current | assignor(spec)


def pairs(target: Partitions) -> set[tuple[UUID, int]]:
    return {(topic, item) for topic, items in target.items() for item in items}


def wanted(*names: str) -> frozenset[UUID]:
    return frozenset(topic.topic_id for topic in TOPICS if topic.name in names)


SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.sets(st.sampled_from(["t", "u", "v", "w"])).map(lambda names: wanted(*names)),
    min_size=1,
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(rounds=st.lists(SUBSCRIPTIONS, min_size=1, max_size=4))
def test_everything_that_is_subscribed_has_one_owner_who_wants_it(
    name: str, rounds: list[dict[str, frozenset[UUID]]]
) -> None:
    current: dict[str, Partitions] = {}
    for subscriptions in rounds:
        current = assign(ASSIGNORS[name], subscriptions, TOPICS, current)
        assert current.keys() == subscriptions.keys()
        owned = [pair for target in current.values() for pair in pairs(target)]
        assert len(owned) == len(set(owned))
        all_wanted = frozenset().union(*subscriptions.values())
        assert set(owned) == {
            (topic.topic_id, index)
            for topic in TOPICS
            if topic.topic_id in all_wanted
            for index in range(topic.partition_count)
        }
        for member, target in current.items():
            assert target.keys() <= subscriptions[member]
        again = assign(ASSIGNORS[name], subscriptions, TOPICS, current)
        assert again == current, "nothing moves without a reason"
        shuffled = dict(reversed(subscriptions.items()))
        assert assign(ASSIGNORS[name], shuffled, TOPICS, current) == current


@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=6))
def test_uniform_is_even_and_moves_as_little_as_it_can(sizes: list[int]) -> None:
    current: dict[str, Partitions] = {}
    total = sum(topic.partition_count for topic in TOPICS)
    for count in sizes:
        members = {f"m{index}": wanted("t", "u", "v", "w") for index in range(count)}
        before = {key: pairs(value) for key, value in current.items() if key in members}
        current = assign(assign_uniform, members, TOPICS, current)
        shares = [len(pairs(target)) for target in current.values()]
        assert max(shares) - min(shares) <= 1
        assert sum(shares) == total
        for member, held in before.items():
            kept = held & pairs(current[member])
            assert len(kept) >= min(len(held), total // count)


@given(SUBSCRIPTIONS)
def test_uniform_leaves_no_pair_that_a_move_would_even_out(
    subscriptions: dict[str, frozenset[UUID]],
) -> None:
    target = assign(assign_uniform, subscriptions, TOPICS)
    loads = {member: len(pairs(item)) for member, item in target.items()}
    for giver, item in target.items():
        for topic in item:
            for taker, topics in subscriptions.items():
                if topic in topics:
                    assert loads[giver] - loads[taker] <= 1


def test_range_gives_runs_and_the_same_of_every_co_partitioned_topic() -> None:
    members = {name: wanted("t", "u") for name in "abc"}
    target = assign(assign_range, members, TOPICS)
    shares = [set(map(frozenset, target[name].values())) for name in "abc"]
    assert shares == [
        {frozenset({0, 1, 2})},
        {frozenset({3, 4})},
        {frozenset({5, 6})},
    ]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_member_gets_what_has_a_replica_in_its_rack_where_that_costs_no_balance(
    name: str,
) -> None:
    topic = topic_view("t", 6, *([["r1"], ["r2"]] * 3))
    members = {key: frozenset({topic.topic_id}) for key in ("a", "b")}
    target = assign(ASSIGNORS[name], members, [topic], racks={"a": "r2", "b": "r1"})
    assert target["a"][topic.topic_id] == {1, 3, 5}
    assert target["b"][topic.topic_id] == {0, 2, 4}


def test_who_has_too_much_gives_its_last_partitions_away() -> None:
    topic = topic_view("t", 6)
    members = {"a": frozenset({topic.topic_id})}
    current = assign(assign_uniform, members, [topic])
    members["b"] = frozenset({topic.topic_id})
    target = assign(assign_uniform, members, [topic], current)
    assert target["a"][topic.topic_id] == {0, 1, 2}
    assert target["b"][topic.topic_id] == {3, 4, 5}


def test_a_newcomer_of_a_thousand_costs_just_what_it_takes() -> None:
    topic = topic_view("t", 10_000)
    members = {f"m{index:04}": frozenset({topic.topic_id}) for index in range(999)}
    current = assign(assign_uniform, members, [topic])
    members["new"] = frozenset({topic.topic_id})
    after = assign(assign_uniform, members, [topic], current)
    changed = [key for key, value in after.items() if current.get(key) != value]
    assert len(changed) == 11


def test_members_of_different_topics_get_a_topics_partitions_in_turn() -> None:
    t, u = topic_view("t", 4), topic_view("u", 2)
    members = {name: frozenset({t.topic_id}) for name in ("a", "b")}
    members["c"] = frozenset({u.topic_id})
    target = assign(assign_uniform, members, [t, u])
    assert target["a"][t.topic_id] == {0, 2}
    assert target["b"][t.topic_id] == {1, 3}
