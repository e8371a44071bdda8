"""The rare situations of share groups, counted: see `marks`."""

from typing import Any

from headrace_broker.coordinator.share_state import shard as share_state
from headrace_broker.coordinator.share_state.records import SnapshotRecord
from headrace_broker.protocol.errors import ApiError
from headrace_broker.server.shares import state_shard
from headrace_broker.server.shares.state_log import PartitionShareStateLog
from headrace_broker.server.shares.state_shard import StateShardDriver
from simulation.history import History
from simulation.observing import observer
from simulation.share_faults import (
    ABOUT_TO_BE_APPENDED,
    COMMITTED,
    GIVEN_TWICE,
    LOADED_UNCOMMITTED,
    PRUNED,
)

_AIMED = (
    "acquired",
    "state is about to be appended",
    "state is committed",
)

# How many of 1,000 seeds of the mix must reach each; a quarter of them has share groups.
SHARE_MARKS: dict[str, int] = {
    **{f"a fault strikes when {moment}": 20 for moment in _AIMED},
    # In the seeds from 7000 on.
    **{
        f"a fault strikes when {moment}": 10 for moment in (ABOUT_TO_BE_APPENDED, COMMITTED, PRUNED)
    },
    f"a fault strikes when {LOADED_UNCOMMITTED}": 3,
    "a record becomes a dead letter": 100,
    "a dead letter is written twice": 5,
    "a new leader has dead letters to write": 20,
    "an acknowledgement arrives after the lock ran out": 15,
    "a renewed lock outlives its first end": 15,
    "a lock runs out": 60,
    "a lock runs out while its acknowledgement is written": 10,
    "a record is redelivered by another leader or life of one": 80,
    "a record is delivered for the last time": 30,
    "a member is gone with records in flight": 40,
    GIVEN_TWICE: 3,
    "a share partition's write fails": 3,
    "the state's leader moves while a write is pending": 10,
    "share state is loaded again after an append failed": 10,
    "a former leader of a share partition is fenced": 50,
    "a snapshot of share state follows updates": 60,
    "share state is pruned": 50,
    "share partitions are moved": 50,
    "share state refuses a zombie: stale-state-epoch": 50,
    "share state refuses a zombie: former-leader-writes": 50,
    "a write of share state would undo what is done with": 20,
}

# What 12 seeds of share groups reach for sure.
FREQUENT = (
    "a renewed lock outlives its first end",
    "a lock runs out",
    "a record is redelivered by another leader or life of one",
    "a member is gone with records in flight",
    "a snapshot of share state follows updates",
)


@observer(StateShardDriver, "close")
def _close(history: History, original: Any, driver: StateShardDriver) -> None:
    if driver._unwritten:
        history.reach("the state's leader moves while a write is pending")
    original(driver)


@observer(PartitionShareStateLog, "wait_committed")
async def _wait_committed(history: History, original: Any, log: PartitionShareStateLog) -> None:
    if not log.is_committed:
        history.shares.moment(LOADED_UNCOMMITTED)
    await original(log)


@observer(StateShardDriver, "_start_over")
def _start_over(history: History, original: Any, driver: StateShardDriver) -> None:
    if not driver._is_closed:
        history.reach("share state is loaded again after an append failed")
    original(driver)


@observer(share_state, "_check_leader")
def _check_leader(history: History, original: Any, state: Any, leader_epoch: int) -> None:
    try:
        original(state, leader_epoch)
    except ApiError:
        history.reach("a former leader of a share partition is fenced")
        raise


@observer(share_state, "_forward")
def _forward(history: History, original: Any, state: Any, change: Any) -> Any:
    kept = original(state, change)
    if kept is not change:
        history.reach("a write of share state would undo what is done with")
    return kept


@observer(state_shard, "replay")
def _replay(history: History, original: Any, shard: Any, record: Any, *place: Any) -> None:
    if isinstance(record, SnapshotRecord) and shard.update_counts.get(record.key):
        history.reach("a snapshot of share state follows updates")
    original(shard, record, *place)


@observer(PartitionShareStateLog, "append")
async def _append(
    history: History, original: Any, state_log: PartitionShareStateLog, batch: bytes
) -> int:
    history.shares.moment("state is about to be appended")
    first: int = await original(state_log, batch)
    history.shares.moment("state is committed")
    return first


@observer(PartitionShareStateLog, "delete_below")
def _delete_below(
    history: History, original: Any, state_log: PartitionShareStateLog, offset: int
) -> None:
    partition = state_log._partition
    before = partition.log.log_start_offset
    history.may_trim((partition.topic, partition.index), offset)
    original(state_log, offset)
    if partition.log.log_start_offset > before:
        history.reach("share state is pruned")
        history.shares.moment(PRUNED)
