"""Argo CD's health check, run by a Lua interpreter of the dialect that Argo CD has (5.1)."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HEALTH = Path(__file__).parents[2] / "manifests" / "gitops" / "argocd" / "health.lua"


class Case(NamedTuple):
    """An object's status and what Argo CD should show."""

    name: str
    ready: tuple[str, str]
    reconciling: tuple[str, str]
    stalled: tuple[str, str]
    health: str


CALM = ("False", "Reconciled")
CASES = [
    Case("converged", ("True", "Reconciled"), CALM, CALM, "Healthy"),
    Case(
        "just created",
        ("Unknown", "Pending"),
        ("Unknown", "Pending"),
        ("Unknown", "Pending"),
        "Progressing",
    ),
    Case(
        "a roll",
        ("False", "WaitingForBrokers"),
        ("True", "WaitingForBrokers"),
        ("False", "Reconciling"),
        "Progressing",
    ),
    Case(
        "ready while it rolls",
        ("True", "Reconciling"),
        ("True", "Reconciling"),
        CALM,
        "Progressing",
    ),
    Case(
        "refused",
        ("False", "PartitionsCannotShrink"),
        ("False", "PartitionsCannotShrink"),
        ("True", "PartitionsCannotShrink"),
        "Degraded",
    ),
    Case("waits for approval", ("True", "Reconciled"), ("True", "Planned"), CALM, "Suspended"),
    Case("paused", ("False", "Paused"), ("False", "Paused"), CALM, "Suspended"),
]


def lua_of(value: Any) -> str:
    """Write a JSON value as Lua; null is nil, as gopher-lua gets it."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"[{json.dumps(key)}]={lua_of(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "{" + ",".join(lua_of(each) for each in value) + "}"
    return "nil" if value is None else json.dumps(value)


def health_of(obj: dict[str, Any]) -> tuple[str, str]:
    """Return what Argo CD would show; skips loudly without an interpreter."""
    interpreter = next(filter(None, map(shutil.which, ("lua5.1", "luajit", "lua"))), None)
    if interpreter is None:
        pytest.skip("NOT TESTED: no Lua for Argo CD's health check; apt-get install lua5.1")
    program = (
        f"local obj = {lua_of(obj)}\n"
        f"local function check()\n{HEALTH.read_text()}\nend\n"
        'local found = check()\nio.write(found.status, "\\n", found.message or "")\n'
    )
    ran = subprocess.run(
        [interpreter, "-"], input=program, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    status, _, message = ran.stdout.partition("\n")
    return status, message


def obj_of(case: Case, *, observed: int = 3) -> dict[str, Any]:
    conditions = [
        {"type": kind, "status": status, "reason": reason, "message": f"{kind} says so"}
        for kind, (status, reason) in (
            ("Ready", case.ready),
            ("Reconciling", case.reconciling),
            ("Stalled", case.stalled),
        )
    ]
    return {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "main", "generation": 3},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_health_follows_the_conditions(case: Case) -> None:
    status, message = health_of(obj_of(case))
    assert status == case.health
    assert message


def test_what_the_operator_has_not_seen_yet_is_progressing() -> None:
    assert health_of(obj_of(CASES[0], observed=2))[0] == "Progressing"
    assert health_of({"metadata": {"name": "main", "generation": 1}})[0] == "Progressing"
    assert (
        health_of({"metadata": {"name": "main", "generation": 1}, "status": {}})[0] == "Progressing"
    )


def test_what_is_being_deleted_is_progressing() -> None:
    obj = obj_of(CASES[4])
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert health_of(obj) == ("Progressing", "being deleted")
