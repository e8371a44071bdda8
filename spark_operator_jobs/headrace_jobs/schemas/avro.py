"""Avro values by fastavro: each writer schema is parsed once, values in Arrow batches."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_jobs.schemas.values import BrokenValueError, as_arrow, split_header

if TYPE_CHECKING:
    from headrace_jobs.schemas.registry import SchemaSource

__all__ = ["AvroValues"]


@dataclass(kw_only=True)
class AvroValues:
    """Decodes values; caches the schemas. One per Python worker."""

    schemas: SchemaSource
    _parsed: dict[int, Any] = field(default_factory=dict)

    def decode(self, values: Any, row_type: Any) -> Any:
        """Return structs `decoded, reason` for an Arrow array of values."""
        return as_arrow(values, row_type, self._decode_one)

    def _decode_one(self, value: bytes) -> dict[str, Any]:
        from fastavro import schemaless_reader

        schema_id, body = split_header(value)
        schema = self._parsed.get(schema_id) or self._parse(schema_id)
        stream = io.BytesIO(body)
        try:
            decoded = schemaless_reader(stream, schema, None)
        except Exception as error:
            # fastavro raises whatever the bytes lead to: EOFError, IndexError, UnicodeError…
            raise BrokenValueError(f"it is no Avro of schema {schema_id}: {error!r}") from error
        if not isinstance(decoded, dict):
            raise BrokenValueError(f"schema {schema_id} is no record")
        if stream.read(1):
            raise BrokenValueError(f"it is longer than a value of schema {schema_id}")
        return decoded

    def _parse(self, schema_id: int) -> Any:
        from fastavro import parse_schema

        text = self.schemas.read(schema_id)
        named: dict[str, Any] = {}
        others = self.schemas.referenced(schema_id)
        try:
            for _, other in others:
                parse_schema(_with_texts(json.loads(other)), named)
            parsed = parse_schema(_with_texts(json.loads(text)), named)
        except Exception as error:
            raise BrokenValueError(f"schema {schema_id} is no Avro schema: {error!r}") from error
        self._parsed[schema_id] = parsed
        return parsed


def _with_texts(schema: Any) -> Any:
    """Return a schema whose uuids are the texts that they are: no column is of Python's `UUID`."""
    if isinstance(schema, list):
        return [_with_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    known = {name: _with_texts(each) for name, each in schema.items()}
    # A field has a name, and no logical type of its own: that is its type's.
    is_uuid = known.get("logicalType") == "uuid" and "name" not in known
    return "string" if is_uuid and known.get("type") == "string" else known
