"""Every message class of the protocol layer, and Hypothesis strategies that fill them."""

import importlib
import pkgutil
import string
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from headrace_broker.protocol import headers
from headrace_broker.protocol.apis import API_TABLE
from headrace_broker.protocol.messages import records
from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Bytes,
    Field,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nested,
    Records,
    String,
    Struct,
    UInt16,
    UInt32,
    Uuid,
    Wire,
    fields_of,
)

# What an oracle cannot represent narrows a field's values: kind by struct and field name.
Narrowing = dict[tuple[type[Struct], str], st.SearchStrategy[Any]]

_TEXT = st.one_of(
    st.text(alphabet=string.ascii_letters + "äß€𝄞\0", max_size=6),
    # long enough for a two-byte varint
    st.just("x" * 130),
)
_BYTES = st.one_of(st.binary(max_size=6), st.just(b"\xff" * 130))
_VALUES: dict[type[Wire], st.SearchStrategy[Any]] = {
    Bool: st.booleans(),
    Int8: st.integers(-(2**7), 2**7 - 1),
    Int16: st.integers(-(2**15), 2**15 - 1),
    UInt16: st.integers(0, 2**16 - 1),
    Int32: st.integers(-(2**31), 2**31 - 1),
    UInt32: st.integers(0, 2**32 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    Float64: st.floats(allow_nan=False, allow_infinity=False),
    Uuid: st.integers(0, 2**128 - 1).map(lambda number: uuid.UUID(int=number)),
    String: _TEXT,
    Bytes: _BYTES,
    Records: _BYTES,
}


def request_and_response_classes() -> list[type[Message]]:
    return [cls for api in API_TABLE.values() for cls in (api.request, api.response)]


def record_classes() -> list[type[Message]]:
    found: dict[str, type[Message]] = {}
    for info in pkgutil.iter_modules(records.__path__):
        module = importlib.import_module(f"{records.__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                found[value.__name__] = value
    return [found[name] for name in sorted(found)]


def all_message_classes() -> list[type[Message]]:
    own = [headers.RequestHeader, headers.ResponseHeader]
    return [*request_and_response_classes(), *record_classes(), *own]


def versions_of(cls: type[Message]) -> range:
    return range(cls.info.versions.low, cls.info.versions.high + 1)


def fields_in(cls: type[Struct], version: int) -> list[Field]:
    return [field for field in fields_of(cls) if field.versions.holds(version)]


def messages(
    cls: type[Struct], narrowing: Narrowing | None = None, elements_max: int = 2
) -> st.SearchStrategy[Any]:
    """Fill every field of every version; `restricted` then makes it fit one version."""
    narrowing = narrowing or {}

    def of(field: Field) -> st.SearchStrategy[Any]:
        if (cls, field.name) in narrowing:
            value = narrowing[cls, field.name]
        elif field.element is Nested and field.nested is not None:
            value = messages(field.nested, narrowing, elements_max)
        else:
            value = _VALUES[field.element]
        if field.wire is Array:
            value = st.lists(value, max_size=elements_max)
        if field.nullable.low <= field.nullable.high:
            value = st.none() | value
        return value

    return st.builds(cls, **{field.name: of(field) for field in fields_of(cls)})


def restricted(message: Any, version: int) -> Any:
    """Copy a message, giving what the version does not have or not allow a value that it does."""
    values = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if not field.versions.holds(version):
            value = default_of(field)
        elif value is None:
            value = None if field.nullable.holds(version) else _empty(field)
        values[field.name] = _mapped(field, value, lambda inner: restricted(inner, version))
    return type(message)(**values)


def default_of(field: Field) -> Any:
    if isinstance(field.default, list):
        return []
    if isinstance(field.default, Struct):
        return type(field.default)()
    return field.default


def _empty(field: Field) -> Any:
    if field.wire is Array:
        return []
    if field.nested is not None:
        return field.nested()
    return {String: "", Bytes: b"", Records: b""}[field.wire]


def _mapped(field: Field, value: Any, change: Callable[[Any], Any]) -> Any:
    if value is None or field.nested is None:
        return value
    return [change(inner) for inner in value] if field.wire is Array else change(value)
