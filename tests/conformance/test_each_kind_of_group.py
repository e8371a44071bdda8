"""Each request of groups about each kind of group, with members and without, as Kafka answers it.

`HEADRACE_CONFORMANCE_PEER=kafka` asks Kafka itself. Every request has a group of its own.
"""

import struct
import uuid
from datetime import timedelta

import pytest
from kio.schema.add_offsets_to_txn.v3.request import AddOffsetsToTxnRequest
from kio.schema.alter_share_group_offsets.v0 import request as alter_share
from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_share_group_offsets.v0 import request as delete_share
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.join_group.v9 import request as join_group
from kio.schema.leave_group.v5 import request as leave_group
from kio.schema.offset_commit.v8 import request as old_offset_commit
from kio.schema.offset_commit.v9 import request as offset_commit
from kio.schema.offset_delete.v0 import request as offset_delete
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from kio.schema.sync_group.v5 import request as sync_group
from kio.schema.txn_offset_commit.v3 import request as txn_commit

from support.processes import wait_until
from support.wire import RawConnection

SECONDS = 60
WAIT = timedelta(seconds=30)
GROUPS, TRANSACTIONS = 0, 1
_NOT_YET = {
    "coordinator_not_available",
    "coordinator_load_in_progress",
    "not_coordinator",
    "concurrent_transactions",
}


class Groups:
    """Makes groups, and asks; each answer is an error's name."""

    def __init__(self, connection: RawConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._transactional_id = f"t-{uuid.uuid4().hex[:8]}"

    def call(self, request):
        return self._connection.call(request)

    def patiently(self, ask):
        """Ask until the coordinator is there; return the error's name."""
        found: list[str] = []

        def is_answered():
            found.append(ask())
            return found[-1] not in _NOT_YET

        wait_until(is_answered, SECONDS)
        return found[-1]

    def new(self, kind):
        """Make a group; return its name."""
        group = f"group-{uuid.uuid4().hex[:10]}"
        self.call(FindCoordinatorRequest(key_type=GROUPS, coordinator_keys=(group,)))
        if kind == "missing":
            # The coordinator answers what it is asked, once it is there.
            self.patiently(lambda: self.heartbeat(group))
            return group
        family, _, is_joined = kind.partition(" ")
        begin = {
            "classic": self.join if is_joined else self.commit,
            "consumer": self.consumer_heartbeat,
            "share": self.share_heartbeat,
        }[family]
        assert self.patiently(lambda: begin(group)) == "none"
        if family != "classic" and not is_joined:
            leave = {"consumer": self.consumer_heartbeat, "share": self.share_heartbeat}[family]
            assert leave(group, -1) == "none"
        return group

    # ---- the classic protocol

    def join(self, group):
        topic = self._topic.encode()
        metadata = struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic, -1)
        member_id = ""
        while True:
            request = join_group.JoinGroupRequest(
                group_id=group,
                session_timeout=WAIT,
                rebalance_timeout=WAIT,
                member_id=member_id,
                protocol_type="consumer",
                protocols=(join_group.JoinGroupRequestProtocol(name="range", metadata=metadata),),
            )
            answer = self.call(request)
            if answer.error_code.name != "member_id_required":
                return answer.error_code.name
            member_id = answer.member_id

    def sync(self, group):
        request = sync_group.SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id="nobody",
            protocol_type="consumer",
            protocol_name="range",
            assignments=(),
        )
        return self.call(request).error_code.name

    def sync_without_a_protocol(self, group):
        request = sync_group.SyncGroupRequest(
            group_id=group, generation_id=1, member_id="nobody", assignments=()
        )
        return self.call(request).error_code.name

    def heartbeat(self, group):
        request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
        return self.call(request).error_code.name

    def leave(self, group):
        member = leave_group.MemberIdentity(member_id="nobody")
        answer = self.call(leave_group.LeaveGroupRequest(group_id=group, members=(member,)))
        return "/".join(
            [answer.error_code.name, *(each.error_code.name for each in answer.members)]
        )

    def describe(self, group):
        request = DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)
        (found,) = self.call(request).groups
        return f"{found.error_code.name}/{found.group_state}"

    # ---- the others' protocols

    def consumer_heartbeat(self, group, epoch=0):
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAQ",
            member_epoch=epoch,
            rebalance_timeout=WAIT,
            subscribed_topic_names=(self._topic,),
            topic_partitions=() if epoch == 0 else None,
        )
        return self.call(request).error_code.name

    def share_heartbeat(self, group, epoch=0):
        request = ShareGroupHeartbeatRequest(
            group_id=group,
            member_id="AAAAAAAAAAAAAAAAAAAAAQ",
            member_epoch=epoch,
            subscribed_topic_names=(self._topic,),
        )
        return self.call(request).error_code.name

    def consumer_describe(self, group):
        request = ConsumerGroupDescribeRequest(
            group_ids=(group,), include_authorized_operations=False
        )
        (found,) = self.call(request).groups
        return found.error_code.name

    def share_describe(self, group):
        request = ShareGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)
        (found,) = self.call(request).groups
        return found.error_code.name

    # ---- positions

    def commit(self, group):
        partition = offset_commit.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=None
        )
        item = offset_commit.OffsetCommitRequestTopic(name=self._topic, partitions=(partition,))
        request = offset_commit.OffsetCommitRequest(group_id=group, member_id="", topics=(item,))
        (answer,) = self.call(request).topics
        return answer.partitions[0].error_code.name

    def commit_as_a_member(self, group, messages=offset_commit):
        partition = messages.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=None
        )
        item = messages.OffsetCommitRequestTopic(name=self._topic, partitions=(partition,))
        request = messages.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=1,
            member_id="nobody",
            topics=(item,),
        )
        (answer,) = self.call(request).topics
        return answer.partitions[0].error_code.name

    def commit_as_an_old_member(self, group):
        return self.commit_as_a_member(group, old_offset_commit)

    def commit_in_transaction(self, group):
        name = self._transactional_id
        self.call(FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=(name,)))
        begun = []

        def begin():
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout=WAIT)
            begun.append(self.call(request))
            return begun[-1].error_code.name

        assert self.patiently(begin) == "none"
        whose = {
            "transactional_id": name,
            "producer_id": begun[-1].producer_id,
            "producer_epoch": begun[-1].producer_epoch,
            "group_id": group,
        }
        added = self.patiently(lambda: self.call(AddOffsetsToTxnRequest(**whose)).error_code.name)
        assert added == "none"
        partition = txn_commit.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=None
        )
        item = txn_commit.TxnOffsetCommitRequestTopic(name=self._topic, partitions=(partition,))
        request = txn_commit.TxnOffsetCommitRequest(**whose, topics=(item,))
        (answer,) = self.call(request).topics
        return answer.partitions[0].error_code.name

    def delete_offset(self, group):
        part = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
        item = offset_delete.OffsetDeleteRequestTopic(name=self._topic, partitions=(part,))
        answer = self.call(offset_delete.OffsetDeleteRequest(group_id=group, topics=(item,)))
        codes = [part.error_code.name for each in answer.topics for part in each.partitions]
        return "/".join([answer.error_code.name, *codes])

    def alter_share_offsets(self, group):
        partition = alter_share.AlterShareGroupOffsetsRequestPartition(
            partition_index=0, start_offset=0
        )
        item = alter_share.AlterShareGroupOffsetsRequestTopic(
            topic_name=self._topic, partitions=(partition,)
        )
        request = alter_share.AlterShareGroupOffsetsRequest(group_id=group, topics=(item,))
        return self.call(request).error_code.name

    def delete_share_offsets(self, group):
        item = delete_share.DeleteShareGroupOffsetsRequestTopic(topic_name=self._topic)
        request = delete_share.DeleteShareGroupOffsetsRequest(group_id=group, topics=(item,))
        return self.call(request).error_code.name

    def delete(self, group):
        (answer,) = self.call(DeleteGroupsRequest(groups_names=(group,))).results
        return answer.error_code.name


#: What Apache Kafka 4.2.1 answers: by request, for each of KINDS.
KINDS = (
    "missing",
    "classic",
    "classic member",
    "consumer",
    "consumer member",
    "share",
    "share member",
)
ANSWERS: dict[str, tuple[str, ...]] = {
    "join": (
        "none",
        "none",
        "none",
        "none",
        "none",
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
    ),
    "sync": (
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
    ),
    "sync_without_a_protocol": (
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
        "inconsistent_group_protocol",
    ),
    "heartbeat": (
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
    ),
    "leave": (
        "none/unknown_member_id",
        "none/unknown_member_id",
        "none/unknown_member_id",
        "none/unknown_member_id",
        "none/unknown_member_id",
        "none/unknown_member_id",
        "none/unknown_member_id",
    ),
    "describe": (
        "group_id_not_found/Dead",
        "none/Empty",
        "none/CompletingRebalance",
        "group_id_not_found/Dead",
        "group_id_not_found/Dead",
        "group_id_not_found/Dead",
        "group_id_not_found/Dead",
    ),
    "consumer_heartbeat": (
        "none",
        "none",
        "none",
        "none",
        "none",
        "group_id_not_found",
        "group_id_not_found",
    ),
    "share_heartbeat": (
        "none",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "none",
        "none",
    ),
    "consumer_describe": (
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "none",
        "none",
        "group_id_not_found",
        "group_id_not_found",
    ),
    "share_describe": (
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "none",
        "none",
    ),
    "commit": (
        "none",
        "none",
        "unknown_member_id",
        "none",
        "unknown_member_id",
        "group_id_not_found",
        "group_id_not_found",
    ),
    "commit_as_an_old_member": (
        "illegal_generation",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "unknown_member_id",
        "group_id_not_found",
        "group_id_not_found",
    ),
    "commit_in_transaction": (
        "none",
        "none",
        "none",
        "none",
        "none",
        "group_id_not_found",
        "group_id_not_found",
    ),
    "delete_offset": (
        "group_id_not_found",
        "none/none",
        "none/group_subscribed_to_topic",
        "none/none",
        "none/group_subscribed_to_topic",
        "group_id_not_found",
        "group_id_not_found",
    ),
    "alter_share_offsets": (
        "none",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "none",
        "non_empty_group",
    ),
    "delete_share_offsets": (
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "group_id_not_found",
        "none",
        "non_empty_group",
    ),
    "delete": (
        "group_id_not_found",
        "none",
        "non_empty_group",
        "none",
        "non_empty_group",
        "none",
        "non_empty_group",
    ),
}


@pytest.fixture
def groups(bootstrap, new_topic):
    with RawConnection(bootstrap, SECONDS) as connection:
        yield Groups(connection, new_topic())


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_about_a_group_of_this_kind_is_answered_as_kafka_answers_it(groups, kind):
    found = {name: getattr(groups, name)(groups.new(kind)) for name in ANSWERS}
    place = KINDS.index(kind)
    assert found == {name: answers[place] for name, answers in ANSWERS.items()}
