"""Merges a user's partial object into a rendered one. Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["laid_over"]


def laid_over(base: Any, overlay: Any) -> Any:
    """Merge: dicts by key, lists of named things (containers, volumes) by name; else replace."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        return base | {
            key: laid_over(base[key], value) if key in base else value
            for key, value in overlay.items()
        }
    if _is_named(base) and _is_named(overlay):
        merged = {each["name"]: each for each in base}
        for each in overlay:
            merged[each["name"]] = laid_over(merged.get(each["name"], {}), each)
        return list(merged.values())
    return overlay


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict) and "name" in each for each in value
    )
