"""Validation of manifests against the CRDs' own schemas."""

from headrace_operator.validation.problems import ManifestProblem, SchemaProblem
from headrace_operator.validation.schemas import (
    ResourceSchema,
    crd_directory,
    resource_schemas,
)
from headrace_operator.validation.validate import (
    InvalidManifestsError,
    Validated,
    load_valid_manifests,
    validate_manifests,
    validate_object,
)

__all__ = [
    "InvalidManifestsError",
    "ManifestProblem",
    "ResourceSchema",
    "SchemaProblem",
    "Validated",
    "crd_directory",
    "load_valid_manifests",
    "resource_schemas",
    "validate_manifests",
    "validate_object",
]
