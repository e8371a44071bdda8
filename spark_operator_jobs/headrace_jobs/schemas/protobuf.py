"""Protobuf messages by descriptors from a registry or a file, an Arrow batch at a time.

After the header come the message's indexes in its file: zigzag varints, their number first; a
single zero byte means the first message.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace_jobs.schemas.values import BrokenValueError, as_arrow, split_header

if TYPE_CHECKING:
    from headrace_jobs.schemas.registry import SchemaSource

__all__ = ["ProtobufValues"]

_TIMESTAMP = "google.protobuf.Timestamp"
_INDEXES_MAX = 32
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(kw_only=True)
class ProtobufValues:
    """Decodes values; caches the message types. One per Python worker."""

    schemas: SchemaSource
    _files: dict[int, Any] = field(default_factory=dict)
    _classes: dict[tuple[int, tuple[int, ...]], Any] = field(default_factory=dict)

    def decode(self, values: Any, row_type: Any) -> Any:
        """Return structs `decoded, reason` for an Arrow array of values."""
        return as_arrow(values, row_type, self._decode_one)

    def _decode_one(self, value: bytes) -> dict[str, Any]:
        from google.protobuf.unknown_fields import UnknownFieldSet

        schema_id, body = split_header(value)
        indexes, begin = _message_indexes(body)
        message_class = self._classes.get((schema_id, indexes)) or self._class(schema_id, indexes)
        message = message_class()
        try:
            message.ParseFromString(bytes(body[begin:]))
            row = _as_row(message)
        except Exception as error:
            # Also what a field raises when it is read: a Timestamp may be out of range.
            raise BrokenValueError(f"it is no message of schema {schema_id}: {error}") from error
        if not message.ListFields() and len(UnknownFieldSet(message)):
            raise BrokenValueError(f"it is no message of schema {schema_id}: no field is known")
        return row

    def _class(self, schema_id: int, indexes: tuple[int, ...]) -> Any:
        from google.protobuf.message_factory import GetMessageClass

        file = self._files.get(schema_id) or self._load(schema_id)
        messages = list(file.message_types_by_name.values())
        try:
            found = messages[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
        except IndexError as error:
            raise BrokenValueError(f"schema {schema_id} has no message {indexes}") from error
        self._classes[schema_id, indexes] = GetMessageClass(found)
        return self._classes[schema_id, indexes]

    def _load(self, schema_id: int) -> Any:
        from google.protobuf import descriptor_pb2
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError

        content = self.schemas.read(schema_id, serialized=True)
        others = self.schemas.referenced(schema_id, serialized=True)
        # A separate pool: schemas with the same name differ between ids.
        pool = DescriptorPool()
        added: set[str] = set()
        try:
            files = list(descriptor_pb2.FileDescriptorSet.FromString(content).file)
        except DecodeError:
            files = []
        try:
            if not any(file.name for file in files):
                files = [descriptor_pb2.FileDescriptorProto.FromString(content)]
            for name, other in others:
                # The registry may call it otherwise; the importing file has this name.
                imported = descriptor_pb2.FileDescriptorProto.FromString(other)
                imported.name = name
                files.insert(len(files) - 1, imported)
            for file in files:
                _add(pool, added, file)
            found = pool.FindFileByName(files[-1].name)
        except (DecodeError, TypeError, KeyError) as error:
            raise BrokenValueError(f"schema {schema_id} is no descriptor: {error}") from error
        self._files[schema_id] = found
        return found


def _add(pool: Any, added: set[str], file: Any) -> None:
    """Add a file to the pool, after what it imports of Protobuf's own files."""
    from google.protobuf import descriptor_pb2

    for name in file.dependency:
        if name not in added and (own := _own_file(name)) is not None:
            _add(pool, added, descriptor_pb2.FileDescriptorProto.FromString(own))
    if file.name not in added:
        added.add(file.name)
        pool.AddSerializedFile(file.SerializeToString())


def _own_file(name: str) -> bytes | None:
    """Return a file that comes with Protobuf, which no registry has: `google/protobuf/….proto`."""
    folder, _, base = name.rpartition("/")
    if folder != "google/protobuf":
        return None
    try:
        module = importlib.import_module(f"google.protobuf.{base.removesuffix('.proto')}_pb2")
    except ImportError:
        return None
    serialized: bytes = module.DESCRIPTOR.serialized_pb
    return serialized


def _message_indexes(body: memoryview) -> tuple[tuple[int, ...], int]:
    """Return the message's indexes, and where the message begins."""
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise BrokenValueError("its message indexes are broken")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        indexes.append(index)
    if min(indexes) < 0:
        raise BrokenValueError("its message indexes are broken")
    return tuple(indexes), at


def _varint(body: memoryview, at: int) -> tuple[int, int]:
    """Read a zigzag varint; return it, and the position after it."""
    value, shift = 0, 0
    while at < len(body) and shift < 64:  # noqa: PLR2004 - bits of Protobuf's integers
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follow
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise BrokenValueError("its message indexes are broken")


def _as_row(message: Any) -> dict[str, Any]:
    """Return a message's fields: an enum as its name, a Timestamp as a time, a map as pairs."""
    row: dict[str, Any] = {}
    for described in message.DESCRIPTOR.fields:
        if described.has_presence and not message.HasField(described.name):
            continue
        row[described.name] = _as_value(described, getattr(message, described.name))
    return row


def _as_value(described: Any, value: Any) -> Any:
    kind = described.message_type
    if kind is not None and kind.GetOptions().map_entry:
        item = kind.fields_by_name["value"]
        return [(key, _as_single(item, value[key])) for key in value]
    if described.is_repeated:
        return [_as_single(described, each) for each in value]
    return _as_single(described, value)


def _as_single(described: Any, value: Any) -> Any:
    if described.message_type is not None:
        if described.message_type.full_name == _TIMESTAMP:
            return _EPOCH + timedelta(microseconds=value.ToNanoseconds() // 1_000)
        return _as_row(value)
    if described.enum_type is not None:
        named = described.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value
