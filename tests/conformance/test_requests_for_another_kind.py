"""Requests for a group that is of another kind than they are for: what Apache Kafka 4.2.1 answers.

`HEADRACE_CONFORMANCE_PEER=kafka` asks Kafka itself.
"""

import pytest
from kio.schema.alter_share_group_offsets.v0 import request as alter_share
from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.delete_share_group_offsets.v0 import request as delete_share
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_share_group_offsets.v0 import request as describe_share
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.offset_commit.v8 import request as commit
from kio.schema.offset_delete.v0 import request as delete
from kio.schema.offset_fetch.v8 import request as fetch
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

from support.processes import wait_until
from support.wire import RawConnection

SECONDS = 60


@pytest.fixture
def connection(bootstrap):
    with RawConnection(bootstrap, SECONDS) as opened:
        yield opened


def coordinator(connection, group):
    connection.call(FindCoordinatorRequest(key_type=0, coordinator_keys=(group,)))


def alter_offsets(connection, group, topic):
    partition = alter_share.AlterShareGroupOffsetsRequestPartition(
        partition_index=0, start_offset=0
    )
    item = alter_share.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=(partition,))
    request = alter_share.AlterShareGroupOffsetsRequest(group_id=group, topics=(item,))
    answer = connection.call(request)
    return {
        answer.error_code.name,
        *(part.error_code.name for each in answer.responses for part in each.partitions),
    }


def commit_offset(connection, group, topic):
    partition = commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=None
    )
    item = commit.OffsetCommitRequestTopic(name=topic, partitions=(partition,))
    request = commit.OffsetCommitRequest(group_id=group, member_id="", topics=(item,))
    (answer,) = connection.call(request).topics
    return answer.partitions[0].error_code.name


@pytest.fixture
def share_group(connection, new_group, new_topic):
    group, topic = new_group(), new_topic()
    coordinator(connection, group)
    wait_until(lambda: alter_offsets(connection, group, topic) == {"none"}, SECONDS)
    return group, topic


@pytest.fixture
def classic_group(connection, new_group, new_topic):
    group, topic = new_group(), new_topic()
    coordinator(connection, group)
    wait_until(lambda: commit_offset(connection, group, topic) == "none", SECONDS)
    return group, topic


def test_a_share_group_commits_no_offsets(connection, share_group):
    assert commit_offset(connection, *share_group) == "group_id_not_found"


@pytest.mark.parametrize("has_topics", [True, False])
def test_a_share_group_has_no_committed_offsets(connection, share_group, has_topics):
    group, topic = share_group
    item = fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=(0,))
    asked = fetch.OffsetFetchRequestGroup(group_id=group, topics=(item,) if has_topics else None)
    (answer,) = connection.call(fetch.OffsetFetchRequest(groups=(asked,))).groups
    assert answer.error_code.name == "none"
    found = {part.committed_offset for each in answer.topics for part in each.partitions}
    assert found == ({-1} if has_topics else set())


def test_a_share_group_s_offsets_are_not_deleted_as_committed_ones(connection, share_group):
    group, topic = share_group
    part = delete.OffsetDeleteRequestPartition(partition_index=0)
    item = delete.OffsetDeleteRequestTopic(name=topic, partitions=(part,))
    answer = connection.call(delete.OffsetDeleteRequest(group_id=group, topics=(item,)))
    assert answer.error_code.name == "group_id_not_found"


def test_a_share_group_is_described_as_what_it_is_not(connection, share_group):
    group, _ = share_group
    request = ConsumerGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
    (answer,) = connection.call(request).groups
    assert answer.error_code.name == "group_id_not_found"
    assert answer.error_message == f"Group {group} is not a consumer group."
    asked = DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)
    (answer,) = connection.call(asked).groups
    assert answer.error_code.name == "group_id_not_found"
    assert answer.error_message == f"Group {group} is not a classic group."


def test_a_classic_group_is_described_as_what_it_is_not(connection, classic_group):
    group, _ = classic_group
    request = ShareGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
    (answer,) = connection.call(request).groups
    assert answer.error_code.name == "group_id_not_found"
    assert answer.error_message == f"Group {group} is not a share group."


def test_a_classic_group_has_no_share_group_offsets(connection, classic_group):
    group, topic = classic_group
    assert "group_id_not_found" in alter_offsets(connection, group, topic)
    asked = describe_share.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    (answer,) = connection.call(
        describe_share.DescribeShareGroupOffsetsRequest(groups=(asked,))
    ).groups
    # Ours says GROUP_ID_NOT_FOUND, Kafka nothing.
    assert answer.topics == ()
    item = delete_share.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
    request = delete_share.DeleteShareGroupOffsetsRequest(group_id=group, topics=(item,))
    answer = connection.call(request)
    assert answer.error_code.name == "group_id_not_found"
