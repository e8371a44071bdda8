"""Values that are one JSON object, as text, and columns as JSON.

Spark's own parser is more lenient: it replaces bytes that are not UTF-8, and ignores whatever
follows the first object of a value. Its generator cuts times to milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["as_json", "is_json_object", "json_text", "with_json"]

_SPACE = " \t\r\n"
_ANY_OBJECT = T.StructType([])
_TEXT = "json_text_of_value"
# Always six digits, so that the texts of one zone sort as their times do.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def as_json(column: Column, *, with_nulls: bool = False) -> Column:
    """Return a struct, an array or a map as JSON; `with_nulls` keeps fields that are null.

    Times are ISO 8601 with six digits of a second, `2026-01-31T12:00:00.250000Z`, in the session's
    time zone; those without a zone (TIMESTAMP_NTZ) have no `Z`.
    """
    return F.to_json(column, _TIMES | ({"ignoreNullFields": "false"} if with_nulls else {}))


def with_json(records: DataFrame, schema: T.StructType | str, name: str) -> DataFrame:
    """Add the JSON object of the column `value`; null if it is none by itself (`json_text`).

    The text is a column of its own: Spark has no compiled code for what is below `from_json`.
    """
    texts = records.withColumn(_TEXT, json_text(F.col("value")))
    # Read twice, so that Spark does not move the text below `from_json` after all.
    parsed = F.when(F.col(_TEXT).isNotNull(), F.from_json(_TEXT, schema))
    return texts.withColumn(name, parsed).drop(_TEXT)


def json_text(value: Column) -> Column:
    """Return a value as text; null if it is not UTF-8 or goes on after its first JSON object.

    `from_json` has to say whether the object itself is well-formed.
    """
    text = value.cast("string")
    # Most end with their first brace that closes: counted in bytes, Spark need not decode them.
    # Parses again only a text where that brace is not the end, spaces aside.
    to_brace = F.octet_length(F.substring_index(text, "}", 1)) + 1
    is_flat = (to_brace == F.octet_length(text)) | (
        to_brace == F.octet_length(F.rtrim(text, F.lit(_SPACE)))
    )
    return F.when(F.is_valid_utf8(text) & (is_flat | is_json_object(text)), text)


def is_json_object(text: Column) -> Column:
    """Whether a text is one JSON object and nothing else."""
    in_array = F.from_json(F.concat(F.lit("["), text, F.lit("]")), T.ArrayType(_ANY_OBJECT))
    # A text that closes the array by itself does not close this object.
    in_object = F.from_json(
        F.concat(F.lit('{"it":'), text, F.lit("}")), T.StructType().add("it", _ANY_OBJECT)
    )
    is_one = (F.size(in_array) == 1) & in_object["it"].isNotNull()
    return F.coalesce(is_one, F.lit(False))  # noqa: FBT003 - Spark's API
