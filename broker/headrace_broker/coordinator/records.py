"""The records of `__consumer_offsets`, in Kafka's own format.

A key starts with its type (1: a committed offset, 2: a group), a value with its version; a null
value is a tombstone. Kafka's `DumpLogSegments --offsets-decoder` reads what is written here, and
what Apache Kafka wrote is read back, record types of other kinds of groups aside.
"""

import struct
from dataclasses import dataclass
from typing import Final

from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from headrace_broker.protocol.messages.records.offset_commit import (
    OffsetCommitKey,
    OffsetCommitValue,
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
_OFFSET_COMMIT_KEY_TYPE: Final = 1
_GROUP_METADATA_KEY_TYPE: Final = 2
_KEY_BODY_VERSION: Final = 0

# What Apache Kafka 4.2.1 writes. An explicit expiry exists in version 1 only (KIP-211).
_OFFSET_COMMIT_VALUE_VERSION: Final = 4
_OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_METADATA_VALUE_VERSION: Final = 3

_PREFIX: Final = struct.Struct(">h")


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
    if isinstance(record, GroupRecord):
        key_type, version = _GROUP_METADATA_KEY_TYPE, _GROUP_METADATA_VALUE_VERSION
    else:
        has_expiry = record.value is not None and record.value.expire_timestamp != NO_EXPIRY
        key_type = _OFFSET_COMMIT_KEY_TYPE
        version = (
            _OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY if has_expiry else _OFFSET_COMMIT_VALUE_VERSION
        )
    key = _PREFIX.pack(key_type) + encode_bytes(record.key, _KEY_BODY_VERSION)
    if record.value is None:
        return key, None
    return key, _PREFIX.pack(version) + encode_bytes(record.value, version)


def read_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    """Return the record; None for one of a kind that this coordinator does not keep.

    Raises DecodeError for bytes that are not what their type says.
    """
    key_type = _prefix_of(key)
    if key_type in _OFFSET_COMMIT_KEY_TYPES:
        return OffsetRecord(
            key=decode(OffsetCommitKey, key, _KEY_BODY_VERSION, _PREFIX.size)[0],
            value=(
                None
                if value is None
                else decode(OffsetCommitValue, value, _prefix_of(value), _PREFIX.size)[0]
            ),
        )
    if key_type == _GROUP_METADATA_KEY_TYPE:
        return GroupRecord(
            key=decode(GroupMetadataKey, key, _KEY_BODY_VERSION, _PREFIX.size)[0],
            value=(
                None
                if value is None
                else decode(GroupMetadataValue, value, _prefix_of(value), _PREFIX.size)[0]
            ),
        )
    return None


def _prefix_of(buffer: Buffer) -> int:
    try:
        return int(_PREFIX.unpack_from(buffer)[0])
    except struct.error as error:
        raise DecodeError("a coordinator's record is shorter than its type") from error
