"""Leaders spread evenly; replicas spread over racks."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.metadata.placement import Placer, leader_counts
from support.metadata import (
    broker_record,
    creatable,
    create,
    image_of,
    image_with_brokers,
    seeded_rng,
)


@given(
    brokers=st.integers(1, 9),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    factor=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_no_broker_leads_two_partitions_more_than_another(brokers, counts, factor, seed):
    factor = min(factor, brokers)
    image = image_with_brokers(brokers)
    for number, partitions in enumerate(counts):
        image, _ = create(image, creatable(f"t{number}", partitions, factor), seed=seed + number)
    leads = [leader_counts(image).get(node, 0) for node in range(1, brokers + 1)]
    assert max(leads) - min(leads) <= 1
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            assert len(set(partition.replicas)) == factor
            assert partition.leader == partition.replicas[0]


@given(racks=st.integers(1, 4), per_rack=st.integers(1, 4), seed=st.integers(0, 999))
def test_replicas_are_in_as_many_racks_as_there_are(racks, per_rack, seed):
    image = image_of(
        *(broker_record(node, rack=f"r{node % racks}") for node in range(racks * per_rack))
    )
    factor = min(3, racks * per_rack)
    for replicas in Placer(image, seeded_rng(seed)).place(12, factor):
        assert len({image.brokers[node].rack for node in replicas}) == min(racks, factor)


@given(brokers=st.integers(2, 8), seed=st.integers(0, 999))
def test_followers_spread_as_well_as_leaders(brokers, seed):
    laps = brokers - 1
    placed = Placer(image_with_brokers(brokers), seeded_rng(seed)).place(brokers * laps, 2)
    followers = Counter(replicas[1] for replicas in placed)
    assert set(followers.values()) == {laps}


def test_the_same_seed_places_the_same_way():
    image = image_with_brokers(5)
    assert Placer(image, seeded_rng(4)).place(9, 3) == Placer(image, seeded_rng(4)).place(9, 3)
