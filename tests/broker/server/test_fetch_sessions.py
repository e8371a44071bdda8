from collections.abc import Callable
from random import Random
from uuid import UUID

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from headrace_broker.server.fetch.fetch_sessions import (
    EVICTION_SECONDS_MIN,
    FetchSession,
    FetchSessions,
)

TOPIC = UUID(int=7)


def request(session_id: int = 0, epoch: int = 0, **partitions: int) -> FetchRequest:
    """A request for partitions by number, `p3=50` meaning partition 3 from offset 50."""
    asked = [
        FetchPartition(partition=int(name[1:]), fetch_offset=offset, partition_max_bytes=100)
        for name, offset in partitions.items()
    ]
    topics = [FetchTopic(topic_id=TOPIC, partitions=asked)] if asked else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


class Clock:
    """Seconds that pass when a test says so."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FollowerSession(FetchSession):
    is_privileged = True


def sessions(
    slots: int = 10, partitions_max: int = 10, now: Callable[[], float] = lambda: 0.0
) -> FetchSessions:
    return FetchSessions(slots, partitions_max, Random(5), now)


def is_kept(table: FetchSessions, session: FetchSession | None) -> bool:
    assert session is not None
    return table.upcoming(session.identity, session.epoch) is session


def test_epoch_zero_opens_a_session_that_remembers_its_partitions() -> None:
    opened, error = sessions().open(request(p0=1, p1=2))
    assert error is ErrorCode.NONE
    assert opened is not None
    assert opened.identity > 0
    assert [item.fetch_offset for item in opened.partitions.values()] == [1, 2]


def test_an_incremental_request_changes_only_what_it_names() -> None:
    table = sessions()
    opened, _ = table.open(request(p0=1, p1=2))
    assert opened is not None
    again, error = table.open(request(opened.identity, 1, p1=9))
    assert again is opened
    assert error is ErrorCode.NONE
    assert [item.fetch_offset for item in opened.partitions.values()] == [1, 9]


def test_forgotten_partitions_are_dropped() -> None:
    table = sessions()
    opened, _ = table.open(request(p0=1, p1=2))
    assert opened is not None
    forget = request(opened.identity, 1)
    forget.forgotten_topics_data = [ForgottenTopic(topic_id=TOPIC, partitions=[0])]
    table.open(forget)
    assert [item.index for item in opened.partitions.values()] == [1]


def test_a_wrong_epoch_and_an_unknown_session_are_said() -> None:
    table = sessions()
    opened, _ = table.open(request(p0=1))
    assert opened is not None
    assert table.open(request(opened.identity, 5))[1] is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert table.open(request(opened.identity + 1, 1))[1] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_epochs_wrap_to_one() -> None:
    table = sessions()
    opened, _ = table.open(request(p0=1))
    assert opened is not None
    opened.epoch = 2**31 - 1
    assert table.open(request(opened.identity, 2**31 - 1))[1] is ErrorCode.NONE
    assert opened.epoch == 1


def test_the_final_epoch_closes_the_session_and_is_a_full_request() -> None:
    table = sessions()
    opened, _ = table.open(request(p0=1))
    assert opened is not None
    assert table.open(request(opened.identity, -1, p0=1)) == (None, ErrorCode.NONE)
    assert len(table) == 0


def test_a_flood_of_sessions_evicts_none_that_is_in_use() -> None:
    """Who gets no session is served without one."""
    table = sessions(slots=3)
    first, _ = table.open(request(p0=1))
    assert first is not None
    for _ in range(50):
        table.open(request(p0=1, p1=1))
    assert len(table) == 3
    assert table.open(request(p0=1)) == (None, ErrorCode.NONE)
    assert table.open(request(first.identity, 1)) == (first, ErrorCode.NONE)


def test_a_session_that_was_not_used_for_long_gives_way() -> None:
    now = Clock()
    table = sessions(slots=2, now=now)
    big, _ = table.open(request(p0=1, p1=1, p2=1))
    used, _ = table.open(request(p0=1))
    now.seconds += EVICTION_SECONDS_MIN
    assert used is not None
    table.open(request(used.identity, 1))
    now.seconds += 1
    assert table.open(request(p0=1))[0] is not None
    assert is_kept(table, used)
    assert not is_kept(table, big)


def test_only_a_smaller_session_that_is_not_new_gives_way_to_a_bigger_one() -> None:
    now = Clock()
    table = sessions(slots=3, now=now)
    small, _ = table.open(request(p0=1, p1=1))
    other, _ = table.open(request(p0=1, p1=1, p2=1))
    now.seconds += EVICTION_SECONDS_MIN + 1
    for used in (small, other):
        assert used is not None
        table.open(request(used.identity, 1))
    new, _ = table.open(request(p0=1))
    assert table.open(request(p0=1, p1=1)) == (None, ErrorCode.NONE)
    assert is_kept(table, small)
    assert table.open(request(p0=1, p1=1, p2=1))[0] is not None
    assert not is_kept(table, small)
    assert is_kept(table, other)
    assert is_kept(table, new)


def test_a_followers_session_takes_a_consumers_slot_and_never_gives_way_to_one() -> None:
    now = Clock()
    table = sessions(slots=2, now=now)
    smaller, _ = table.open(request(p0=1))
    bigger, _ = table.open(request(p0=1, p1=1))
    follower, _ = table.open(request(p0=1), FollowerSession, is_privileged=True)
    assert is_kept(table, follower)
    assert is_kept(table, bigger)
    assert not is_kept(table, smaller)
    another, _ = table.open(request(p0=1), FollowerSession, is_privileged=True)
    assert not is_kept(table, bigger)
    # Followers' alone are left, and none of them is old.
    assert table.open(request(p0=1, p1=1), FollowerSession, is_privileged=True)[0] is None
    now.seconds += EVICTION_SECONDS_MIN + 1
    for used in (follower, another):
        assert used is not None
        table.open(request(used.identity, 1))
    assert table.open(request(p0=1, p1=1)) == (None, ErrorCode.NONE)
    assert table.open(request(p0=1, p1=1), FollowerSession, is_privileged=True)[0] is not None


def test_a_request_that_is_refused_or_asks_for_nothing_evicts_nothing() -> None:
    now = Clock()
    table = sessions(slots=1, partitions_max=2, now=now)
    kept, _ = table.open(request(p0=1))
    now.seconds += EVICTION_SECONDS_MIN + 1
    assert table.open(request(p0=1, p1=1, p2=1)) == (None, ErrorCode.INVALID_REQUEST)
    assert table.open(request()) == (None, ErrorCode.NONE)
    assert is_kept(table, kept)


def test_without_slots_there_are_no_sessions() -> None:
    assert sessions(slots=0).open(request(p0=1)) == (None, ErrorCode.NONE)


def test_a_session_takes_no_more_partitions_than_it_may() -> None:
    table = sessions(partitions_max=2)
    opened, error = table.open(request(p0=1, p1=1, p2=1))
    assert opened is None
    assert error is ErrorCode.INVALID_REQUEST
    assert len(table) == 0


def test_partitions_that_had_data_go_to_the_end() -> None:
    opened, _ = sessions().open(request(p0=1, p1=2, p2=3))
    assert opened is not None
    first = next(iter(opened.partitions.values()))
    opened.rotate([first])
    assert [item.index for item in opened.partitions.values()] == [1, 2, 0]


def test_an_answer_to_what_was_forgotten_meanwhile_moves_nothing() -> None:
    table = sessions()
    opened, _ = table.open(request(p0=1, p1=2))
    assert opened is not None
    first = next(iter(opened.partitions.values()))
    forget = request(opened.identity, 1)
    forget.forgotten_topics_data = [ForgottenTopic(topic_id=TOPIC, partitions=[0])]
    table.open(forget)
    opened.rotate([first])
    assert [item.index for item in opened.partitions.values()] == [1]
