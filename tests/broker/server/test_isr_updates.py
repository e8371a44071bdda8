"""The look for laggards: were it to end unnoticed, a dead follower would hold writes up."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from headrace_broker.protocol.types import BrokerEpoch, LeaderEpoch, NodeId, Offset
from headrace_broker.replication.leader import IsrUpdate, LeaderState
from headrace_broker.server.partitions import isr_updates
from headrace_broker.server.partitions.isr_updates import IsrUpdates
from headrace_broker.server.partitions.replica_host import ReplicaHost
from headrace_broker.server.peers.peer_connection import PeerUnavailable


class _BrokenReplicas:
    """A broker's replicas, with a bug that shows as they are looked at."""

    def __init__(self, lag_time_max_ms: int) -> None:
        self.host = ReplicaHost(1, lag_time_max_ms=lag_time_max_ms)
        self.failures: asyncio.Queue[BaseException] = asyncio.Queue()
        self.host.on_failure = self.failures.put_nowait

    def __iter__(self):
        raise KeyError("a follower that nobody knows")


def test_a_look_that_fails_is_reported_as_a_failure_of_the_broker():
    async def scenario():
        replicas = _BrokenReplicas(lag_time_max_ms=2)
        updates = IsrUpdates(replicas, peers=None)
        updates.start()
        failure = await asyncio.wait_for(replicas.failures.get(), 5)
        await updates.close()
        return failure

    assert isinstance(asyncio.run(scenario()), KeyError)


def test_closing_is_no_failure():
    async def scenario():
        replicas = _BrokenReplicas(lag_time_max_ms=60_000)
        updates = IsrUpdates(replicas, peers=None)
        updates.start()
        await asyncio.sleep(0)
        await updates.close()
        await asyncio.sleep(0)
        return replicas.failures.empty()

    assert asyncio.run(scenario())


class _Led:
    """A partition whose leader has an in-sync set to ask for."""

    topic, topic_id, index = "t", UUID(int=7), 0

    def __init__(self, update: IsrUpdate) -> None:
        self.leading = SimpleNamespace(pending=update)
        self.committed: list[tuple] = []

    def isr_committed(self, *said) -> None:
        self.committed.append(said)


@pytest.mark.parametrize(
    "refusal",
    [PeerUnavailable("no controller"), AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)],
)
def test_an_in_sync_set_is_asked_for_again_after_a_pause_until_it_is_committed(
    refusal, monkeypatch
):
    partition = _Led(IsrUpdate(leader_epoch=3, partition_epoch=7, members=((1, 1), (2, 2))))
    pauses = []
    answered = AlterPartitionResponsePartitionData(
        partition_index=0, leader_epoch=3, isr=[1, 2], partition_epoch=8
    )
    topic = AlterPartitionResponseTopicData(topic_id=partition.topic_id, partitions=[answered])

    peers = AsyncMock()
    peers.to_controller.side_effect = [refusal, AlterPartitionResponse(topics=[topic])]

    async def sleep(seconds):
        pauses.append(seconds)

    async def scenario():
        updates = IsrUpdates(_BrokenReplicas(lag_time_max_ms=60_000), peers)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        updates.request(partition)
        await updates._sender

    asyncio.run(scenario())
    assert partition.committed == [(3, (1, 2), 8)]
    assert pauses == [isr_updates._RETRY_SECONDS]


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        (ErrorCode.INVALID_UPDATE_VERSION, True),
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.NEW_LEADER_ELECTED, True),
        (ErrorCode.INELIGIBLE_REPLICA, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False),
    ],
)
def test_an_in_sync_set_that_may_have_been_applied_counts_until_newer_metadata_comes(code, counts):
    """An earlier request, whose answer was lost, may be what moved the partition epoch on.

    Else the leader would commit without a replica that the controller has in its in-sync set.
    """
    leading = LeaderState(NodeId(1), LeaderEpoch(3), Offset(0))
    leading.configure([NodeId(1), NodeId(2)], 1, 0)
    leading.commit_isr((NodeId(1),), 7)
    update = leading.propose([NodeId(2)], BrokerEpoch(1))
    partition = _Led(update)
    partition.leading = leading
    partition.advance_high_watermark = lambda: None
    answered = AlterPartitionResponsePartitionData(partition_index=0, error_code=code)
    topic = AlterPartitionResponseTopicData(topic_id=partition.topic_id, partitions=[answered])
    peers = AsyncMock()
    peers.to_controller.return_value = AlterPartitionResponse(topics=[topic])

    async def scenario():
        updates = IsrUpdates(_BrokenReplicas(lag_time_max_ms=60_000), peers)
        updates.request(partition)
        await asyncio.wait_for(updates._sender, 5)

    asyncio.run(scenario())
    assert (leading.pending is update) is counts
    assert (2 in leading.maximal_isr) is counts
