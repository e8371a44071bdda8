from random import Random
from uuid import UUID

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from headrace_broker.server.fetch.fetch_sessions import FetchSessions

TOPIC = UUID(int=7)


def request(session_id: int = 0, epoch: int = 0, **partitions: int) -> FetchRequest:
    """A request for partitions by number, `p3=50` meaning partition 3 from offset 50."""
    asked = [
        FetchPartition(partition=int(name[1:]), fetch_offset=offset, partition_max_bytes=100)
        for name, offset in partitions.items()
    ]
    topics = [FetchTopic(topic_id=TOPIC, partitions=asked)] if asked else []
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def sessions(slots: int = 10, partitions_max: int = 10) -> FetchSessions:
    return FetchSessions(slots, partitions_max, Random(5))


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


def test_a_flood_of_sessions_keeps_the_number_bounded_and_drops_the_least_used() -> None:
    table = sessions(slots=3)
    first, _ = table.open(request(p0=1))
    assert first is not None
    for _ in range(50):
        table.open(request(p0=1))
    assert len(table) == 3
    assert table.open(request(first.identity, 1))[1] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


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
