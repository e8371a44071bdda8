"""Reads the CRDs that are shipped with the package: the schemas for validation."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class ResourceSchema:
    """One version of one CRD."""

    api_version: str
    kind: str
    plural: str
    short_names: tuple[str, ...]
    schema: dict[str, Any]


def crd_directory() -> Path:
    """Return the folder of CRDs: inside an installed package, at the root of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "crds"
    return installed if installed.is_dir() else package.parents[1] / "crds"


@functools.cache
def resource_schemas() -> dict[tuple[str, str], ResourceSchema]:
    """Return every served schema by apiVersion and kind."""
    schemas = {}
    for file in sorted(crd_directory().glob("*.yaml")):
        crd = yaml.safe_load(file.read_text(encoding="utf-8"))
        spec = crd["spec"]
        for version in spec["versions"]:
            if version["served"]:
                schema = ResourceSchema(
                    api_version=f"{spec['group']}/{version['name']}",
                    kind=spec["names"]["kind"],
                    plural=spec["names"]["plural"],
                    short_names=tuple(spec["names"].get("shortNames", ())),
                    schema=version["schema"]["openAPIV3Schema"],
                )
                schemas[schema.api_version, schema.kind] = schema
    return schemas
