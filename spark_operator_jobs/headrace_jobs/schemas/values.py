"""What decoders share: the header, and rows into Arrow with a reason if one does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
    for value in values.to_pylist():
        row, reason = None, None
        if value is None:
            reason = "it has no value"
        else:
            try:
                row = {name: item for name, item in decode(value).items() if name in names}
            except BrokenValueError as error:
                reason = str(error)
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
