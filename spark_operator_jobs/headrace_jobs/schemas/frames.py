"""Turns frames of records into frames of decoded records. Pure: schemas are read in the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace_jobs.schemas.avro import AvroValues
from headrace_jobs.schemas.protobuf import ProtobufValues
from headrace_jobs.transforms.tagged import SIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.schemas.registry import SchemaSource

__all__ = ["Avro", "Codec", "Json", "Protobuf", "decode", "set_aside", "well_formed"]

_HEADER_BYTES = 5
_BYTES_MAX = 2**31 - 1


class Codec(Protocol):
    """How a value is decoded into columns."""

    def decoded(self, value: Column) -> Column:
        """Return a struct: `decoded` (null on failure) and `reason` (else null)."""


@dataclass(frozen=True, kw_only=True)
class Json:
    """Values that are JSON objects, decoded by Spark itself. `columns` is DDL: `id BIGINT, …`.

    `has_header`: the values start with a registry's five bytes. A missing field is null.

    A TIMESTAMP is ISO 8601 to the microsecond, `2026-01-31T12:00:00.000250+01:00`, in UTC if it has
    no offset, or a number of seconds (9 to 11 digits) or milliseconds (12 to 14) since 1970; a DATE
    is ISO 8601, of which a time is left out.
    """

    columns: str
    has_header: bool = False

    def decoded(self, value: Column) -> Column:
        """Return the struct."""
        from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

        from headrace_jobs.schemas.json_values import from_json, once

        body = F.substring(value, _HEADER_BYTES + 1, _BYTES_MAX) if self.has_header else value
        found = F.struct(from_json(body, self.columns).alias("decoded"))

        def judged(row: Column) -> Column:
            has_header = _has_header(value) if self.has_header else F.lit(True)  # noqa: FBT003 - Spark's API
            reason = (
                F.when(value.isNull(), "it has no value")
                .when(~has_header, "it has no header of a registry")
                .when(row["decoded"].isNull(), "it is no JSON of these columns")
            )
            decoded = F.when(has_header, row["decoded"])
            return F.struct(decoded.alias("decoded"), reason.alias("reason"))

        return once(found, judged)


@dataclass(frozen=True, kw_only=True)
class Avro:
    """Avro values with a registry's header, whose id names the schema that wrote each.

    `columns` is DDL for the fields that the job reads: a missing field is null.
    """

    columns: str
    schemas: SchemaSource

    def decoded(self, value: Column) -> Column:
        """Return the struct."""
        return _by_arrow(AvroValues(schemas=self.schemas).decode, self.columns)(value)


@dataclass(frozen=True, kw_only=True)
class Protobuf:
    """Protobuf messages with a registry's header. `columns` is DDL, as for `Avro`."""

    columns: str
    schemas: SchemaSource

    def decoded(self, value: Column) -> Column:
        """Return the struct."""
        return _by_arrow(ProtobufValues(schemas=self.schemas).decode, self.columns)(value)


def decode(records: DataFrame, codec: Codec, *, column: str = "value") -> DataFrame:
    """Return the frame with `decoded` and `reason` added."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    both = "_headrace_decoded"
    return records.withColumn(both, codec.decoded(F.col(column))).select(
        *records.columns, f"{both}.decoded", f"{both}.reason"
    )


def well_formed(decoded: DataFrame) -> DataFrame:
    """Keep the decoded records. Takes the result of `decode`."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    return decoded.where(F.col("reason").isNull()).drop("reason")


def set_aside(decoded: DataFrame, *results: Column) -> DataFrame:
    """Return each record's results, together with the records that were not decoded.

    Takes the result of `decode` on Kafka's columns; `results` are computed from it, one row for
    each record. Undecoded records become dead letters (`transforms.tagged`).
    """
    from pyspark.sql import functions as F  # noqa: N812 - as above

    is_result = F.col("reason").isNull()
    side = {
        "_kind": F.when(is_result, "result").otherwise("rejected"),
        "_topic": F.col("topic"),
        "_partition": F.col("partition"),
        "_offset": F.col("offset"),
        "_key": F.when(~is_result, F.col("key")),
        "_value": F.when(~is_result, F.col("value")),
        "_reason": F.col("reason"),
        "_counted": is_result.cast("bigint"),
        "_malformed": (~is_result).cast("bigint"),
    }
    if "headers" in decoded.columns:
        side["_headers"] = F.when(~is_result, F.to_json("headers"))
    kinds = dict(each.split(" ") for each in SIDE.split(", "))
    tagged = [side.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()]
    return decoded.select(*results, *tagged)


def _has_header(value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - as above

    is_long = F.octet_length(value) > _HEADER_BYTES
    return is_long & (F.substring(F.hex(value), 1, 2) == "00")


def _by_arrow(function: Callable[..., object], columns: str) -> Callable[[Column], Column]:
    """Return an Arrow function of a column, with a struct of these columns in its result."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructType

    row = StructType.fromDDL(columns)
    result = StructType().add("decoded", row).add("reason", StringType())
    arrow_row = to_arrow_type(row, timezone="UTC")

    def of_batch(values: Any) -> Any:
        return function(values, arrow_row)

    # Spark infers from the hints that it is a function of arrays.
    of_batch.__annotations__ = {"values": pa.Array, "return": pa.Array}
    make: Any = arrow_udf  # its stubs lack struct results
    wrapped: Callable[[Column], Column] = make(of_batch, result)
    return wrapped
