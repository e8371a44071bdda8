"""How messages are declared: one class per message, its version ranges in the annotations.

A field's annotation holds its Python type and its type on the wire, its default is the class's
default, and the decorators record the rest:

    @struct
    class MetadataRequestTopic(Struct):
        topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
        name: Annotated[str | None, String("0+", nullable="10+")] = ""

    @message(api_key=3, versions="0-13", flexible="9+")
    class MetadataRequest(Message):
        topics: Annotated[list[MetadataRequestTopic] | None, Array("0+", nullable="1+")] = field(
            default_factory=list
        )

Terms are those of Kafka's own schemas (KIP-482): a field exists in ``versions``, may be null in
``nullable``, is a tagged field when it has a ``tag``, and is ``ignorable`` when a value may be
dropped because the version cannot carry it. Owns declaration only; ``compiler`` reads it.
"""

import dataclasses
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

ZERO_UUID: Final = uuid.UUID(int=0)

StructT = TypeVar("StructT", bound="Struct")
MessageT = TypeVar("MessageT", bound="Message")


class Versions(NamedTuple):
    """An inclusive range of versions; empty when ``low`` is above ``high``."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Read Kafka's notation: ``3``, ``3-7``, ``3+`` or ``none``."""
        if text == "none":
            return cls(0, -1)
        low, dash, high = text.partition("-")
        if dash:
            return cls(int(low), int(high))
        if text.endswith("+"):
            return cls(int(text[:-1]), sys.maxsize)
        return cls(int(text), int(text))

    def holds(self, version: int) -> bool:
        """Whether the range includes this version."""
        return self.low <= version <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """What a ``@message`` says of its class."""

    versions: Versions
    flexible: Versions
    api_key: int | None
    # Kafka keeps the latest version to itself until it is final ("latestVersionUnstable").
    is_latest_unstable: bool


class Struct:
    """Base of messages and of the structs inside them: compared and shown by their fields."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # mutable, and so unhashable on purpose

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names())

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({values})"

    def _names(self) -> Iterator[str]:
        return iter(type(self).__slots__)


class Message(Struct):
    """Base of what can be encoded by itself: requests, responses, headers and records."""

    __slots__ = ()
    info: ClassVar[MessageInfo]


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def struct(cls: type[StructT]) -> type[StructT]:
    """Make a class a mutable dataclass with slots whose versions are its message's."""
    return dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(
    *, versions: str, flexible: str = "none", api_key: int | None = None, unstable: bool = False
) -> Callable[[type[MessageT]], type[MessageT]]:
    """Make a class a message that exists in these versions."""
    info = MessageInfo(
        versions=Versions.parse(versions),
        flexible=Versions.parse(flexible),
        api_key=api_key,
        is_latest_unstable=unstable,
    )

    def decorate(cls: type[MessageT]) -> type[MessageT]:
        made = dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)
        made.info = info
        return made

    return decorate


@dataclass(frozen=True, slots=True)
class Wire:
    """A field's type on the wire and the versions it exists in."""

    versions: str
    nullable: str = "none"
    tag: int | None = None
    ignorable: bool = False
    # Only the request header's client id overrides its message's flexible versions (KIP-511).
    flexible: str | None = None


class Bool(Wire):
    """One byte; zero is false."""


class Int8(Wire):
    """A signed byte."""


class Int16(Wire):
    """A signed big-endian 16-bit integer."""


class UInt16(Wire):
    """An unsigned big-endian 16-bit integer."""


class Int32(Wire):
    """A signed big-endian 32-bit integer."""


class UInt32(Wire):
    """An unsigned big-endian 32-bit integer."""


class Int64(Wire):
    """A signed big-endian 64-bit integer."""


class Float64(Wire):
    """An IEEE 754 double."""


class Uuid(Wire):
    """Sixteen bytes."""


class String(Wire):
    """UTF-8 after its length."""


class Bytes(Wire):
    """Bytes after their length, copied out of the buffer."""


class Records(Wire):
    """Record batches after their length, never copied: a view of the buffer."""


class Nested(Wire):
    """One struct inside another."""


@dataclass(frozen=True, slots=True)
class Array(Wire):
    """Elements after their count; structs unless ``of`` names a primitive."""

    of: type[Wire] = Nested


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A declared field, its annotation parsed."""

    name: str
    wire: type[Wire]
    versions: Versions
    nullable: Versions
    flexible: Versions | None
    tag: int | None
    ignorable: bool
    # The struct of a Nested field or of an Array's elements, else None.
    nested: type[Struct] | None
    # An Array's elements, else the wire type itself.
    element: type[Wire]
    default: Any


_FIELDS: Final[dict[type[Struct], tuple[Field, ...]]] = {}


def fields_of(cls: type[Struct]) -> tuple[Field, ...]:
    """List a struct's fields in the order of the wire."""
    known = _FIELDS.get(cls)
    if known is None:
        known = _FIELDS[cls] = _parse_fields(cls)
    return known


def _parse_fields(cls: type[Struct]) -> tuple[Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        _field(declared, hints[declared.name])
        for declared in dataclasses.fields(cls)  # type: ignore[arg-type]  # the decorators made it a dataclass
    )


def _field(declared: "dataclasses.Field[Any]", hint: Any) -> Field:
    python_type, wire = get_args(hint)
    element = wire.of if isinstance(wire, Array) else type(wire)
    default = declared.default
    if declared.default_factory is not dataclasses.MISSING:
        default = declared.default_factory()
    return Field(
        name=declared.name,
        wire=type(wire),
        versions=Versions.parse(wire.versions),
        nullable=Versions.parse(wire.nullable),
        flexible=None if wire.flexible is None else Versions.parse(wire.flexible),
        tag=wire.tag,
        ignorable=wire.ignorable,
        nested=_struct_in(python_type) if element is Nested else None,
        element=element,
        default=default,
    )


def _struct_in(hint: Any) -> type[Struct]:
    """Find the struct inside ``X``, ``X | None``, ``list[X]`` or ``list[X] | None``."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    for inner in get_args(hint):
        if inner is not type(None):
            return _struct_in(inner)
    raise TypeError(f"no struct in {hint!r}")
