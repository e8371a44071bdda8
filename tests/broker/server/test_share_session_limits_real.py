"""A broker that allows two share sessions of two partitions each."""

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.share_fetch.v1.request import ForgottenTopic

from support.batches import NewRecord, build_batch
from support.headrace_broker import HeadraceBroker
from support.hostile import produce_error
from support.share_consumers import configure_group
from support.share_fetches import acquired, id_of, share_fetch_of
from support.wire import RawConnection

SETTINGS = {
    "group.share.max.share.sessions": "2",
    "headrace.fetch.session.max.partitions": "2",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with HeadraceBroker(tmp_path_factory.mktemp("sessions"), SETTINGS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(30)
        yield started


def request_for(connection, indexes, **changes):
    """Ask for some partitions of the topic."""
    request = share_fetch_of(uuid.uuid4().hex, id_of(connection, "t"), 0, 0)
    (topic,) = request.topics
    (partition,) = topic.partitions
    partitions = tuple(replace(partition, partition_index=index) for index in indexes)
    return replace(request, topics=(replace(topic, partitions=partitions),), **changes)


def test_a_session_of_too_many_partitions_is_refused_and_takes_no_place(broker):
    with RawConnection(broker.bootstrap) as connection:
        for _ in range(3):
            refused = connection.call(request_for(connection, (0, 1, 2)))
            assert refused.error_code.name == "invalid_request"
            assert "headrace.fetch.session.max.partitions" in refused.error_message
        opened = connection.call(request_for(connection, (0, 1)))
        assert opened.error_code.name == "none"


def test_a_session_does_not_grow_beyond_its_limit_but_may_change(broker):
    with RawConnection(broker.bootstrap) as connection:
        opening = request_for(connection, (0, 1))
        assert connection.call(opening).error_code.name == "none"
        same = {"group_id": opening.group_id, "member_id": opening.member_id}
        more = request_for(connection, (2,), share_session_epoch=1, **same)
        assert connection.call(more).error_code.name == "invalid_request"
        (topic,) = opening.topics
        gone = ForgottenTopic(topic_id=topic.topic_id, partitions=(0,))
        swapped = request_for(
            connection, (2,), share_session_epoch=2, forgotten_topics_data=(gone,), **same
        )
        assert connection.call(swapped).error_code.name == "none"


def test_what_a_member_had_is_released_when_its_next_session_is_refused(broker):
    group = uuid.uuid4().hex
    configure_group(broker.bootstrap, group, {"share.auto.offset.reset": "earliest"})
    assert produce_error(broker.bootstrap, "t", build_batch([NewRecord(value=b"one")])) == "none"
    with RawConnection(broker.bootstrap) as connection:
        asking = {"group_id": group, "min_bytes": 1, "max_wait": timedelta(seconds=5)}
        first = request_for(connection, (0,), **asking)
        assert acquired(connection.call(first)) == [(0, 0)]
        again = request_for(connection, (0, 1, 2), group_id=group, member_id=first.member_id)
        assert connection.call(again).error_code.name == "invalid_request"
        assert acquired(connection.call(request_for(connection, (0,), **asking))) == [(0, 0)]
