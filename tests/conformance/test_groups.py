"""Consumer groups: each partition has exactly one owner, members come and go, all is read once."""

import time
from collections import Counter

import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from support.members import PARTITIONS, fill, is_shared_out, start_member
from support.processes import wait_until

_SECONDS = 40


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_a_topic_and_read_each_record_once(bootstrap, new_topic, join, strategy):
    topic = new_topic(partitions=PARTITIONS)
    settings = {"partition.assignment.strategy": strategy}
    first = join(topic, **settings)
    wait_until(lambda: is_shared_out(first), _SECONDS, "the first member's assignment")
    second = join(topic, **settings)
    wait_until(lambda: is_shared_out(first, second), _SECONDS, "two members' assignment")
    third = join(topic, **settings)
    members = (first, second, third)
    wait_until(lambda: is_shared_out(*members), _SECONDS, "three members' assignment")

    fill(bootstrap, topic, 600)
    wait_until(
        lambda: sum(sum(member.read.values()) for member in members) >= 600, _SECONDS, "records"
    )
    read = first.read + second.read + third.read
    assert read == Counter({(p, o): 1 for p in range(PARTITIONS) for o in range(100)})

    third.stop()
    wait_until(lambda: is_shared_out(first, second), _SECONDS, "the assignment after a leave")


def test_a_member_beyond_the_partitions_stands_by(new_topic, join):
    topic = new_topic(partitions=1)
    first = join(topic)
    wait_until(lambda: first.owned == {0}, _SECONDS)
    second = join(topic)
    wait_until(lambda: second.rebalances > 0, _SECONDS, "the second member's assignment")
    wait_until(lambda: len(first.owned) + len(second.owned) == 1, _SECONDS)
    owner, standby = (first, second) if first.owned else (second, first)
    owner.stop()
    wait_until(lambda: standby.owned == {0}, _SECONDS, "the standby's turn")


def test_a_static_member_returns_without_a_rebalance(new_topic, join):
    topic = new_topic(partitions=PARTITIONS)
    first = join(topic, **{"group.instance.id": "one"})
    second = join(topic, **{"group.instance.id": "two"})
    wait_until(lambda: is_shared_out(first, second), _SECONDS, "the assignment")
    kept, rebalances = set(second.owned), first.rebalances
    second.stop()  # a static member's close does not leave the group (KIP-345)
    returned = join(topic, **{"group.instance.id": "two"})
    wait_until(lambda: returned.owned == kept, _SECONDS, "the returned member's partitions")
    assert first.rebalances == rebalances


def test_a_member_that_was_killed_keeps_its_partitions_until_its_session_ends(
    bootstrap, new_topic, join, tmp_path
):
    """SIGKILL: no LeaveGroup, nothing. Its connection breaks, which alone says nothing."""
    topic = new_topic(partitions=PARTITIONS)
    survivor = join(topic)
    wait_until(lambda: is_shared_out(survivor), _SECONDS, "the first assignment")
    session_ms = 6000
    log = tmp_path / "member.log"
    killed = start_member(log, bootstrap, join.group, topic, session_ms=session_ms)
    wait_until(lambda: f"assigned {PARTITIONS // 2}" in log.read_text(), _SECONDS, "its share")
    wait_until(lambda: len(survivor.owned) == PARTITIONS // 2, _SECONDS, "the survivor's share")
    began = time.monotonic()
    killed.kill()
    # Its last heartbeat was half a second ago at the most, and the session counts from there.
    while time.monotonic() - began < session_ms / 1000 - 1:
        assert len(survivor.owned) == PARTITIONS // 2
        time.sleep(0.05)
    wait_until(lambda: is_shared_out(survivor), _SECONDS, "the dead member's partitions")
    # The session, and then the rebalance, which the survivor learns of by a heartbeat.
    assert time.monotonic() - began < session_ms / 1000 + 6


def test_a_killed_static_member_that_returns_within_its_session_moves_nobody(
    bootstrap, new_topic, join, tmp_path
):
    """SIGKILL, and a new process of the same instance id: it gets what it had (KIP-345)."""
    topic = new_topic(partitions=PARTITIONS)
    survivor = join(topic, **{"group.instance.id": "one", "session.timeout.ms": 45_000})

    def start(number):
        log = tmp_path / f"member{number}.log"
        member = start_member(
            log, bootstrap, join.group, topic, session_ms=45_000, instance_id="two"
        )
        wait_until(lambda: f"assigned {PARTITIONS // 2}" in log.read_text(), _SECONDS, "its share")
        return member

    killed = start(1)
    wait_until(lambda: len(survivor.owned) == PARTITIONS // 2, _SECONDS, "the survivor's share")
    kept, rebalances = set(survivor.owned), survivor.rebalances
    killed.kill()
    returned = start(2)
    try:
        fill(bootstrap, topic, 60)
        wait_until(lambda: len(survivor.read) >= 30, _SECONDS, "the survivor's records")
        assert survivor.owned == kept
        assert survivor.rebalances == rebalances
    finally:
        returned.kill()


def test_a_groups_members_and_state_are_described(admin, bootstrap, new_topic, join):
    topic = new_topic(partitions=PARTITIONS)
    first, second = join(topic), join(topic)
    wait_until(lambda: is_shared_out(first, second), _SECONDS, "the assignment")

    described = admin.describe_consumer_groups([join.group])[join.group].result(_SECONDS)
    assert described.state.name == "STABLE"
    assert described.partition_assignor == "range"
    owned = [
        partition.partition
        for member in described.members
        for partition in member.assignment.topic_partitions
    ]
    assert sorted(owned) == list(range(PARTITIONS))
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    found = client.describe_groups([join.group])[join.group]
    client.close()
    assert len(found["members"]) == 2
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([join.group])[join.group].result(_SECONDS)


def test_a_restarted_group_goes_on_after_its_commits(bootstrap, new_topic, new_group):
    topic, group = new_topic(partitions=PARTITIONS), new_group()
    fill(bootstrap, topic, 600)
    seen: Counter[tuple[int, int]] = Counter()
    for wanted in (150, 150, 300):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        deadline = time.monotonic() + _SECONDS
        taken = 0
        while taken < wanted and time.monotonic() < deadline:
            for message in consumer.consume(min(50, wanted - taken), timeout=1):
                assert message.error() is None
                seen[message.partition(), message.offset()] += 1
                next_one = TopicPartition(topic, message.partition(), message.offset() + 1)
                consumer.commit(offsets=[next_one], asynchronous=False)
                taken += 1
        consumer.close()
        assert taken == wanted
    assert seen == Counter({(p, o): 1 for p in range(PARTITIONS) for o in range(100)})
