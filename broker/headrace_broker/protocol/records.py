"""The framing of typed records in a log: what precedes the body in a key and in a value.

Coordinator records (``__consumer_offsets``, ``__transaction_state``) start with an int16: the
record's type in the key, the value's version in the value. Metadata records start with three
varints: the frame's version, the record's type and its version (KIP-631).
"""

from struct import Struct as Layout
from typing import Final, TypeVar

from .codec import decode, encode_bytes
from .errors import DecodeError, EncodeError
from .messages.records.metadata import METADATA_RECORDS
from .schema import Message
from .types import Buffer
from .wire import read_varuint, varuint

MessageT = TypeVar("MessageT", bound=Message)

METADATA_FRAME_VERSION: Final = 1
_PREFIX: Final = Layout(">h")


def encode_record_key(key: Message, version: int = 0) -> bytes:
    """Encode a coordinator record's key: its type, then its body."""
    if key.info.api_key is None:
        raise EncodeError(f"{type(key).__name__} is not a record's key")
    return _PREFIX.pack(key.info.api_key) + encode_bytes(key, version)


def encode_record_value(value: Message, version: int) -> bytes:
    """Encode a coordinator record's value: its version, then its body."""
    return _PREFIX.pack(version) + encode_bytes(value, version)


def decode_record_type(buffer: Buffer) -> int:
    """Return the type in front of a coordinator record's key (or the version before a value)."""
    if len(buffer) < _PREFIX.size:
        raise DecodeError(f"a record of {len(buffer)} bytes has no type")
    kind: int = _PREFIX.unpack_from(buffer)[0]
    return kind


def decode_record_key(
    buffer: Buffer, kinds: dict[int, tuple[type[Message], type[Message]]]
) -> Message | None:
    """Decode a coordinator record's key by its type; None if the type is not in ``kinds``.

    ``kinds`` is ``GROUP_RECORDS`` or ``TRANSACTION_RECORDS`` of ``messages.records.coordinator``.
    """
    known = kinds.get(decode_record_type(buffer))
    return None if known is None else decode(known[0], buffer, 0, _PREFIX.size)[0]


def decode_record_value(cls: type[MessageT], buffer: Buffer) -> MessageT:
    """Decode a coordinator record's value in the version that it states."""
    return decode(cls, buffer, decode_record_type(buffer), _PREFIX.size)[0]


def encode_metadata_record(record: Message, version: int) -> bytes:
    """Encode a metadata record with its frame."""
    if record.info.api_key is None:
        raise EncodeError(f"{type(record).__name__} is not a metadata record")
    head = varuint(METADATA_FRAME_VERSION) + varuint(record.info.api_key) + varuint(version)
    return head + encode_bytes(record, version)


def decode_metadata_record(buffer: Buffer) -> Message:
    """Decode a framed metadata record; an unknown type or version is a DecodeError."""
    try:
        frame_version, position = read_varuint(buffer, 0)
        kind, position = read_varuint(buffer, position)
        version, position = read_varuint(buffer, position)
    except IndexError as error:
        raise DecodeError("a metadata record ends within its frame") from error
    if frame_version != METADATA_FRAME_VERSION:
        raise DecodeError(f"unknown metadata frame version {frame_version}")
    cls = METADATA_RECORDS.get(kind)
    if cls is None:
        raise DecodeError(f"unknown metadata record type {kind}")
    return decode(cls, buffer, version, position)[0]
