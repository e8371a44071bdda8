"""Rows that a sink could never take, whatever their batch: each has a reason, and is set aside.

Such a row would fail its batch for ever. Columns of a frame in, a column of reasons out.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["first_reason", "is_null", "no_json_number", "no_utf8", "of_columns"]


def of_columns(
    frame: DataFrame, kinds: tuple[Any, ...], judge: Callable[[Column], Column]
) -> list[Column]:
    """Return a reason, or null, for each column of these types; `judge` returns its predicate."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    return [
        F.concat(F.lit(f"{field.name} "), judge(F.col(f"`{field.name}`")))
        for field in frame.schema.fields
        if isinstance(field.dataType, kinds)
    ]


def no_utf8(frame: DataFrame) -> list[Column]:
    """Return reasons for texts that were made of other bytes."""
    from pyspark.sql import functions as F  # noqa: N812 - as above
    from pyspark.sql import types as T  # noqa: N812 - as above

    return of_columns(
        frame, (T.StringType,), lambda text: F.when(~F.is_valid_utf8(text), F.lit("is not UTF-8"))
    )


def no_json_number(frame: DataFrame) -> list[Column]:
    """Return reasons for columns with NaN or an infinity in them, however deep."""
    from pyspark.sql import functions as F  # noqa: N812 - as above
    from pyspark.sql import types as T  # noqa: N812 - as above

    def judge(number: Column) -> Column:
        return F.isnan(number) | (F.abs(number) == float("inf"))

    kinds = (T.FloatType, T.DoubleType)
    why = "has a number that is not finite, which JSON does not have"
    return [
        F.when(
            _anywhere(field.dataType, F.col(f"`{field.name}`"), kinds, judge),
            F.lit(f"{field.name} {why}"),
        )
        for field in frame.schema.fields
        if _has(field.dataType, kinds)
    ]


def _anywhere(
    kind: Any, value: Column, kinds: tuple[Any, ...], judge: Callable[[Column], Column]
) -> Column:
    """Return whether such a value of these types is in a value, whose type has one of them."""
    from pyspark.sql import functions as F  # noqa: N812 - as above
    from pyspark.sql import types as T  # noqa: N812 - as above

    if isinstance(kind, T.StructType):
        fields = [each for each in kind.fields if _has(each.dataType, kinds)]
        parts = [
            _anywhere(each.dataType, value.getField(each.name), kinds, judge) for each in fields
        ]
        return functools.reduce(operator.or_, parts)
    if isinstance(kind, T.MapType):
        kind, value = T.ArrayType(kind.valueType), F.map_values(value)
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.exists(value, lambda each: _anywhere(element, each, kinds, judge))
    return judge(value)


def _has(kind: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a value of these types can be in a value of this type."""
    from pyspark.sql import types as T  # noqa: N812 - as above

    if isinstance(kind, T.StructType):
        return any(_has(each.dataType, kinds) for each in kind.fields)
    if isinstance(kind, T.MapType):
        return _has(kind.valueType, kinds)
    if isinstance(kind, T.ArrayType):
        return _has(kind.elementType, kinds)
    return isinstance(kind, kinds)


def is_null(names: Sequence[str]) -> list[Column]:
    """Return reasons for columns that are null."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return [F.when(F.col(f"`{name}`").isNull(), F.lit(f"{name} is null")) for name in names]


def first_reason(reasons: Sequence[Column]) -> Column | None:
    """Return the first reason that is not null; None if there is none for any row."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return F.coalesce(*reasons) if reasons else None
