"""What share partitions do, put down in the second book (`invariants.shares`) and judged by it."""

import asyncio
from collections.abc import Iterable
from typing import Any

from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.shares.persister import Persister
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver
from simulation.history import History
from simulation.invariants.shares import Book, Hold, book_of, each
from simulation.observing import observer
from simulation.workloads.share import GROUP

_ENDS = frozenset({AcknowledgeType.ACCEPT, AcknowledgeType.REJECT})

# ---- a share partition in memory


@observer(SharePartition, "__init__")
def _begin(
    history: History, original: Any, state: SharePartition, start: int, batches: Any = ()
) -> None:
    original(state, start, batches)
    book = book_of(history, state)
    if book is not None:
        book.counts.update({offset: count for offset, _, count in each(batches)})


@observer(SharePartition, "acquire")
def _acquire(history: History, original: Any, state: SharePartition, *arguments: Any) -> Any:
    acquired = original(state, *arguments)
    book = book_of(history, state)
    if book is not None:
        request, _, _, limits, now_ms = arguments
        for item in acquired:
            for offset in range(item.first, item.last + 1):
                _judge(history, book, offset, request.member_id, now_ms)
                _count(history, book, offset, item.count, limits.deliveries_max)
                deadline_ms = now_ms + limits.lock_ms
                book.holds[offset] = Hold(
                    member_id=request.member_id,
                    deadline_ms=deadline_ms,
                    first_deadline_ms=deadline_ms,
                )
    return acquired


def _judge(history: History, book: Book, offset: int, member_id: str, now_ms: int) -> None:
    """A record is one member's at a time."""
    hold = book.holds.get(offset)
    if hold is None:
        return
    if hold.said is None and now_ms < hold.deadline_ms:
        history.violate(
            "acquired-twice",
            f"{offset} is {hold.member_id}'s until {hold.deadline_ms}, and goes to {member_id} at "
            f"{now_ms}",
        )
    if hold.said in _ENDS:
        history.violate("acquired-twice", f"{offset} was {hold.said.name} before")


def _count(history: History, book: Book, offset: int, count: int, deliveries_max: int) -> None:
    """Each delivery counts one, up to the limit."""
    before = book.counts.get(offset, 0)
    if count != before + 1:
        history.violate("delivery-count", f"{offset} had {before} deliveries, now {count}")
    if count > deliveries_max:
        history.violate("delivered-too-often", f"{offset}: {count} times")
    book.counts[offset] = count


@observer(SharePartition, "acknowledge")
def _acknowledge(
    history: History,
    original: Any,
    state: SharePartition,
    member_id: str,
    acknowledgements: Iterable[Any],
    *circumstances: Any,
) -> bool:
    taken = list(acknowledgements)
    book = book_of(history, state)
    if book is None:
        return bool(original(state, member_id, taken, *circumstances))
    limits, now_ms = circumstances
    said = [
        (offset, AcknowledgeType(item.types[0 if len(item.types) == 1 else offset - item.first]))
        for item in taken
        for offset in range(max(item.first, state.start_offset), item.last + 1)
    ]
    try:
        decides = bool(original(state, member_id, taken, *circumstances))
    except ApiError as error:
        if any(book.lapsed.get(offset) == member_id for offset, _ in said):
            history.reach("an acknowledgement arrives after the lock ran out")
        if error.code is ErrorCode.INVALID_REQUEST and any(
            offset not in book.counts for offset, _ in said
        ):
            history.shares.strangers.add(member_id)
        raise
    for offset, kind in said:
        hold = book.holds.get(offset)
        if hold is None or hold.member_id != member_id or hold.said is not None:
            history.violate("acknowledged-by-another", f"{offset} by {member_id}: {hold}")
        elif kind is AcknowledgeType.RENEW:
            hold.deadline_ms = now_ms + limits.lock_ms
        else:
            if hold.first_deadline_ms < now_ms and hold.first_deadline_ms < hold.deadline_ms:
                history.reach("a renewed lock outlives its first end")
            hold.said = kind
    return decides


@observer(SharePartition, "release")
def _release(
    history: History, original: Any, state: SharePartition, member_id: str, limits: Any
) -> bool:
    released = bool(original(state, member_id, limits))
    book = book_of(history, state)
    if book is not None:
        for offset, hold in list(book.holds.items()):
            if hold.member_id == member_id and hold.said is None and _is_free(state, offset):
                del book.holds[offset]
        if released:
            history.reach("a member is gone with records in flight")
    return released


def _is_free(state: SharePartition, offset: int) -> bool:
    runs = list(state.runs.overlapping(offset, offset))
    return not runs or runs[0].state is not RecordState.ACQUIRED


@observer(SharePartition, "expire")
def _expire(
    history: History, original: Any, state: SharePartition, limits: Any, now_ms: int
) -> bool:
    expired = bool(original(state, limits, now_ms))
    book = book_of(history, state)
    if expired and book is not None:
        history.reach("a lock runs out")
        for offset in [at for at, hold in book.holds.items() if _has_run_out(hold, now_ms)]:
            book.lapsed[offset] = book.holds.pop(offset).member_id
    return expired


def _has_run_out(hold: Hold, now_ms: int) -> bool:
    return hold.said is None and hold.deadline_ms <= now_ms


@observer(SharePartition, "take_write")
def _take_write(history: History, original: Any, state: SharePartition) -> Any:
    write = original(state)
    book = book_of(history, state)
    if book is not None:
        for offset, _, count in each(write.batches):
            hold = book.holds.get(offset)
            under_way = hold is not None and hold.said is None
            expected = book.counts.get(offset, 0) - under_way
            if count != expected:
                history.violate(
                    "delivery-count", f"{offset} had {expected} deliveries, {count} is written"
                )
    return write


@observer(SharePartition, "committed")
def _committed(history: History, original: Any, state: SharePartition, write: Any) -> None:
    if book_of(history, state) is not None:
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if any(run.outcome and run.deadline_ms <= now_ms for run in state.runs.items):
            history.reach("a lock runs out while its acknowledgement is written")
    original(state, write)


@observer(SharePartition, "failed")
def _failed(history: History, original: Any, state: SharePartition, write: Any) -> None:
    book = book_of(history, state)
    if book is not None:
        history.reach("a share partition's write fails")
        for first, last in state._writing:
            for offset in range(first, last + 1):
                if offset in book.holds:
                    book.holds[offset].said = None
    original(state, write)
    for first, last in write.behind:
        if not all(run.is_dirty for run in state.runs.overlapping(first, last)):
            history.violate("share-change-lost", f"{first} to {last} is not to be written again")


# ---- its leader


@observer(SharePartitionDriver, "fetch")
def _fetch(
    history: History, original: Any, driver: SharePartitionDriver, request: Any, max_bytes: int
) -> Any:
    shares = history.shares
    if shares is not None:
        shares.indexes[driver.state] = driver.key.partition
    data, acquired = original(driver, request, max_bytes)
    if acquired and shares is not None and shares.is_on:
        limit = driver._settings().limits.deliveries_max
        for item in acquired:
            if item.count >= limit:
                history.reach("a record is delivered for the last time")
                shares.exhausted.update(
                    (driver.key.partition, offset) for offset in range(item.first, item.last + 1)
                )
        shares.acquired(driver, acquired)
        shares.moment("acquired")
    return data, acquired


@observer(Persister, "read")
async def _read(
    history: History, original: Any, persister: Persister, key: Any, leader_epoch: int
) -> Any:
    shares = history.shares
    if shares is None or not shares.is_on or key.group_id != GROUP:
        return await original(persister, key, leader_epoch)
    known = shares.known(key.partition)
    state = await original(persister, key, leader_epoch)
    shares.found(key.partition, known, state)
    return state


@observer(Persister, "write")
async def _write(
    history: History, original: Any, persister: Persister, key: Any, change: Any
) -> None:
    shares = history.shares
    if shares is None or not shares.is_on or key.group_id != GROUP:
        await original(persister, key, change)
        return
    shares.sends(key.partition, change)
    await original(persister, key, change)
    shares.wrote(key.partition, change)
