"""Which brokers lack replicas in the in-sync sets that they belong to."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from headrace_broker.metadata.behind import replicas_behind, why_behind
from headrace_broker.metadata.entities import NO_LEADER, PartitionImage, TopicImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.types import LeaderEpoch, NodeId, PartitionIndex, TopicId
from support.metadata import broker_record, image_of

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
TOPIC_ID = TopicId(UUID(int=7))


def partition(*isr: NodeId, **rest: object) -> PartitionImage:
    whole = PartitionImage(
        leader=isr[0] if isr else NO_LEADER,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=1,
        replicas=(ONE, TWO, THREE),
        isr=isr,
    )
    return replace(whole, **rest)  # type: ignore[arg-type]  # fields by their names


def image(partitions: Mapping[int, PartitionImage]) -> MetadataImage:
    by_index = {PartitionIndex(index): each for index, each in partitions.items()}
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=by_index)
    return replace(image_of(*map(broker_record, (1, 2, 3))), topics={"t": topic})


def test_a_broker_is_behind_where_a_leader_waits_for_its_replica() -> None:
    seen = image({0: partition(ONE, TWO, THREE), 1: partition(ONE, TWO)})
    assert replicas_behind(seen) == {THREE: [("t", 1)]}
    assert why_behind(seen, THREE) == "replicas that are not in sync yet: t-1"
    assert why_behind(seen, ONE) == ""


def test_many_replicas_are_counted_and_the_first_of_them_named() -> None:
    seen = image({index: partition(ONE, TWO) for index in range(9)})
    assert why_behind(seen, THREE).endswith("t-0, t-1, t-2, and 6 more")


def test_replicas_on_the_way_and_those_without_a_leader_wait_for_nobody() -> None:
    coming = partition(ONE, TWO, adding_replicas=(THREE,))
    going = partition(ONE, TWO, removing_replicas=(THREE,))
    assert not replicas_behind(image({0: coming, 1: going, 2: partition()}))


def test_one_broker_is_there_for_clients_where_everybody_is_behind() -> None:
    seen = image({0: partition(TWO), 1: partition(ONE, TWO), 2: partition(ONE, THREE)})
    assert set(replicas_behind(seen)) == {ONE, TWO, THREE}
    # Not all of them: an eviction would then take the second replica in sync of a partition.
    assert [bool(why_behind(seen, node)) for node in (ONE, TWO, THREE)] == [False, True, True]
    least = image({0: partition(THREE), 1: partition(TWO, THREE), 2: partition(ONE)})
    assert [bool(why_behind(least, node)) for node in (ONE, TWO, THREE)] == [True, True, False]
    # A broker that is gone is nobody who could be there.
    two = replace(image({0: partition(ONE)}), brokers=image_of(broker_record(2)).brokers)
    assert why_behind(two, TWO) == ""
    nobody = replace(two, brokers={})
    assert why_behind(nobody, TWO) == ""
