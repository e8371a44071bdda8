"""What moves between the log directories of a broker, and what cannot."""

import random

import pytest

from headrace_operator.log_dirs import is_done
from headrace_operator.plan.directories import Directory, Replica, plan_balance, plan_leaving


def directory(path, *sizes, broker=1, topic="t", first=0, **fields):
    replicas = tuple(
        Replica(topic=topic, partition=first + number, bytes=size)
        for number, size in enumerate(sizes)
    )
    return Directory(broker=broker, path=path, replicas=replicas, **fields)


def after(directories, moves):
    """The directories once the moves are done."""
    held = {(each.broker, each.path): list(each.replicas) for each in directories}
    for move in moves:
        (replica,) = [
            each
            for each in held[move.broker, move.source]
            if (each.topic, each.partition) == (move.topic, move.partition)
        ]
        held[move.broker, move.source].remove(replica)
        held[move.broker, move.target].append(replica)
    return [
        Directory(broker=each.broker, path=each.path, replicas=tuple(held[each.broker, each.path]))
        for each in directories
    ]


def test_a_new_directory_gets_half_of_the_bytes():
    found = [directory("/a", 50, 30, 20), directory("/b")]
    moves = plan_balance(found)
    assert [each.bytes for each in after(found, moves)] == [50, 50]
    assert len(moves) == 1
    assert plan_balance(after(found, moves)) == []


def test_empty_replicas_are_spread_by_number():
    found = [directory("/a", 0, 0, 0, 0), directory("/b")]
    assert [len(each.replicas) for each in after(found, plan_balance(found))] == [2, 2]


def test_brokers_are_looked_at_one_by_one_and_offline_directories_not_at_all():
    found = [
        directory("/a", 10, 10),
        directory("/b", broker=2),
        directory("/c", is_online=False),
    ]
    assert plan_balance(found) == []


def test_a_directory_is_left_for_the_emptiest_others():
    found = [directory("/a", 5, 9), directory("/b", 1, first=7), directory("/c", 4, first=8)]
    moves = plan_leaving(found, "/a")
    assert {(each.partition, each.target) for each in moves} == {(1, "/b"), (0, "/c")}
    assert not after(found, moves)[0].replicas
    assert not is_done(moves, found)
    assert is_done(moves, after(found, moves))


def test_a_directory_is_not_left_by_halves():
    with pytest.raises(ValueError, match="no other log directory in use"):
        plan_leaving([directory("/a", 5), directory("/b", is_online=False)], "/a")
    full = [directory("/a", 5, 5), directory("/b", free_bytes=8)]
    with pytest.raises(ValueError, match=r"no room for t-1 \(5 bytes\) outside /a"):
        plan_leaving(full, "/a")
    assert plan_leaving([directory("/b", 1, broker=2)], "/a") == []


@pytest.mark.parametrize("seed", range(50))
def test_balancing_ends_and_makes_nothing_worse(seed):
    chance = random.Random(seed)
    found = [
        directory(
            f"/{number}", *(chance.choice([0, 1, 5, 100]) for _ in range(count)), first=100 * number
        )
        for number, count in enumerate(chance.choices(range(12), k=chance.randint(1, 5)))
    ]
    moves = plan_balance(found)
    assert len({(each.topic, each.partition) for each in moves}) == len(moves)
    result = after(found, moves)
    spread = [
        max(each.bytes for each in some) - min(each.bytes for each in some)
        for some in (found, result)
    ]
    assert spread[1] <= spread[0]
    largest = max((replica.bytes for each in found for replica in each.replicas), default=0)
    assert spread[1] <= largest
