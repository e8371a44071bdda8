"""Every version of every group API, over the wire, through a group's whole life."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.headers import request_header_version, response_header_version
from headrace_broker.protocol.messages.create_topics import CreatableTopic
from headrace_broker.protocol.messages.join_group import JoinGroupRequestProtocol
from headrace_broker.protocol.messages.leave_group import MemberIdentity
from headrace_broker.protocol.messages.metadata import MetadataRequestTopic
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace_broker.protocol.messages.sync_group import SyncGroupRequestAssignment
from support.groups import subscription
from support.headrace_broker import HeadraceBroker
from support.wire import RawConnection

TOPIC = "t"


class Client:
    """Asks one version of an API, with the fields that it has."""

    def __init__(self, address: str) -> None:
        self.connection = RawConnection(address)

    def ask(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        messages = API_TABLE[api_key]
        head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\x00\x01c"
        if request_header_version(api_key, version) == 2:
            head += b"\x00"
        body = encode_bytes(messages.request(**fields), version)
        self.connection.send_frame(head + body)
        frame = self.connection.receive_frame()
        position = 4 + response_header_version(api_key, version)
        response, end = decode(messages.response, frame, version, position)
        assert end == len(frame)
        return response


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("versions")
    with HeadraceBroker(directory, {"group.initial.rebalance.delay.ms": "0"}) as broker:
        client = Client(broker.bootstrap)
        client.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
            timeout_ms=10_000,
        )
        client.ask(ApiKey.FIND_COORDINATOR, 3, key="any")
        yield client
        client.connection.close()


def versions(api_key: ApiKey) -> range:
    return range(API_TABLE[api_key].min_version, API_TABLE[api_key].max_version + 1)


def topic_id(client: Client) -> Any:
    answer = client.ask(ApiKey.METADATA, 12, topics=[MetadataRequestTopic(name=TOPIC)])
    return answer.topics[0].topic_id


def join(client: Client, group: str, version: int) -> Any:
    fields: dict[str, Any] = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=subscription(TOPIC))],
    }
    if version >= 1:
        fields["rebalance_timeout_ms"] = 30_000
    answer = client.ask(ApiKey.JOIN_GROUP, version, **fields)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = client.ask(ApiKey.JOIN_GROUP, version, **fields, member_id=answer.member_id)
    return answer


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_the_coordinator_is_found_and_other_kinds_are_refused(client, version):
    for key_type in range(3 if version >= 1 else 1):
        fields = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
        if version >= 1:
            fields["key_type"] = key_type
        answer = client.ask(ApiKey.FIND_COORDINATOR, version, **fields)
        one = answer.coordinators[0] if version >= 4 else answer
        assert (one.error_code == ErrorCode.NONE) is (key_type < 2)
        assert (one.node_id == 1) is (key_type < 2)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins_syncs_lives_and_leaves(client, version):
    group = f"join-{version}"
    member = join(client, group, version)
    assert (member.error_code, member.generation_id) == (ErrorCode.NONE, 1)
    assert [item.member_id for item in member.members] == [member.member_id]
    who = {"group_id": group, "member_id": member.member_id}
    at = {**who, "generation_id": 1}
    synced = client.ask(
        ApiKey.SYNC_GROUP,
        min(version, 5),
        **at,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"all")],
    )
    assert (synced.error_code, bytes(synced.assignment)) == (ErrorCode.NONE, b"all")
    beat = client.ask(ApiKey.HEARTBEAT, min(version, 4), **at)
    assert beat.error_code == ErrorCode.NONE
    described = client.ask(ApiKey.DESCRIBE_GROUPS, min(version, 6), groups=[group, "missing"])
    assert [item.group_state for item in described.groups] == ["Stable", "Dead"]
    leaving = min(version, 5)
    fields = (
        {"group_id": group, "members": [MemberIdentity(member_id=member.member_id)]}
        if leaving >= 3
        else who
    )
    left = client.ask(ApiKey.LEAVE_GROUP, leaving, **fields)
    assert left.error_code == ErrorCode.NONE
    listed = client.ask(ApiKey.LIST_GROUPS, min(version, 5))
    assert group in {item.group_id for item in listed.groups}
    deleted = client.ask(ApiKey.DELETE_GROUPS, min(version, 2), groups_names=[group, "missing"])
    assert [item.error_code for item in deleted.results] == [
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_an_offset_is_committed_and_fetched(client, version):
    group = f"commit-{version}"
    by_id = version >= 10
    wanted = {"topic_id": topic_id(client)} if by_id else {"name": TOPIC}
    missing = OffsetCommitRequestTopic(
        **({} if by_id else {"name": "missing"}), partitions=[OffsetCommitRequestPartition()]
    )
    topic = OffsetCommitRequestTopic(
        **wanted, partitions=[OffsetCommitRequestPartition(committed_offset=version)]
    )
    answer = client.ask(ApiKey.OFFSET_COMMIT, version, group_id=group, topics=[topic, missing])
    assert [item.partitions[0].error_code for item in answer.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    for fetch_version in versions(ApiKey.OFFSET_FETCH):
        found = fetch(client, group, fetch_version)
        assert found.partitions[0].committed_offset == version
        assert found.partitions[0].error_code == ErrorCode.NONE


def fetch(client: Client, group: str, version: int) -> Any:
    if version < 8:
        topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
        answer = client.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=topics)
        return answer.topics[0]
    wanted = {"topic_id": topic_id(client)} if version >= 10 else {"name": TOPIC}
    asked = OffsetFetchRequestTopics(**wanted, partition_indexes=[0])
    groups = [
        OffsetFetchRequestGroup(group_id=group, topics=[asked]),
        OffsetFetchRequestGroup(group_id=group, topics=None),
    ]
    answer = client.ask(ApiKey.OFFSET_FETCH, version, groups=groups)
    named, everything = answer.groups
    assert named.topics == everything.topics
    return named.topics[0]


def test_an_offset_is_deleted(client):
    topic = OffsetCommitRequestTopic(
        name=TOPIC, partitions=[OffsetCommitRequestPartition(committed_offset=1)]
    )
    client.ask(ApiKey.OFFSET_COMMIT, 9, group_id="delete", topics=[topic])
    asked = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition()])
        for name in (TOPIC, "missing")
    ]
    answer = client.ask(ApiKey.OFFSET_DELETE, 0, group_id="delete", topics=asked)
    assert [item.partitions[0].error_code for item in answer.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert fetch(client, "delete", 7).partitions[0].committed_offset == -1


def test_a_group_that_is_not_there_refuses_its_members(client):
    at = {"group_id": "none", "member_id": "m", "generation_id": 1}
    assert client.ask(ApiKey.HEARTBEAT, 4, **at).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    asked = client.ask(ApiKey.SYNC_GROUP, 5, **at, **names)
    assert asked.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    asked = client.ask(ApiKey.SYNC_GROUP, 5, **at)
    assert asked.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    left = client.ask(ApiKey.LEAVE_GROUP, 2, group_id="none", member_id="m")
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
