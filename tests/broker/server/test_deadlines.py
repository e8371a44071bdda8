"""Whoever waits for a commit that does not come is answered: other brokers wait behind them."""

import asyncio
import functools
from types import SimpleNamespace
from uuid import UUID

import pytest

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.coordinator.transactions.config import TransactionConfig
from headrace_broker.coordinator.transactions.init_producer import decide_init
from headrace_broker.coordinator.transactions.transaction import Identity, TransactionVersion
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace_broker.server.api.write_txn_markers import write_markers
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.shares.persister import Persister
from headrace_broker.server.transactions.shard_driver import ShardDriver
from support.replication import Pair
from support.transactions import ID, TIMEOUT_MS, Coordinator
from support.waiting import until

_SHORT_MS = 100


def in_a_loop(test):
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 20))

    return run


@in_a_loop
async def test_a_marker_that_is_not_committed_holds_up_no_other(tmp_path):
    pairs = [Pair(tmp_path / str(index)) for index in (0, 1)]
    for pair in pairs:
        pair.lead(1)
    node = SimpleNamespace(
        replicas=SimpleNamespace(partition=lambda _, index: pairs[index].partitions[1]),
        clock=SystemClock(),
        config=SimpleNamespace(values={"replica.socket.timeout.ms": _SHORT_MS}),
    )
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1])
    marker = WritableTxnMarker(
        producer_id=7, producer_epoch=0, transaction_result=True, topics=[topic]
    )
    asked = asyncio.ensure_future(write_markers(node, WriteTxnMarkersRequest(markers=[marker])))
    await until(lambda: pairs[1].ends()[0] == 1)
    for _ in range(2):
        pairs[1].fetch(2, 1)
    response = await asked
    found = response.markers[0].topics[0].partitions
    assert [each.error_code for each in found] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    # It is tried again, and written then.
    for _ in range(2):
        pairs[0].fetch(2, 1)
    assert pairs[0].partitions[1].high_watermark == 1


class _StateLog:
    """A partition of `__transaction_state` that commits when it is told to."""

    coordinator_epoch = 1

    def __init__(self):
        self.acknowledge = None

    def append(self, _, acknowledge):
        self.acknowledge = acknowledge

    async def read_all(self):
        for chunk in ():
            yield chunk

    async def wait_committed(self):
        pass


class _Host:
    """What a shard needs of its coordinator."""

    version = TransactionVersion.TV_2

    def __init__(self):
        config = TransactionConfig(commit_timeout_ms=_SHORT_MS)
        self._coordinator = Coordinator(config=config)

    def circumstances(self, fresh_producer_id):
        return self._coordinator.circumstances(fresh_producer_id=fresh_producer_id)

    async def draw_producer_id(self):
        return 100


@in_a_loop
async def test_a_producer_hears_when_its_record_is_not_committed_in_time():
    state_log = _StateLog()
    driver = ShardDriver(0, state_log, _Host())
    driver.load()

    def begin():
        return driver.submit(lambda now: decide_init(driver.shard, ID, TIMEOUT_MS, Identity(), now))

    with pytest.raises(ApiError) as loading:
        await begin()
    assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await asyncio.sleep(0)
    await until(lambda: driver.status.value == "active")
    with pytest.raises(ApiError) as late:
        await begin()
    assert late.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Its outcome is unknown until then: nobody else may take the id.
    with pytest.raises(ApiError) as held:
        await begin()
    assert held.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    state_log.acknowledge(None)
    assert driver.shard.transactions[ID].producer_id == 100
    driver.close()


@in_a_loop
async def test_share_state_of_this_very_broker_is_waited_for_no_longer_than_anothers():
    topic = SimpleNamespace(partitions={0: None})
    image = SimpleNamespace(
        topics_by_id={UUID(int=7): topic}, partition=lambda *_: SimpleNamespace(leader=1)
    )

    async def never(*_):
        await asyncio.Event().wait()

    async def made(_):
        pass

    coordinator = SimpleNamespace(partition_for=lambda _: 0, summarize=never)
    persister = Persister(1, coordinator, None, lambda: image, made, _SHORT_MS)
    key = ShareKey(group_id="g", topic_id=UUID(int=7), partition=0)
    with pytest.raises(ApiError) as late:
        await persister.summarize(key)
    assert late.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
