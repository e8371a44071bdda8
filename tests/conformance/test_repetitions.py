"""Requests that name the same thing more than once, and offsets by their specification.

Each holds for Apache Kafka 4.2.1 as well: `HEADRACE_CONFORMANCE_PEER=kafka` runs these against it.
"""

import importlib
from datetime import timedelta

import pytest
from kio.index import load_request_schema
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.list_offsets.v7.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.metadata.v9 import request as metadata

from support.processes import wait_until

_SECONDS = 30


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


@pytest.mark.parametrize("timestamp", [-1, -2, -3, 0])
def test_offsets_of_a_partition_that_is_named_again_are_refused(connection, new_topic, timestamp):
    topic = new_topic(2)
    partitions = tuple(
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
        for index in (0, 0, 1, 0)
    )
    asked = ListOffsetsTopic(name=topic, partitions=partitions)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(asked,))
    (answer,) = connection.call(request).topics
    errors = {found.partition_index: found.error_code for found in answer.partitions}
    assert errors == {0: ErrorCode.invalid_request, 1: ErrorCode.none}
    assert len(answer.partitions) == 2


def test_offsets_by_time_of_many_partitions_are_all_answered(connection, new_topic):
    topic = new_topic(5)
    partitions = tuple(
        ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=-3)
        for index in range(5)
    )
    asked = ListOffsetsTopic(name=topic, partitions=partitions)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(asked,))
    (answer,) = connection.call(request).topics
    assert {found.partition_index for found in answer.partitions} == set(range(5))
    assert {found.error_code for found in answer.partitions} == {ErrorCode.none}


SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99}


@pytest.mark.parametrize("timestamp", SINCE)
def test_each_specification_of_an_offset_has_its_first_version(connection, new_topic, timestamp):
    topic = new_topic()
    for version in range(1, 12):
        kind = load_request_schema(2, version)
        module = importlib.import_module(kind.__module__)
        partition = {"partition_index": 0, "timestamp": timestamp}
        found = module.ListOffsetsPartition(
            **partition, **({"current_leader_epoch": -1} if version >= 4 else {})
        )
        asked = module.ListOffsetsTopic(name=topic, partitions=(found,))
        options = {"isolation_level": 0} if version >= 2 else {}
        if version >= 10:
            options["timeout"] = timedelta(seconds=10)
        (answer,) = connection.call(kind(replica_id=-1, topics=(asked,), **options)).topics
        expected = version >= SINCE[timestamp]
        code = ErrorCode.none if expected else ErrorCode.unsupported_version
        assert answer.partitions[0].error_code is code, version
