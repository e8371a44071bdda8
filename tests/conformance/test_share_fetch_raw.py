"""What a share consumer would hide of ShareFetch: how long the broker waits for `min_bytes`."""

import uuid
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kio.schema.metadata.v12 import request as metadata
from kio.schema.share_fetch.v1 import request as share_fetch

from support.wire import RawConnection

SECONDS = 30


@pytest.fixture
def group(new_group, bootstrap):
    name = new_group()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    settings = {"share.auto.offset.reset": "earliest"}
    admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, name, settings)])
    admin.close()
    return name


def id_of(connection, topic):
    wanted = metadata.MetadataRequestTopic(name=topic, topic_id=None)
    asked = metadata.MetadataRequest(
        topics=(wanted,),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    (described,) = connection.call(asked).topics
    return described.topic_id


def share_fetch_of(group, topic_id, min_bytes, max_wait_s):
    partition = share_fetch.FetchPartition(partition_index=0, acknowledgement_batches=())
    return share_fetch.ShareFetchRequest(
        group_id=group,
        member_id=str(uuid.uuid4()),
        share_session_epoch=0,
        max_wait=timedelta(seconds=max_wait_s),
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        max_records=100,
        batch_size=100,
        topics=(share_fetch.FetchTopic(topic_id=topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def send(bootstrap, topic, value):
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def acquired(response):
    return [
        (item.first_offset, item.last_offset)
        for topic in response.responses
        for partition in topic.partitions
        for item in partition.acquired_records
    ]


def test_a_share_fetch_waits_for_as_many_bytes_as_it_asks_for(bootstrap, new_topic, group):
    topic = new_topic(1)
    with RawConnection(bootstrap, timeout_seconds=SECONDS) as connection:
        request = share_fetch_of(group, id_of(connection, topic), 2_000, SECONDS)
        send(bootstrap, topic, b"small")
        connection.send(request)
        send(bootstrap, topic, b"smaller")
        send(bootstrap, topic, b"x" * 3_000)
        assert acquired(connection.receive(request)) == [(0, 2)]


def test_a_share_fetch_gets_what_there_is_when_it_has_waited(bootstrap, new_topic, group):
    topic = new_topic(1)
    with RawConnection(bootstrap, timeout_seconds=SECONDS) as connection:
        send(bootstrap, topic, b"small")
        request = share_fetch_of(group, id_of(connection, topic), 2_000, 1)
        assert acquired(connection.call(request)) == [(0, 0)]
