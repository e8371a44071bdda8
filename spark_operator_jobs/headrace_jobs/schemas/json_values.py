"""JSON objects decoded into columns by Spark's own expressions, with times as producers mean them.

Spark takes `12:00` for today's, a text without an offset for one of the session's time zone, and
milliseconds for seconds. So times are parsed as texts, and these become times by the rules of
`transforms.times`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

from headrace_jobs.transforms.json_text import json_text
from headrace_jobs.transforms.times import json_date, json_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

__all__ = ["from_json", "once"]

_BROKEN = "_headrace_broken"
_OF_TEXT: dict[type[T.DataType], Callable[[Column], Column]] = {
    T.TimestampType: json_time,
    T.DateType: json_date,
}


def from_json(body: Column, columns: str) -> Column:
    """Return a struct of these columns; null if the value is no JSON object of them."""
    row: T.StructType = T.StructType.fromDDL(columns)  # type: ignore[assignment] # any type has it
    texts = T.StructType([T.StructField(each.name, _texts(each.dataType)) for each in row.fields])
    parsed = F.from_json(
        json_text(body),
        texts.add(_BROKEN, T.StringType()),
        {"columnNameOfCorruptRecord": _BROKEN},
    )
    return once(parsed, lambda found: F.when(found[_BROKEN].isNull(), _checked(found, row)))


def _checked(found: Column, row: T.StructType) -> Column:
    """Return the parsed struct with its times; null if a text is none."""
    if not _has_times(row):
        return found.dropFields(_BROKEN)
    return once(_times(found, row), lambda times: F.when(~_is_lost(found, times, row), times))


def once(column: Column, use: Callable[[Column], Column]) -> Column:
    """Return what is made of a column, which is computed once however often it is used.

    Spark would compute it for each field that is taken of it: to parse is what takes the time.
    """
    return F.transform(F.array(column), use)[0]


def _has_times(kind: T.DataType) -> bool:
    return _texts(kind) != kind


def _texts(kind: T.DataType) -> T.DataType:
    """Return a type with texts in place of times."""
    if type(kind) in _OF_TEXT:
        return T.StringType()
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_texts(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _texts(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType(
            [T.StructField(each.name, _texts(each.dataType), each.nullable) for each in kind]
        )
    return kind


def _times(text: Column, kind: T.DataType) -> Column:
    """Return what was parsed with its times, null where a text is none."""
    if not _has_times(kind):
        return text
    if isinstance(kind, T.ArrayType):
        return F.transform(text, lambda each: _times(each, kind.elementType))
    if isinstance(kind, T.MapType):
        return F.transform_values(text, lambda _, each: _times(each, kind.valueType))
    if isinstance(kind, T.StructType):
        fields = [_times(text[each.name], each.dataType).alias(each.name) for each in kind]
        return F.when(text.isNotNull(), F.struct(*fields))
    return _OF_TEXT[type(kind)](text)


def _is_lost(text: Column, time: Column, kind: T.DataType) -> Column:
    """Whether a text is no time; false, never null, where there is none."""
    if isinstance(kind, T.ArrayType):
        each = F.zip_with(text, time, lambda a, b: _is_lost(a, b, kind.elementType))
        return F.coalesce(F.exists(each, lambda is_lost: is_lost), F.lit(False))  # noqa: FBT003 - Spark's API
    if isinstance(kind, T.MapType):
        values = T.ArrayType(kind.valueType)
        return _is_lost(F.map_values(text), F.map_values(time), values)
    if isinstance(kind, T.StructType):
        fields = [each for each in kind if _has_times(each.dataType)]
        return reduce(
            or_, (_is_lost(text[each.name], time[each.name], each.dataType) for each in fields)
        )
    return text.isNotNull() & time.isNull()
