"""The records of `__consumer_offsets`, in Kafka's own format.

A key starts with its type (1: a committed offset, 2: a classic group, 3, 5 to 8 and 16: a consumer
group, 10 to 15: a share group), a value with its version; a null value is a tombstone. Kafka's
`DumpLogSegments --offsets-decoder` reads these records, and this module reads those of Apache
Kafka, except record types of streams groups. Type 4 is unused since Kafka 4.1 and is skipped.
"""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from headrace_broker.coordinator.share.records import (
    ShareAssignmentRecord,
    ShareEpochRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareStateRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
)
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.messages.records.coordinator import (
    GROUP_RECORDS,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.records import (
    decode_record_type,
    decode_record_value,
    encode_record_key,
    encode_record_value,
)
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.types import Buffer

KeyT = TypeVar("KeyT", bound=Message)
ValueT = TypeVar("ValueT", bound=Message)

NO_EXPIRY: Final = -1

_KEY_VERSION: Final = 0
_TYPE_SIZE: Final = 2

# What Apache Kafka 4.2.1 writes. An explicit expiry exists in version 1 only (KIP-211).
_OFFSET_COMMIT_VALUE_VERSION: Final = 4
_OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_METADATA_VALUE_VERSION: Final = 3
_CONSUMER_GROUP_VALUE_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRecord(Generic[KeyT, ValueT]):
    """A record of the log; without a value it is a tombstone."""

    key: KeyT
    value: ValueT | None


class OffsetRecord(KeyedRecord[OffsetCommitKey, OffsetCommitValue]):
    """A committed offset of a group."""

    __slots__ = ()


class GroupRecord(KeyedRecord[GroupMetadataKey, GroupMetadataValue]):
    """A classic group between two rebalances."""

    __slots__ = ()


class EpochRecord(KeyedRecord[ConsumerGroupMetadataKey, ConsumerGroupMetadataValue]):
    """The epoch of a consumer group; its tombstone ends the group."""

    __slots__ = ()


class MemberRecord(KeyedRecord[ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue]):
    """A member of a consumer group and what it subscribes to."""

    __slots__ = ()


class TargetEpochRecord(
    KeyedRecord[
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue
    ]
):
    """The group's epoch that the targets were computed for."""

    __slots__ = ()


class TargetRecord(
    KeyedRecord[ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue]
):
    """What a member shall have."""

    __slots__ = ()


class CurrentAssignmentRecord(
    KeyedRecord[ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue]
):
    """What a member has, and in which epoch."""

    __slots__ = ()


class RegexRecord(
    KeyedRecord[ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue]
):
    """The topics that a regular expression of a group matches."""

    __slots__ = ()


ConsumerGroupRecord = (
    EpochRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentAssignmentRecord
    | RegexRecord
)
CoordinatorRecord = OffsetRecord | GroupRecord | ConsumerGroupRecord | ShareGroupRecord


def write_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value as bytes of the log."""
    key = encode_record_key(record.key, _KEY_VERSION)
    if record.value is None:
        return key, None
    if isinstance(record.value, GroupMetadataValue):
        version = _GROUP_METADATA_VALUE_VERSION
    elif not isinstance(record.value, OffsetCommitValue):
        version = _CONSUMER_GROUP_VALUE_VERSION
    elif record.value.expire_timestamp != NO_EXPIRY:
        version = _OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY
    else:
        version = _OFFSET_COMMIT_VALUE_VERSION
    return key, encode_record_value(record.value, version)


def read_record(key: Buffer, value: Buffer | None) -> CoordinatorRecord | None:
    """Return the record, or None for a type that this coordinator does not use.

    Raises DecodeError for bytes that do not match their type.
    """
    kind = decode_record_type(key)
    record = _RECORDS.get(kind)
    if record is None:
        return None
    # Type 0 is type 1 as Kafka before 0.9 wrote it; the key's fields are the same.
    key_class, value_class = GROUP_RECORDS[kind or 1]
    found: CoordinatorRecord = record(
        key=decode(key_class, key, _KEY_VERSION, _TYPE_SIZE)[0],
        value=None if value is None else decode_record_value(value_class, value),
    )
    return found


_RECORDS: Final[dict[int, Any]] = {
    0: OffsetRecord,
    1: OffsetRecord,
    2: GroupRecord,
    3: EpochRecord,
    5: MemberRecord,
    6: TargetEpochRecord,
    7: TargetRecord,
    8: CurrentAssignmentRecord,
    10: ShareMemberRecord,
    11: ShareEpochRecord,
    12: ShareTargetEpochRecord,
    13: ShareTargetRecord,
    14: ShareAssignmentRecord,
    15: ShareStateRecord,
    16: RegexRecord,
}
"""What each record type is decoded to; `GROUP_RECORDS` has the classes of keys and values."""
