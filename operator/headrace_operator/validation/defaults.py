"""Applies a structural schema's defaults, as the API server does before it validates.

A null is dropped if the schema does not allow it, and the default replaces it (Kubernetes, "Extend
the API with CustomResourceDefinitions", Defaulting and Nullable).
"""

from __future__ import annotations

import copy
from typing import Any


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """Return a copy of `value` with defaults filled in."""
    if isinstance(value, dict):
        return _object_with_defaults(value, schema)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [with_defaults(item, schema["items"]) for item in value]
    return copy.deepcopy(value)


def _object_with_defaults(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    result: dict[str, Any] = {}
    for key, item in value.items():
        item_schema = properties.get(key, additional if isinstance(additional, dict) else None)
        if item_schema is None:
            result[key] = copy.deepcopy(item)
        elif item is not None or item_schema.get("nullable"):
            result[key] = with_defaults(item, item_schema)
    for key, item_schema in properties.items():
        if key not in result and "default" in item_schema:
            result[key] = with_defaults(item_schema["default"], item_schema)
    return result
