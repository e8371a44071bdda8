"""What decoders share: the header, and rows into Arrow with a reason if one does not fit."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: Says of a value what would be changed in it; None: nothing.
    _Check = Callable[[Any], str | None]

__all__ = ["BrokenValueError", "as_arrow", "split_header"]

_MAGIC = 0
_HEADER_BYTES = 5


class BrokenValueError(Exception):
    """A value that cannot be decoded; the message says why."""


def split_header(value: bytes) -> tuple[int, memoryview]:
    """Return the schema's id and what follows the registry's header: a zero byte, four of the id.

    Raises `BrokenValueError`.
    """
    if len(value) < _HEADER_BYTES or value[0] != _MAGIC:
        raise BrokenValueError("it has no header of a registry")
    return int.from_bytes(value[1:_HEADER_BYTES], "big"), memoryview(value)[_HEADER_BYTES:]


def as_arrow(values: Any, row_type: Any, decode: Callable[[bytes], dict[str, Any]]) -> Any:
    """Decode an Arrow array of bytes into one of structs `decoded, reason`.

    The row that does not fit the columns is searched for only if the whole batch does not fit.
    """
    import pyarrow as pa

    rows: list[dict[str, Any] | None] = []
    reasons: list[str | None] = []
    names = {field.name for field in row_type}
    checks = [(field.name, check) for field in row_type if (check := _check(field.type))]
    for value in values.to_pylist():
        row, reason = None, None
        if value is None:
            reason = "it has no value"
        else:
            try:
                row = {name: item for name, item in decode(value).items() if name in names}
                _refuse_changed(row, checks)
            except BrokenValueError as error:
                row, reason = None, str(error)
        rows.append(row)
        reasons.append(reason)
    unfit = (ArithmeticError, TypeError, ValueError, pa.ArrowException)
    try:
        decoded = pa.array(rows, type=row_type)
    except unfit:
        for index, row in enumerate(rows):
            try:
                pa.array([row], type=row_type)
            except unfit as error:
                rows[index] = None
                reasons[index] = f"it does not fit the columns: {str(error)[:200]}"
        decoded = pa.array(rows, type=row_type)
    return pa.StructArray.from_arrays(
        [decoded, pa.array(reasons, pa.string())], names=["decoded", "reason"]
    )


def _refuse_changed(row: dict[str, Any], checks: Sequence[tuple[str, _Check]]) -> None:
    """Raise `BrokenValueError` for a value that Arrow would take, and change without a word."""
    for name, check in checks:
        misfit = check(row.get(name))
        if misfit is not None:
            raise BrokenValueError(f"it does not fit the columns: {name}: {misfit}")


def _check(kind: Any) -> _Check | None:
    """Return what says which value in a value of this type would be changed; None: none is."""
    from pyarrow import types

    if types.is_integer(kind):
        return _no_whole_number
    if types.is_timestamp(kind) or types.is_time(kind):
        return _no_time
    if types.is_struct(kind):
        checks = [(each.name, check) for each in kind if (check := _check(each.type))]
        return partial(_in_struct, checks) if checks else None
    if types.is_map(kind):
        check = _check(kind.item_type)
        return partial(_in_map, check) if check else None
    if types.is_list(kind):
        check = _check(kind.value_type)
        return partial(_in_list, check) if check else None
    return None


def _no_whole_number(value: Any) -> str | None:
    """Arrow cuts fractions off."""
    if isinstance(value, float):
        is_whole = value.is_integer()
    else:
        is_whole = not isinstance(value, Decimal) or value == value.to_integral_value()
    return None if is_whole else f"{value} is no whole number"


def _no_time(value: Any) -> str | None:
    """Arrow takes a number for microseconds, and most producers mean milliseconds."""
    return f"{value} is no time" if isinstance(value, (int, float)) else None


def _in_struct(checks: Sequence[tuple[str, _Check]], value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    return next(filter(None, (check(value.get(name)) for name, check in checks)), None)


def _in_map(check: _Check, value: Any) -> str | None:
    items = value.values() if isinstance(value, dict) else (item for _, item in value or ())
    return next(filter(None, map(check, items)), None)


def _in_list(check: _Check, value: Any) -> str | None:
    return next(filter(None, map(check, value)), None) if isinstance(value, list) else None
