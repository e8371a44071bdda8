"""Requests of the modern groups that a client would not send, or whose answers it would hide.

`HEADRACE_CONFORMANCE_PEER=kafka` says what Apache Kafka answers to the same.
"""

import uuid
from datetime import timedelta

import pytest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.leave_group.v5 import request as leave_group
from kio.schema.offset_commit.v9 import request as offset_commit
from kio.schema.share_acknowledge.v1 import request as share_acknowledge
from kio.schema.share_fetch.v1 import request as share_fetch
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest

from conformance.test_share_fetch_raw import id_of, send
from support.processes import wait_until
from support.share_consumers import configure_group
from support.wire import RawConnection

SECONDS = 30
WAIT = timedelta(seconds=SECONDS)
ACCEPT = 1


@pytest.fixture
def connection(bootstrap):
    with RawConnection(bootstrap, SECONDS) as opened:
        yield opened


@pytest.fixture
def group(connection, new_group):
    """Return a group whose coordinator answers."""
    name = new_group()
    connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=(name,)))
    ask = HeartbeatRequest(group_id=name, generation_id=0, member_id="nobody")
    wait_until(lambda: connection.call(ask).error_code.name == "unknown_member_id", SECONDS)
    return name


def consumer_heartbeat(connection, group, member, topic, epoch=0, **more):
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout=WAIT,
        subscribed_topic_names=(topic,),
        topic_partitions=() if epoch == 0 else None,
        **more,
    )
    return connection.call(request)


def share_heartbeat(connection, group, member, topic, epoch=0):
    request = ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=(topic,)
    )
    return connection.call(request)


@pytest.mark.parametrize("heartbeat", [consumer_heartbeat, share_heartbeat])
@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_name_is_refused(connection, new_topic, group, heartbeat, blank):
    topic = new_topic()
    assert heartbeat(connection, blank, "m", topic).error_code.name == "invalid_request"
    assert heartbeat(connection, group, blank, topic).error_code.name == "invalid_request"


def test_an_administrator_removes_a_member_of_the_consumer_protocol(connection, new_topic, group):
    topic, member = new_topic(), uuid.uuid4().hex
    joined = consumer_heartbeat(connection, group, member, topic)
    leaving = leave_group.MemberIdentity(member_id=member)
    answer = connection.call(leave_group.LeaveGroupRequest(group_id=group, members=(leaving,)))
    assert [item.error_code.name for item in answer.members] == ["none"]
    again = consumer_heartbeat(connection, group, member, topic, epoch=joined.member_epoch)
    assert again.error_code.name == "unknown_member_id"


def test_a_replaced_static_member_commits_no_more(connection, new_topic, group):
    topic, first, second = new_topic(), uuid.uuid4().hex, uuid.uuid4().hex
    consumer_heartbeat(connection, group, first, topic, instance_id="i")
    consumer_heartbeat(connection, group, first, topic, epoch=-2, instance_id="i")
    joined = consumer_heartbeat(connection, group, second, topic, instance_id="i")

    def commit(member):
        position = offset_commit.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=None
        )
        item = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=(position,))
        request = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=joined.member_epoch,
            member_id=member,
            group_instance_id="i",
            topics=(item,),
        )
        return connection.call(request).topics[0].partitions[0].error_code.name

    assert commit(first) == "unknown_member_id"
    assert commit(second) == "none"


class ShareSession:
    """A share group's member and its session, by hand."""

    def __init__(self, connection, group, topic):
        self.member, self.epoch = str(uuid.uuid4()), 0
        self._connection, self._group = connection, group
        self._topic_id = id_of(connection, topic)
        share_heartbeat(connection, group, self.member, topic)

    def fetch(self, epoch=None):
        """Fetch; return (first, last, deliveries) of what was acquired."""
        partition = share_fetch.FetchPartition(partition_index=0, acknowledgement_batches=())
        asked = share_fetch.FetchTopic(topic_id=self._topic_id, partitions=(partition,))
        request = share_fetch.ShareFetchRequest(
            group_id=self._group,
            member_id=self.member,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait=timedelta(milliseconds=200),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=(asked,) if self.epoch == 0 else (),
            forgotten_topics_data=(),
        )
        answer = self._connection.call(request)
        assert answer.error_code.name == "none"
        self.epoch += 1
        return [
            (item.first_offset, item.last_offset, item.delivery_count)
            for topic in answer.responses
            for partition in topic.partitions
            for item in partition.acquired_records
        ]

    def acquire(self):
        """Fetch until something is acquired."""
        found = []
        wait_until(lambda: found.extend(self.fetch()) or found, SECONDS, "records")
        return found

    def close(self):
        self.fetch(epoch=-1)

    def say(self, first, last, kind):
        batch = share_acknowledge.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=(kind,)
        )
        partition = share_acknowledge.AcknowledgePartition(
            partition_index=0, acknowledgement_batches=(batch,)
        )
        topic = share_acknowledge.AcknowledgeTopic(topic_id=self._topic_id, partitions=(partition,))
        request = share_acknowledge.ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self.member,
            share_session_epoch=self.epoch,
            topics=(topic,),
        )
        self.epoch += 1
        return self._connection.call(request).responses[0].partitions[0].error_code.name


@pytest.fixture
def share_group(bootstrap, group):
    configure_group(bootstrap, group, {"share.auto.offset.reset": "earliest"})
    return group


def test_a_delivery_counts_though_its_member_went_without_a_word(
    bootstrap, connection, new_topic, share_group
):
    topic = new_topic()
    send(bootstrap, topic, b"value")
    counts = []
    for _ in range(5):
        session = ShareSession(connection, share_group, topic)
        counts += session.acquire()
        session.close()
    assert counts == [(0, 0, number) for number in (1, 2, 3, 4, 5)]
    send(bootstrap, topic, b"next")
    session = ShareSession(connection, share_group, topic)
    assert session.acquire() == [(1, 1, 1)], "the first is given up"


def test_what_is_done_with_may_be_acknowledged_again_and_what_was_not_delivered_may_not(
    bootstrap, connection, new_topic, share_group
):
    topic = new_topic()
    for value in (b"0", b"1"):
        send(bootstrap, topic, value)
    session = ShareSession(connection, share_group, topic)
    found = session.acquire()
    while found[-1][1] < 1:
        found += session.acquire()
    assert session.say(0, 0, ACCEPT) == "none"
    assert session.say(0, 0, ACCEPT) == "none"
    assert session.say(1, 9, ACCEPT) == "invalid_request"
    assert session.say(1, 1, ACCEPT) == "none"
