"""Validates a value against a structural schema: jsonschema, with Kubernetes' extensions.

Strict, as `kubectl apply` is by default: an unknown field is an error. The extensions are:
int-or-string, nullable, preserve-unknown-fields, lists that are sets or maps, and the formats of
integers and moments.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, FormatChecker

from headrace_operator.validation.problems import SchemaProblem, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema import ValidationError

    from headrace_operator.resources.documents import KeyPath

#: The metadata fields that a manifest may have (meta/v1 ObjectMeta).
METADATA_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {
            "type": "string",
            "maxLength": 253,
            "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        },
        "namespace": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        },
        "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {"type": "array"},
        "managedFields": {"type": "array"},
        "generateName": {"type": "string"},
        "uid": {"type": "string"},
        "resourceVersion": {"type": "string"},
        "generation": {"type": "integer"},
        "selfLink": {"type": "string"},
        "creationTimestamp": {"type": ["string", "null"]},
        "deletionTimestamp": {"type": "string"},
        "deletionGracePeriodSeconds": {"type": "integer"},
    },
}

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_KEPT_KEYWORDS = (
    "enum",
    "format",
    "maximum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minimum",
    "minItems",
    "minLength",
    "minProperties",
    "pattern",
    "required",
)

format_checker = FormatChecker(formats=())


@format_checker.checks("date-time")
def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    # fromisoformat accepts more than RFC 3339, which requires the T and a time zone.
    text = value.upper()
    if "T" not in text:
        return False
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


@format_checker.checks("int32")
def _is_int32(value: object) -> bool:
    return not isinstance(value, int) or -_INT32_MAX - 1 <= value <= _INT32_MAX


@format_checker.checks("int64")
def _is_int64(value: object) -> bool:
    return not isinstance(value, int) or -_INT64_MAX - 1 <= value <= _INT64_MAX


def check_structure(value: Any, schema: dict[str, Any]) -> Iterator[SchemaProblem]:
    """Yield what the schema does not allow in `value` (with defaults applied)."""
    for error in _validator(json.dumps(schema)).iter_errors(value):
        yield from _problems(error)
    yield from _duplicates(value, schema, ())


@functools.lru_cache(maxsize=64)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(strict_schema(json.loads(schema)), format_checker=format_checker)


def strict_schema(schema: dict[str, Any], *, is_root: bool = True) -> dict[str, Any]:
    """Return the JSON schema that is equivalent to the structural schema."""
    strict: dict[str, Any] = {key: schema[key] for key in _KEPT_KEYWORDS if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        strict["type"] = ["integer", "string"]
    elif "type" in schema:
        strict["type"] = [schema["type"]]
    if schema.get("nullable") and "type" in strict:
        strict["type"] = [*strict["type"], "null"]
    if "items" in schema:
        strict["items"] = strict_schema(schema["items"], is_root=False)
    if "properties" in schema:
        strict["properties"] = {
            key: strict_schema(item, is_root=False) for key, item in schema["properties"].items()
        }
        if is_root and "metadata" in schema["properties"]:
            strict["properties"]["metadata"] = METADATA_SCHEMA
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        strict["additionalProperties"] = strict_schema(additional, is_root=False)
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = False
    return strict


def _problems(error: ValidationError) -> Iterator[SchemaProblem]:
    path: KeyPath = tuple(error.absolute_path)
    # jsonschema's error types allow schemas that are not mappings; these all are.
    instance: Any = error.instance
    schema: Any = error.schema
    if error.validator == "additionalProperties":
        known = schema.get("properties", {})
        for key in sorted(set(instance) - set(known)):
            hint = nearest(key, known) or f"known here: {', '.join(sorted(known))}"
            yield SchemaProblem(path=(*path, key), reason=f"unknown field; {hint}")
    elif error.validator == "required":
        for key in schema["required"]:
            if key not in instance and f"'{key}' is a required" in error.message:
                yield SchemaProblem(path=(*path, key), reason="required, and missing; add it")
    else:
        yield SchemaProblem(path=path, reason=_reason(error))


def _reason(error: ValidationError) -> str:
    limit: Any = error.validator_value
    shown = json.dumps(error.instance, ensure_ascii=False)
    if len(shown) > _SHOWN_LENGTH:
        shown = f"{shown[: _SHOWN_LENGTH - 1]}…"
    validator = str(error.validator)
    if validator == "type":
        wanted = " or ".join(_TYPE_NAMES[name] for name in limit)
        is_quotable = "string" in limit and isinstance(error.instance, bool | float)
        return f"{shown} is not {wanted}" + (f'; quote it: "{shown}"' if is_quotable else "")
    if validator == "enum":
        hint = nearest(str(error.instance), map(str, limit))
        return f"{shown} is not one of {', '.join(map(str, limit))}" + (f"; {hint}" if hint else "")
    if validator in _LIMITS:
        return f"{shown} {_LIMITS[validator].format(limit=limit)}"
    return f"{error.message}; correct it"


_SHOWN_LENGTH = 80
_LIMITS = {
    "minimum": "is too small; at least {limit}",
    "maximum": "is too large; at most {limit}",
    "minItems": "is too short; at least {limit}",
    "minLength": "is too short; at least {limit}",
    "minProperties": "is too short; at least {limit}",
    "maxItems": "is too long; at most {limit}",
    "maxLength": "is too long; at most {limit}",
    "maxProperties": "is too long; at most {limit}",
    "pattern": "does not match {limit}; correct it",
    "format": "is not a valid {limit}; see the format's definition (a date-time is like"
    " 2026-01-31T12:00:00Z)",
}
_TYPE_NAMES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "a mapping",
    "string": "a string",
}


def _duplicates(value: Any, schema: dict[str, Any], path: KeyPath) -> Iterator[SchemaProblem]:
    """Find duplicate entries of a set or a map list."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        additional = schema.get("additionalProperties")
        for key, item in value.items():
            item_schema = properties.get(key, additional)
            if isinstance(item_schema, dict):
                yield from _duplicates(item, item_schema, (*path, key))
    elif isinstance(value, list) and "items" in schema:
        seen: set[str] = set()
        for index, item in enumerate(value):
            identity = list_identity(item, schema)
            if identity is not None and identity in seen:
                yield SchemaProblem(path=(*path, index), reason="stands in the list twice")
            seen.add(identity or "")
            yield from _duplicates(item, schema["items"], (*path, index))


def list_identity(item: Any, schema: dict[str, Any]) -> str | None:
    """Return the unique key of an entry of a set or map list; None for other lists."""
    match schema.get("x-kubernetes-list-type"):
        case "set":
            return json.dumps(item, sort_keys=True)
        case "map" if isinstance(item, dict):
            keys = schema["x-kubernetes-list-map-keys"]
            return json.dumps([item.get(key) for key in keys], sort_keys=True)
        case _:
            return None
