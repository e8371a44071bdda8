"""The error codes in answers, as the metrics count them: those that a client reads."""

import itertools
from typing import Any

import pytest

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.error_codes import error_codes
from headrace_broker.protocol.schema import Array, Struct, fields_of

RESPONSES = [
    pytest.param(messages.response, version, id=f"{ApiKey(key).name}-{version}")
    for key, messages in API_TABLE.items()
    for version in range(messages.min_version, messages.max_version + 1)
]


def filled(cls: type[Struct], version: int, codes: Any) -> Struct:
    """Return a struct with two elements in each array of structs and a new code in each field."""
    made = cls()
    for field in fields_of(cls):
        if not field.versions.holds(version):
            continue
        if field.name.endswith("error_code"):
            setattr(made, field.name, next(codes))
        elif field.nested is not None and field.wire is Array:
            setattr(made, field.name, [filled(field.nested, version, codes) for _ in range(2)])
        elif field.nested is not None:
            setattr(made, field.name, filled(field.nested, version, codes))
        elif field.default is None and not field.nullable.holds(version):
            setattr(made, field.name, b"")
    return made


def read(value: Any) -> list[int]:
    """Return every code in what a client decoded."""
    if isinstance(value, list):
        return [code for each in value for code in read(each)]
    if not isinstance(value, Struct):
        return []
    found: list[int] = []
    for field in fields_of(type(value)):
        inner = getattr(value, field.name)
        found += [inner] if field.name.endswith("error_code") else read(inner)
    return [code for code in found if code]


@pytest.mark.parametrize(("response", "version"), RESPONSES)
def test_every_code_that_a_client_reads_is_found(response: Any, version: int) -> None:
    message = filled(response, version, itertools.count(1))
    answer, _ = decode(response, encode_bytes(message, version), version)
    assert sorted(error_codes(response, version)(message)) == sorted(read(answer))


@pytest.mark.parametrize(("response", "version"), RESPONSES)
def test_an_answer_without_errors_has_none(response: Any, version: int) -> None:
    assert error_codes(response, version)(response()) == []
    assert error_codes(response, version)(filled(response, version, itertools.repeat(0))) == []
