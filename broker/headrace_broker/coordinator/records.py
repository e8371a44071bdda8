"""The records of `__consumer_offsets`, in Kafka's own format.

A key starts with its type (1: a committed offset, 2: a group), a value with its version; a null
value is a tombstone. Kafka's `DumpLogSegments --offsets-decoder` reads what is written here, and
what Apache Kafka wrote is read back, record types of other kinds of groups aside.
"""

from dataclasses import dataclass
from typing import Final

from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.messages.records.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from headrace_broker.protocol.messages.records.offset_commit import (
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.records import (
    decode_record_type,
    decode_record_value,
    encode_record_key,
    encode_record_value,
)
from headrace_broker.protocol.types import Buffer

__all__ = [
    "NO_EXPIRY",
    "CoordinatorRecord",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "GroupRecord",
    "MemberMetadata",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "OffsetRecord",
    "read_record",
    "write_record",
]

NO_EXPIRY: Final = -1

# Type 0 is how Kafka before 0.9 wrote type 1; the body of the key is the same.
_OFFSET_COMMIT_KEY_TYPES: Final = frozenset({0, 1})
_GROUP_METADATA_KEY_TYPE: Final = 2
_KEY_VERSION: Final = 0
_TYPE_SIZE: Final = 2

# What Apache Kafka 4.2.1 writes. An explicit expiry exists in version 1 only (KIP-211).
_OFFSET_COMMIT_VALUE_VERSION: Final = 4
_OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_METADATA_VALUE_VERSION: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """A committed offset of a group, or its tombstone."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A classic group between two rebalances, or its tombstone."""

    key: GroupMetadataKey
    value: GroupMetadataValue | None


CoordinatorRecord = OffsetRecord | GroupRecord


def write_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value as they stand in the log."""
    key = encode_record_key(record.key, _KEY_VERSION)
    if record.value is None:
        return key, None
    if isinstance(record.value, GroupMetadataValue):
        version = _GROUP_METADATA_VALUE_VERSION
    elif record.value.expire_timestamp != NO_EXPIRY:
        version = _OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY
    else:
        version = _OFFSET_COMMIT_VALUE_VERSION
    return key, encode_record_value(record.value, version)


def read_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    """Return the record; None for one of a kind that this coordinator does not keep.

    Raises DecodeError for bytes that are not what their type says.
    """
    key_type = decode_record_type(key)
    if key_type in _OFFSET_COMMIT_KEY_TYPES:
        return OffsetRecord(
            key=decode(OffsetCommitKey, key, _KEY_VERSION, _TYPE_SIZE)[0],
            value=None if value is None else decode_record_value(OffsetCommitValue, value),
        )
    if key_type == _GROUP_METADATA_KEY_TYPE:
        return GroupRecord(
            key=decode(GroupMetadataKey, key, _KEY_VERSION, _TYPE_SIZE)[0],
            value=None if value is None else decode_record_value(GroupMetadataValue, value),
        )
    return None
