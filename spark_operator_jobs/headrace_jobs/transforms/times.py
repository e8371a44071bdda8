"""Event times in the formats that producers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["event_time", "json_date", "json_time", "judge_future"]

_ISO_8601 = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?\z"
_MINUTES = r"([+-]\d{1,2})?\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"
_FULL = rf"^{_MINUTES}:\d{{2}}(\.\d+)?"
_OFFSET = r"(Z|[+-]\d{2}:?\d{2})"
_DATE = r"^\d{4}-\d{2}-\d{2}"
_SECONDS = r"^\d{9,11}\z"
# From 1973 on: fewer digits are seconds.
_MILLISECONDS = r"^\d{12,14}\z"
_MILLISECONDS_PLAIN = (10**11, 10**14 - 1)


def event_time(text: Column) -> Column:
    """Return the timestamp of an ISO 8601 text or of milliseconds since 1970, else null.

    Spark's cast accepts more, for example `12:00` as that time of the current day: the result would
    depend on when the record was read.
    """
    number = text.try_cast("long")
    # As most numbers are written, without a look by regular expressions, which take longer.
    is_plain = number.between(*_MILLISECONDS_PLAIN) & (number.cast("string") == text)
    return (
        F.when(is_plain, F.timestamp_millis(number))
        .when(text.rlike(_ISO_8601), text.try_cast("timestamp"))
        .when(text.rlike(_MILLISECONDS), F.timestamp_millis(number))
    )


def json_time(text: Column) -> Column:
    """Return the timestamp of an ISO 8601 text, or of seconds or milliseconds since 1970, or null.

    Without an offset it is UTC, whatever the session's time zone. Fewer than nine digits are null:
    they may be a year, or a date.
    """
    with_seconds = F.regexp_replace(text, rf"^({_MINUTES})(.*)\z", "$1:00$3")
    return (
        F.when(text.rlike(rf"{_FULL}{_OFFSET}\z"), text.try_cast("timestamp"))
        .when(text.rlike(_SECONDS), F.timestamp_seconds(text.try_cast("long")))
        .when(text.rlike(_MILLISECONDS), F.timestamp_millis(text.try_cast("long")))
        .when(text.rlike(rf"{_FULL}\z"), _utc(text))
        .when(text.rlike(rf"{_DATE}\z"), _utc(F.concat(text, F.lit("T00:00:00"))))
        # Spark takes no offset behind minutes.
        .when(text.rlike(rf"^{_MINUTES}{_OFFSET}\z"), with_seconds.try_cast("timestamp"))
        .when(text.rlike(rf"^{_MINUTES}\z"), _utc(with_seconds))
    )


def _utc(text: Column) -> Column:
    return F.concat(text, F.lit("Z")).try_cast("timestamp")


def json_date(text: Column) -> Column:
    """Return the date of an ISO 8601 text, without its time if it has one, else null."""
    return F.when(text.rlike(rf"{_DATE}([T ].*)?\z"), text.try_cast("date"))


def judge_future(rows: DataFrame, future_us: int | None) -> DataFrame:
    """Return rows with a `reason` where `event_time` is further after `timestamp` than this.

    A clock that runs ahead would make the records of all others late. `timestamp` is the record's
    own, of its producer or its broker (`message.timestamp.type`); without such a column, or where a
    record has none, nothing is judged.
    """
    columns = {field.name: field.dataType for field in rows.schema.fields}
    if future_us is None or not isinstance(columns.get("timestamp"), T.TimestampType):
        return rows
    ahead_us = F.unix_micros("event_time") - F.unix_micros("timestamp")
    # A record without a timestamp has -1 ms.
    is_ahead = (ahead_us > future_us) & (F.unix_micros("timestamp") >= 0)
    reason = f"event_time is more than {future_us / 1_000_000:g} s after the record"
    return rows.withColumn("reason", F.coalesce("reason", F.when(is_ahead, F.lit(reason))))
