"""Which log directory holds a replica, and what the controller does when one fails (KIP-858)."""

import uuid
from dataclasses import replace

import pytest

from headrace_broker.metadata.alter_partition import decide_alter_partition
from headrace_broker.metadata.brokers.liveness import decide_heartbeat
from headrace_broker.metadata.brokers.registration import Registration, decide_register_broker
from headrace_broker.metadata.brokers.sessions import BrokerSessions
from headrace_broker.metadata.directories import decide_assign_replicas_to_dirs
from headrace_broker.metadata.reassignments import decide_alter_reassignments
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.protocol.types import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    NodeId,
)
from support.metadata import (
    POLICY,
    broker_record,
    creatable,
    create,
    decide_unfence,
    image_of,
    replayed,
)


def _directory(node, number):
    return uuid.UUID(int=1000 * node + number)


def _brokers(directories):
    """An image with brokers 1 … n that have these numbers of directories."""
    records = []
    for node, count in enumerate(directories, start=1):
        record = broker_record(node)
        record.log_dirs = [_directory(node, number) for number in range(1, count + 1)]
        records.append(record)
    return image_of(*records)


def _with_topic(image, *, partitions=2, min_isr="1"):
    assignments = [[1, 2]] * partitions
    return create(image, creatable("t", assignments=assignments, min_insync_replicas=min_isr))[0]


def _assign(image, node, places):
    """Assign partitions of `t` to a broker's directories; return the image and the outcomes."""
    request = AssignReplicasToDirsRequest(
        broker_id=node,
        broker_epoch=image.brokers[node].epoch,
        directories=[
            AssignReplicasToDirsRequestDirectoryData(
                id=directory,
                topics=[
                    AssignReplicasToDirsRequestTopicData(
                        topic_id=image.topics["t"].topic_id,
                        partitions=[
                            AssignReplicasToDirsRequestPartitionData(partition_index=index)
                        ],
                    )
                ],
            )
            for index, directory in places.items()
        ],
    )
    decision = decide_assign_replicas_to_dirs(image, request, POLICY)
    outcomes = [
        each.error_code
        for directory in decision.response.directories
        for topic in directory.topics
        for each in topic.partitions
    ]
    return replayed(image, list(decision.records)), outcomes


def _beat(image, node, failed):
    sessions = BrokerSessions(3000)
    sessions.begin(image, 0)
    request = BrokerHeartbeatRequest(
        broker_id=node,
        broker_epoch=image.brokers[node].epoch,
        current_metadata_offset=image.offset,
        offline_log_dirs=failed,
    )
    decision = decide_heartbeat(image, request, sessions, POLICY, 0)
    return replayed(image, list(decision.records)), list(decision.records)


def _leaders(image):
    return {index: each.leader for index, each in image.topics["t"].partitions.items()}


@pytest.fixture
def spread():
    """Partition 0 and 1 of `t` in directory 1 and 2 of broker 1, which leads both."""
    image = _with_topic(_brokers([2, 1]))
    image, _ = _assign(image, 1, {0: _directory(1, 1), 1: _directory(1, 2)})
    return image


def test_a_new_replica_is_in_its_brokers_only_directory_or_waits_for_the_brokers_choice():
    image = _with_topic(_brokers([2, 1]))
    for each in image.topics["t"].partitions.values():
        assert each.directory_of(NodeId(1)) == UNASSIGNED_DIRECTORY
        assert each.directory_of(NodeId(2)) == _directory(2, 1)


def test_a_replica_that_is_moved_to_a_broker_is_in_its_only_directory_too():
    image = _with_topic(_brokers([1, 1, 1, 2]))
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name="t",
                partitions=[ReassignablePartition(partition_index=0, replicas=[1, 3, 4])],
            )
        ]
    )
    image = replayed(image, list(decide_alter_reassignments(image, request, POLICY).records))
    partition = image.topics["t"].partitions[0]
    assert partition.directory_of(NodeId(1)) == _directory(1, 1)
    assert partition.directory_of(NodeId(3)) == _directory(3, 1)
    assert partition.directory_of(NodeId(4)) == UNASSIGNED_DIRECTORY


def test_a_failed_directory_takes_only_what_is_in_it(spread):
    assert _leaders(spread) == {0: 1, 1: 1}
    image, _ = _beat(spread, 1, [_directory(1, 2)])
    assert _leaders(image) == {0: 1, 1: 2}
    assert image.topics["t"].partitions[0].isr == (1, 2)
    assert image.topics["t"].partitions[1].isr == (2,)
    assert image.brokers[NodeId(1)].log_dirs == (_directory(1, 1),)
    assert image.brokers[NodeId(1)].is_active
    _, again = _beat(image, 1, [_directory(1, 2)])
    assert again == []


def test_a_directory_of_another_name_changes_nothing(spread):
    _, records = _beat(spread, 1, [_directory(2, 1), uuid.UUID(int=77)])
    assert records == []


def test_a_broker_whose_last_directory_failed_is_fenced(spread):
    image, _ = _beat(spread, 1, [_directory(1, 1), _directory(1, 2)])
    assert image.brokers[NodeId(1)].fenced
    assert _leaders(image) == {0: 2, 1: 2}


def test_a_replica_assigned_to_a_directory_that_failed_already_goes_at_once():
    image = _with_topic(_brokers([2, 1]))
    image, _ = _beat(image, 1, [_directory(1, 2)])
    assert _leaders(image) == {0: 1, 1: 1}
    image, outcomes = _assign(image, 1, {1: _directory(1, 2)})
    assert outcomes == [ErrorCode.NONE]
    assert _leaders(image) == {0: 1, 1: 2}
    image, _ = _assign(image, 1, {0: LOST_DIRECTORY})
    assert _leaders(image) == {0: 2, 1: 2}


def test_without_another_replica_the_partition_waits_for_its_directory(spread):
    image, _ = _beat(spread, 2, [_directory(2, 1)])
    assert image.brokers[NodeId(2)].fenced
    image, _ = _beat(image, 1, [_directory(1, 2)])
    assert _leaders(image) == {0: 1, 1: -1}
    registration = Registration(
        node_id=NodeId(1),
        incarnation_id=uuid.UUID(int=99),
        endpoints=[],
        rack=None,
        log_dirs=[_directory(1, 1)],
        previous_broker_epoch=image.brokers[NodeId(1)].epoch,
    )

    def start(image, **changes):
        again = replace(registration, **changes)
        decision = decide_register_broker(image, again, POLICY)
        image = replayed(image, list(decision.records))
        unfence = decide_unfence(image, NodeId(1), decision.response, POLICY)
        return replayed(image, list(unfence.records))

    image = start(image)
    assert _leaders(image) == {0: 1, 1: -1}
    both = [_directory(1, 1), _directory(1, 2)]
    epoch = image.brokers[NodeId(1)].epoch
    image = start(
        image,
        log_dirs=both,
        incarnation_id=uuid.UUID(int=100),
        previous_broker_epoch=BrokerEpoch(epoch),
    )
    assert _leaders(image) == {0: 1, 1: 1}


def test_a_replica_in_a_failed_directory_does_not_join_the_isr(spread):
    image, _ = _beat(spread, 1, [_directory(1, 2)])
    partition = image.topics["t"].partitions[1]
    states = [
        BrokerState(broker_id=node, broker_epoch=image.brokers[node].epoch) for node in (1, 2)
    ]
    request = AlterPartitionRequest(
        broker_id=2,
        broker_epoch=image.brokers[NodeId(2)].epoch,
        topics=[
            AlterPartitionRequestTopicData(
                topic_id=image.topics["t"].topic_id,
                partitions=[
                    AlterPartitionRequestPartitionData(
                        partition_index=1,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=partition.partition_epoch,
                        new_isr_with_epochs=states,
                    )
                ],
            )
        ],
    )
    decision = decide_alter_partition(image, request, POLICY)
    (topic,) = decision.response.topics
    assert topic.partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert not decision.records


@pytest.mark.parametrize("node", [1, 2])
def test_a_replica_with_damaged_records_is_neither_in_sync_nor_eligible(node):
    image = _with_topic(_brokers([1, 1]), partitions=1, min_isr="2")
    image, outcomes = _assign(image, node, {0: LOST_DIRECTORY})
    partition, other = image.topics["t"].partitions[0], NodeId(3 - node)
    assert outcomes == [ErrorCode.NONE]
    assert (partition.leader, partition.isr) == (other, (other,))
    # Too few are in sync, and who left would be eligible to lead; this one has lost records.
    assert partition.eligible_leader_replicas == ()
    # What its leader has heard of its progress must not count after it has cut its log.
    assert partition.leader_epoch == 1
    image, _ = _assign(image, node, {0: _directory(node, 1)})
    assert image.topics["t"].partitions[0].isr == (other,)


def test_the_last_replica_in_sync_keeps_its_place_with_damaged_records():
    image = _with_topic(_brokers([1, 1]), partitions=1)
    image, _ = _assign(image, 2, {0: LOST_DIRECTORY})
    image, outcomes = _assign(image, 1, {0: LOST_DIRECTORY})
    assert outcomes == [ErrorCode.INELIGIBLE_REPLICA]
    assert image.topics["t"].partitions[0].leader == 1
