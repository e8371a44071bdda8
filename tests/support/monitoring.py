"""The monitoring manifests as Prometheus itself wants them, and where its programs are."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
MONITORING = MANIFESTS / "monitoring"


def program(name: str, package: str) -> str:
    """Return the path of a program, or skip loudly where its package is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: {name} is missing; apt-get install {package}")
    return found


def rule_files() -> list[Path]:
    return sorted(MONITORING.glob("rules-*.yaml"))


def rule_groups(path: Path) -> list[dict[str, Any]]:
    """Return the groups of a PrometheusRule, which are those of a rule file."""
    document = yaml.safe_load(path.read_text())
    assert document["kind"] == "PrometheusRule"
    return document["spec"]["groups"]


def every_rule() -> Iterator[dict[str, Any]]:
    for path in rule_files():
        for group in rule_groups(path):
            yield from group["rules"]


def write_rules(directory: Path, *, has_annotations: bool = True) -> list[Path]:
    """Write the rule files; annotations are left out for tests that compare labels alone."""
    written = []
    for path in rule_files():
        groups = rule_groups(path)
        for group in groups:
            for rule in group["rules"]:
                if not has_annotations:
                    rule.pop("annotations", None)
        target = directory / path.name
        target.write_text(yaml.safe_dump({"groups": groups}))
        written.append(target)
    return written
