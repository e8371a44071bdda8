"""ShareFetch by hand: requests and what their answers acquired."""

import uuid
from datetime import timedelta

from kio.schema.metadata.v12 import request as metadata
from kio.schema.share_fetch.v1 import request as share_fetch


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


def acquired(response):
    return [
        (item.first_offset, item.last_offset)
        for topic in response.responses
        for partition in topic.partitions
        for item in partition.acquired_records
    ]
