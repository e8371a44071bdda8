"""Very many transactional ids: what each costs, that the last one is refused, and that all expire.

50,000 of them; `HEADRACE_TRANSACTIONAL_IDS=1000000` for the long form.
"""

import asyncio
import gc
import os
import sys
import tracemalloc
from itertools import pairwise
from types import SimpleNamespace

import pytest

from headrace_broker.coordinator.transactions.config import TransactionConfig
from headrace_broker.coordinator.transactions.expiry import EXPIRED_AT_ONCE_MAX, decide_expiry
from headrace_broker.coordinator.transactions.init_producer import decide_init
from headrace_broker.coordinator.transactions.shard import replay
from headrace_broker.coordinator.transactions.transaction import Identity
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.transactions.coordinator import TransactionCoordinator
from support.transactions import TIMEOUT_MS, Coordinator

IDS = int(os.environ.get("HEADRACE_TRANSACTIONAL_IDS", "50000"))
BYTES_OF_AN_ID_MAX = 600
WEEK_MS = 604_800_000


def begin(coordinator, name):
    """InitProducerId, without the log."""
    decided = coordinator.decide(
        lambda now: decide_init(coordinator.shard, name, TIMEOUT_MS, Identity(), now)
    )
    replay(coordinator.shard, decided.record)


@pytest.mark.slow
def test_an_id_costs_a_few_hundred_bytes_and_gives_them_back_when_it_expires():
    coordinator = Coordinator(config=TransactionConfig(id_expiration_ms=WEEK_MS))
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(IDS):
            begin(coordinator, f"application-{number}")
        gc.collect()
        full, _ = tracemalloc.get_traced_memory()
        assert len(coordinator.shard.transactions) == IDS
        each = (full - before) / IDS
        sys.stdout.write(f"{IDS} transactional ids, {each:.0f} bytes each\n")
        assert each < BYTES_OF_AN_ID_MAX
        coordinator.now_ms += WEEK_MS
        turns = 0
        while coordinator.shard.transactions:
            turns += 1
            records = decide_expiry(coordinator.shard, coordinator.circumstances())
            assert 0 < len(records) <= EXPIRED_AT_ONCE_MAX
            for record in records:
                replay(coordinator.shard, record)
        del records, record
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
        assert turns == -(-IDS // EXPIRED_AT_ONCE_MAX)
        # A dict keeps its table when keys go: one place for each id that there was.
        assert (left - before) / IDS < BYTES_OF_AN_ID_MAX / 2
    finally:
        tracemalloc.stop()


def test_one_more_than_allowed_is_refused_and_known_ones_are_not():
    coordinator = Coordinator()
    coordinator.init(name="known")
    for name, outcome in (("new", ErrorCode.POLICY_VIOLATION), ("known", ErrorCode.NONE)):

        def init(name=name):
            now = coordinator.circumstances(room_for_an_id=False)
            return decide_init(coordinator.shard, name, TIMEOUT_MS, Identity(), now)

        if outcome is ErrorCode.NONE:
            assert init().response.epoch == 1
        else:
            with pytest.raises(ApiError) as error:
                init()
            assert error.value.code is outcome


class Shard:
    """A shard with so many pieces of work; it notes when each is done."""

    def __init__(self, pieces, done):
        self.left, self.done = pieces, done

    def work(self):
        self.left -= 1
        self.done.append("piece")
        return self.left > 0


def test_between_two_pieces_of_expiry_everybody_else_is_served():
    async def scenario():
        done = []
        config = TransactionConfig(expiry_check_interval_ms=1)
        coordinator = TransactionCoordinator(
            config,
            SimpleNamespace(),
            image=lambda: None,
            next_producer_id=lambda: None,
            send_markers=lambda *_: None,
        )
        shards = [Shard(3, done), Shard(2, done)]
        finished = asyncio.get_running_loop().create_future()

        def another_client():
            done.append("client")
            if any(shard.left for shard in shards):
                asyncio.get_running_loop().call_soon(another_client)
            else:
                finished.set_result(None)

        asyncio.get_running_loop().call_soon(another_client)
        coordinator._go_on(Shard.work, list(shards), 3_600_000)
        await finished
        coordinator.close()
        return done

    done = asyncio.run(scenario())
    assert done.count("piece") == 5
    places = [place for place, who in enumerate(done) if who == "piece"]
    assert all("client" in done[a:b] for a, b in pairwise(places))
