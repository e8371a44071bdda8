"""A group of as many members as are allowed: each costs the log little, one more is refused."""

import pytest

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.heartbeat import decide_consumer_heartbeat
from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import Caller, Ticket
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.shard import GroupShard, replay
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from headrace_broker.protocol.types import PartitionIndex, TimestampMs
from support.consumer_groups import topic_view

MEMBERS = 10_000


class LargeGroup:
    """Members of the consumer protocol, without what the simulation checks after each of them."""

    def __init__(self) -> None:
        self.shard = GroupShard(partition=PartitionIndex(0))
        self._context = ConsumerContext(
            config=GroupConfig(),
            topics=TopicsView.of([topic_view("t", 10)], version=1),
            now_ms=TimestampMs(0),
        )

    def heartbeat(self, number: int) -> int:
        """Join, or say that one is there; return how many records that needs."""
        known = self.shard.consumer_groups.get("g")
        member = None if known is None else known.members.get(f"m{number}")
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=f"m{number}",
            member_epoch=0 if member is None else member.epoch,
            rebalance_timeout_ms=30_000 if member is None else -1,
            subscribed_topic_names=["t"] if member is None else None,
            topic_partitions=[] if member is None else None,
        )
        caller = Caller(ticket=Ticket(1), api_version=1, client_id="c", client_host="/127.0.0.1")
        decision = decide_consumer_heartbeat(self.shard, request, caller, self._context)
        for record in decision.records:
            replay(self.shard, record)
        return len(decision.records)


@pytest.mark.slow
@pytest.mark.long
def test_ten_thousand_members_cost_the_log_a_few_records_each():
    group = LargeGroup()
    for number in range(MEMBERS):
        # The first ones also move partitions from one to the other.
        assert group.heartbeat(number) <= 20
    assert len(group.shard.consumer_groups["g"].members) == MEMBERS
    assert sum(group.heartbeat(number) for number in range(100, 1100)) <= 1000
    with pytest.raises(ApiError) as refused:
        group.heartbeat(MEMBERS)
    assert refused.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
