"""Requests that name the same thing more than once.

Each holds for Apache Kafka 4.2.1 as well: `HEADRACE_CONFORMANCE_PEER=kafka` runs these against it.
"""

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.metadata.v9 import request as metadata

from support.processes import wait_until
from support.wire import RawConnection

_SECONDS = 30


@pytest.fixture
def connection(bootstrap):
    with RawConnection(bootstrap) as found:
        yield found


def test_metadata_answers_each_topic_once(connection, new_topic):
    names = [new_topic(), new_topic()]
    request = metadata.MetadataRequest(
        topics=tuple(metadata.MetadataRequestTopic(name=name) for name in names * 50),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    answer = connection.call(request)
    assert sorted(topic.name for topic in answer.topics) == sorted(names)


def test_a_group_is_deleted_and_answered_once(connection, new_group):
    group = new_group()
    wait_until(
        lambda: (
            connection.call(FindCoordinatorRequest(key=group, key_type=0)).error_code
            is ErrorCode.none
        ),
        _SECONDS,
        "the coordinator's partition",
    )
    request = DeleteGroupsRequest(groups_names=(group,) * 3)
    missing = ErrorCode.group_id_not_found
    wait_until(
        lambda: {result.error_code for result in connection.call(request).results} == {missing},
        _SECONDS,
        "the coordinator",
    )
    assert len(connection.call(request).results) == 1
