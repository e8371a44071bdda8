"""Which markers are sent again, and which are left to another coordinator."""

import asyncio
from types import SimpleNamespace

import pytest

from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from headrace_broker.protocol.types import NodeId, ProducerEpoch, ProducerId
from headrace_broker.server.transactions.marker_sender import MarkerSender

LEADER = NodeId(1)
TRANSACTION = SimpleNamespace(
    transactional_id="app",
    producer_id=ProducerId(7),
    epoch=ProducerEpoch(1),
    status=TransactionStatus.PREPARE_COMMIT,
    client_version=2,
)


class Shard:
    """Wants markers until both partitions have theirs."""

    coordinator_epoch = 3

    def __init__(self):
        self.marked = set()

    def wants_markers(self, _transaction):
        return len(self.marked) < 2

    def note_marked(self, _transaction, partitions):
        self.marked.update(partitions)


def answer(*codes):
    partitions = [
        WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    topic = WritableTxnMarkerTopicResult(name="t", partitions=partitions)
    return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=[topic])])


@pytest.mark.parametrize(
    ("code", "is_sent_again"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, False),
    ],
)
def test_a_coordinator_that_was_replaced_sends_nothing_more(code, is_sent_again):
    sent = []

    async def send(node_id, request):
        sent.append((node_id, request))
        return answer(ErrorCode.NONE, code if len(sent) == 1 else ErrorCode.NONE)

    async def run():
        led = SimpleNamespace(leader=LEADER)
        sender = MarkerSender(lambda: SimpleNamespace(partition=lambda *_: led), send)
        shard = Shard()
        sender.send(shard, TRANSACTION, [("t", 0), ("t", 1)])
        # Several times the pause before a marker is sent again.
        await asyncio.sleep(0.5)
        sender.close()
        return shard

    shard = asyncio.run(run())
    assert len(sent) == (2 if is_sent_again else 1)
    assert ("t", 0) in shard.marked, "what was written is noted all the same"
