"""The records of `__share_group_state`, in Kafka's own format.

A snapshot (type 0) has the whole state of a share partition, an update (type 1) the changes since
then; a snapshot without a value deletes it. Kafka's `DumpLogSegments --share-group-state-decoder`
reads these records. The topic is not compacted: the log below the oldest snapshot that is still
needed is deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace_broker.coordinator.share_partition.partition import StateBatch
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.messages.records import share_snapshot, share_update
from headrace_broker.protocol.messages.records.share_snapshot import (
    ShareSnapshotKey,
    ShareSnapshotValue,
)
from headrace_broker.protocol.messages.records.share_update import ShareUpdateKey, ShareUpdateValue
from headrace_broker.protocol.records import (
    decode_record_type,
    decode_record_value,
    encode_record_key,
    encode_record_value,
)
from headrace_broker.protocol.types import Buffer

_TYPE_SIZE: Final = 2
_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """The whole state of a share partition; None deletes it."""

    key: ShareKey
    state: ShareState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRecord:
    """The changes since the snapshot of this epoch; -1 for an unchanged epoch or offset."""

    key: ShareKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...] = ()


ShareRecord = SnapshotRecord | UpdateRecord


def write_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value as bytes of the log."""
    key = record.key
    if isinstance(record, UpdateRecord):
        update_key = ShareUpdateKey(
            group_id=key.group_id, topic_id=key.topic_id, partition=key.partition
        )
        update = ShareUpdateValue(
            snapshot_epoch=record.snapshot_epoch,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            delivery_complete_count=record.complete_count,
            state_batches=[_struct(share_update.StateBatch, item) for item in record.batches],
        )
        return encode_record_key(update_key), encode_record_value(update, _VERSION)
    snapshot_key = encode_record_key(
        ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    )
    state = record.state
    if state is None:
        return snapshot_key, None
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=[_struct(share_snapshot.StateBatch, item) for item in state.batches],
    )
    return snapshot_key, encode_record_value(value, _VERSION)


def read_record(key: Buffer, value: Buffer | None) -> ShareRecord | None:
    """Return the record, or None for an unknown type.

    Raises DecodeError for bytes that do not match their type.
    """
    match decode_record_type(key):
        case 0:
            found = _key(decode(ShareSnapshotKey, key, _VERSION, _TYPE_SIZE)[0])
            return SnapshotRecord(key=found, state=None if value is None else _state(value))
        case 1 if value is not None:
            update = decode_record_value(ShareUpdateValue, value)
            return UpdateRecord(
                key=_key(decode(ShareUpdateKey, key, _VERSION, _TYPE_SIZE)[0]),
                snapshot_epoch=update.snapshot_epoch,
                leader_epoch=update.leader_epoch,
                start_offset=update.start_offset,
                complete_count=update.delivery_complete_count,
                batches=_batches(update.state_batches),
            )
        case _:
            return None


def _state(value: Buffer) -> ShareState:
    snapshot = decode_record_value(ShareSnapshotValue, value)
    return ShareState(
        snapshot_epoch=snapshot.snapshot_epoch,
        state_epoch=snapshot.state_epoch,
        leader_epoch=snapshot.leader_epoch,
        start_offset=snapshot.start_offset,
        complete_count=snapshot.delivery_complete_count,
        created_ms=snapshot.create_timestamp,
        written_ms=snapshot.write_timestamp,
        batches=_batches(snapshot.state_batches),
    )


def _key(key: ShareSnapshotKey | ShareUpdateKey) -> ShareKey:
    return ShareKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)


_AnyStruct = share_snapshot.StateBatch | share_update.StateBatch
_StructT = TypeVar("_StructT", share_snapshot.StateBatch, share_update.StateBatch)


def _struct(kind: type[_StructT], batch: StateBatch) -> _StructT:
    return kind(
        first_offset=batch.first_offset,
        last_offset=batch.last_offset,
        delivery_state=batch.delivery_state,
        delivery_count=batch.delivery_count,
    )


def _batches(structs: Iterable[_AnyStruct]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(
            first_offset=item.first_offset,
            last_offset=item.last_offset,
            delivery_state=item.delivery_state,
            delivery_count=item.delivery_count,
        )
        for item in structs
    )
