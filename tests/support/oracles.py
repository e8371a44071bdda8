"""Two independent codecs for Kafka's protocol to hold ours against: kio and kafka-python.

Their field names differ from ours and from each other's, but all three follow the order of Kafka's
schemas, so values are matched by position and each pair of names must be alike.
"""

import dataclasses
import datetime as dt
import io
import re
import uuid
from collections.abc import Iterator
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl  # noqa: F401  # each import registers its messages' classes
from hypothesis import strategies as st
from kafka.protocol.api_data import ApiData
from kafka.protocol.api_message import ApiMessage
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace_broker.protocol.schema import Array, Field, Message, Struct
from support.messages import Narrowing, fields_in, versions_of

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# The years that datetime can express, in milliseconds; kio takes none before 1970.
_DATETIME_MS_MAX = int(dt.datetime(9999, 1, 1, tzinfo=dt.UTC).timestamp()) * 1000
# kio goes through timedelta's float of seconds, which is exact to the millisecond up to here.
_TIMEDELTA_MS_MAX = 2**40
# The bits that kafka-python shows as None: "not asked for".
_NO_OPERATIONS = (31,)
_EPOCH = dt.datetime.fromtimestamp(0, tz=dt.UTC)
_KIO_NARROWED = {
    "error_code": st.sampled_from([int(code) for code in ErrorCode]),
    "timedelta_i64": st.integers(-_TIMEDELTA_MS_MAX, _TIMEDELTA_MS_MAX),
    "datetime_i64": st.integers(0, _DATETIME_MS_MAX),
    "datetime_i64 or -1": st.integers(-1, _DATETIME_MS_MAX),
}


def _plain(name: str) -> str:
    """Reduce a field's name to what all three agree on."""
    if name.endswith("authorized_operations"):
        name = "authorized_operations"  # kafka-python renames them
    return name.replace("_", "").lower().removesuffix("ms")


def _pairs(cls: type[Struct], version: int, theirs: list[Any]) -> Iterator[tuple[Field, Any]]:
    ours = fields_in(cls, version)
    names = [_plain(field.name) for field in ours]
    assert names == [_plain(field.name) for field in theirs], f"{cls.__name__} v{version}"
    return zip(ours, theirs, strict=True)


class Kio:
    """kio: one class per message and version, encoded and decoded by its own machinery."""

    name = "kio"

    def __init__(self) -> None:
        self._kinds = {
            "Request": EntityType.request,
            "Response": EntityType.response,
            "Header": EntityType.header,
        }

    def _path(self, cls: type[Message]) -> tuple[str, EntityType]:
        name = cls.__name__
        for suffix in ("Request", "Response"):
            if name.endswith(suffix):
                stem = _WORD_START.sub("_", name.removesuffix(suffix)).lower()
                return stem, self._kinds[suffix]
        stem = _WORD_START.sub("_", name).lower()
        return stem, EntityType.header if name.endswith("Header") else EntityType.data

    def has(self, cls: type[Message], version: int) -> bool:
        stem, kind = self._path(cls)
        return kind in schema_name_map.get(stem, {}).get(version, {})

    def narrowing(self, cls: type[Message]) -> Narrowing:
        """Find the fields that kio gives richer types, which hold fewer values."""
        found: Narrowing = {}
        for version in versions_of(cls):
            if self.has(cls, version):
                self._narrow(cls, version, load_entity_schema(*self._key(cls, version)), found)
        return found

    def _narrow(self, cls: type[Struct], version: int, theirs: Any, found: Narrowing) -> None:
        for field, their in _pairs(cls, version, list(dataclasses.fields(theirs))):
            if field.nested is not None:
                self._narrow(field.nested, version, _struct_in(their.type), found)
            elif their.metadata.get("kafka_type") in _KIO_NARROWED:
                kind = their.metadata["kafka_type"]
                if kind == "datetime_i64" and type(None) in getattr(their.type, "__args__", ()):
                    kind = "datetime_i64 or -1"
                found[cls, field.name] = _KIO_NARROWED[kind]

    def _key(self, cls: type[Message], version: int) -> tuple[str, int, Any]:
        stem, kind = self._path(cls)
        return stem, version, kind

    def decode(self, cls: type[Message], version: int, data: bytes) -> Any:
        schema = load_entity_schema(*self._key(cls, version))
        entity, size = entity_reader(schema)(data, 0)
        assert size == len(data)
        return entity

    def encode(self, cls: type[Message], version: int, entity: Any) -> bytes:
        out = io.BytesIO()
        entity_writer(load_entity_schema(*self._key(cls, version)))(out, entity)
        return out.getvalue()

    def to_ours(self, cls: type[Struct], version: int, entity: Any) -> Any:
        values = {}
        fields = list(dataclasses.fields(entity))
        for field, their in _pairs(cls, version, fields):
            value = getattr(entity, their.name)
            if field.nested is not None and value is not None:
                values[field.name] = (
                    [self.to_ours(field.nested, version, inner) for inner in value]
                    if field.wire is Array
                    else self.to_ours(field.nested, version, value)
                )
            else:
                values[field.name] = _simple(field, value)
        return cls(**values)


def _struct_in(hint: Any) -> Any:
    if hasattr(hint, "__dataclass_fields__"):
        return hint
    for inner in getattr(hint, "__args__", ()):
        if inner not in (type(None), Ellipsis):
            return _struct_in(inner)
    raise TypeError(hint)


def _simple(field: Field, value: Any) -> Any:
    """Turn kio's richer values into the protocol's own."""
    if isinstance(value, tuple):
        return [_simple(field, inner) for inner in value]
    if isinstance(value, dt.timedelta):
        return round(value / dt.timedelta(milliseconds=1))
    if isinstance(value, dt.datetime):
        return round((value - _EPOCH) / dt.timedelta(milliseconds=1))
    if value is None and field.element.__name__ == "Int64":
        return -1
    if value is None and field.element.__name__ == "Uuid" and field.nullable.high < 0:
        return uuid.UUID(int=0)
    return value


class KafkaPython:
    """kafka-python: one class per message, driven by Kafka's JSON at run time."""

    name = "kafka-python"

    def __init__(self) -> None:
        found: dict[str, Any] = {}
        for base in (ApiMessage, ApiData):
            for cls in _subclasses(base):
                if cls.json is not None and cls.__name__ == cls.name:
                    found[cls.name] = cls
        self._classes = found

    def has(self, cls: type[Message], version: int) -> bool:
        theirs = self._classes.get(cls.__name__)
        return theirs is not None and version <= theirs.max_version

    def decode(self, cls: type[Message], version: int, data: bytes) -> Any:
        theirs = self._classes[cls.__name__]
        if issubclass(theirs, ApiData):
            return theirs.decode(data, version=version, header=False)
        # Not theirs.decode: ApiVersionsResponse's takes every error for a body of version 0.
        return ApiMessage.decode.__func__(theirs, data, version=version)

    def encode(self, cls: type[Message], version: int, entity: Any) -> bytes:
        if issubclass(self._classes[cls.__name__], ApiData):
            return bytes(entity.encode(version=version, header=False))
        # Its decoder leaves this slot empty, and its encoder looks at it.
        entity._header = None
        return bytes(entity.encode(version=version))

    def to_ours(self, cls: type[Struct], version: int, entity: Any) -> Any:
        theirs = [field for field in entity._struct._fields if field.for_version_q(version)]
        values = {}
        for field, their in _pairs(cls, version, theirs):
            value = getattr(entity, their.name)
            if field.nested is not None and value is not None:
                value = (
                    [self.to_ours(field.nested, version, inner) for inner in value]
                    if field.wire is Array
                    else self.to_ours(field.nested, version, value)
                )
            if field.name.endswith("authorized_operations") and not isinstance(value, int):
                value = sum(1 << bit for bit in (_NO_OPERATIONS if value is None else value))
                value -= (value >> 31) << 32
            values[field.name] = value if field.nested is not None else _simple(field, value)
        return cls(**values)


def _subclasses(cls: Any) -> Iterator[Any]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
