"""A transaction's offsets in one partition of `__consumer_offsets`: commits, markers, replay.

Owns their order in the log among the shard's other records: each waits for its turn, so that all
earlier decisions are in the log before it. Pending offsets are visible at once, like every
decision, and are removed again if the append is refused, as it is for a zombie.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from headrace_broker.coordinator.decision import GroupDecision, Ticket
from headrace_broker.coordinator.records import read_record, write_record
from headrace_broker.coordinator.shard import GroupShard, replay
from headrace_broker.coordinator.transactional_offsets import (
    forget_transactional,
    replay_marker,
    replay_transactional,
)
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.markers import Marker, read_marker
from headrace_broker.log.verification import Verification
from headrace_broker.protocol.batch import (
    ControlType,
    NewRecord,
    build_batch,
    iterate_records,
)
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from headrace_broker.protocol.types import TimestampMs
from headrace_broker.server.groups.group_driver_log import OffsetsLog

ResponseT = TypeVar("ResponseT")

_FIRST_SEQUENCE: Final = 0


class Driver(Protocol):
    """The owner of a shard."""

    shard: GroupShard
    log: OffsetsLog

    def check_room(self) -> None:
        """Raise ApiError unless the shard can be served now, and one more write may wait."""

    def keep_alive(self, decision: GroupDecision) -> None:
        """Set a decision's timers only."""

    def now_ms(self) -> TimestampMs:
        """Return the timestamp for records written now."""
        ...

    async def take_turn(
        self, response: type[ResponseT], work: Callable[[], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Have `work` write after all earlier decisions, and before all later ones."""
        ...


async def commit_transactional(
    driver: Driver,
    request: TxnOffsetCommitRequest,
    decide: Callable[[Ticket], GroupDecision],
    verification: Verification,
) -> TxnOffsetCommitResponse:
    """Write a transaction's offsets; return when they are committed in the log. Raises ApiError."""
    driver.check_room()  # `take_turn` must not refuse what is noted below
    decision = decide(Ticket(0))
    response: TxnOffsetCommitResponse = decision.replies[0][1]
    driver.keep_alive(decision)
    if not decision.records:
        return response
    shard, producer_id = driver.shard, request.producer_id
    noted = [
        replay_transactional(shard, producer_id, record, is_written=False)
        for record in decision.records
    ]

    async def write() -> TxnOffsetCommitResponse:
        batch = _transactional_batch(request, decision, driver.now_ms())
        try:
            end = driver.log.append_transactional(batch, verification)
        except ApiError:
            forget_transactional(shard, producer_id, noted)
            raise
        shard.transactional.written(noted)
        await driver.log.wait_committed(end)
        return response

    return await driver.take_turn(TxnOffsetCommitResponse, write)


def _transactional_batch(
    request: TxnOffsetCommitRequest, decision: GroupDecision, now_ms: TimestampMs
) -> bytearray:
    records = []
    for record in decision.records:
        key, value = write_record(record)
        records.append(NewRecord(key=key, value=value, timestamp=now_ms))
    return build_batch(
        records,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        base_sequence=_FIRST_SEQUENCE,
        is_transactional=True,
    )


async def write_group_marker(driver: Driver, marker: Marker) -> None:
    """End a transaction in this partition; return when its offsets are readable and durable."""

    async def write() -> Marker:
        end = driver.log.append_marker(marker)
        replay_marker(driver.shard, marker.producer_id, commits=marker.commits)
        await driver.log.wait_committed(end)
        return marker

    await driver.take_turn(Marker, write)


def replay_batches(shard: GroupShard, chunk: bytes) -> None:
    """Apply a run of whole batches: plain ones, a transaction's, and markers."""
    for position, header in iterate_headers(chunk):
        if header.is_control:
            marker = read_marker(chunk[position : position + header.size_bytes])
            if marker is not None:
                commits = marker[0] is ControlType.COMMIT
                replay_marker(shard, header.producer_id, commits=commits)
            continue
        for record in iterate_records(chunk, position):
            found = None if record.key is None else read_record(record.key, record.value)
            if found is None:
                continue
            if header.is_transactional:
                replay_transactional(shard, header.producer_id, found)
            else:
                replay(shard, found)
