"""Rows that a sink could never take, whatever their batch: each has a reason, and is set aside.

Such a row would fail its batch for ever. Columns of a frame in, a column of reasons out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["first_reason", "is_null", "no_utf8", "of_columns"]


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


def is_null(names: Sequence[str]) -> list[Column]:
    """Return reasons for columns that are null."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return [F.when(F.col(f"`{name}`").isNull(), F.lit(f"{name} is null")) for name in names]


def first_reason(reasons: Sequence[Column]) -> Column | None:
    """Return the first reason that is not null; None if there is none for any row."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return F.coalesce(*reasons) if reasons else None
