"""The balancer sees what the image says, and the controller can carry its plans out."""

from headrace_broker.balancer.observation import Measurements, observe_cluster
from headrace_broker.balancer.plans import plan_drain
from headrace_broker.metadata.reassignments import decide_alter_reassignments
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from support.metadata import POLICY, cordon_record, creatable, create, image_with_brokers, replayed


def _request(plan):
    return AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=move.topic,
                partitions=[
                    ReassignablePartition(
                        partition_index=move.partition, replicas=list(move.to_replicas)
                    )
                ],
            )
            for move in plan.moves
        ]
    )


def test_the_controller_takes_a_plan_and_the_next_plan_counts_what_is_on_its_way():
    image, _ = create(image_with_brokers(4), creatable("t", 12, 2))
    cluster = observe_cluster(image, Measurements(size_bytes={("t", 0): 100}))
    assert cluster.partitions[0].size_bytes == 100
    plan = plan_drain(cluster, 2)
    assert plan.moves
    decision = decide_alter_reassignments(image, _request(plan), POLICY)
    for response in decision.response.responses:
        assert response.partitions[0].error_code == 0
    image = replayed(image, list(decision.records))
    again = observe_cluster(image, Measurements())
    assert not any(2 in partition.replicas for partition in again.partitions)
    assert any(partition.is_reassigning for partition in again.partitions)
    assert not plan_drain(again, 2).moves


def test_cordoned_and_fenced_brokers_take_no_replicas():
    image = replayed(image_with_brokers(3), [cordon_record(1)])
    cluster = observe_cluster(image, Measurements(), capacities={2: 2.0})
    assert [broker.takes_replicas for broker in cluster.brokers] == [False, True, True]
    assert [broker.capacity for broker in cluster.brokers] == [1.0, 2.0, 1.0]
