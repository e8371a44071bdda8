"""Writes the Grafana dashboards beside it from `dashboards.yaml`: `python make.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
GRID_COLUMNS = 24
STAT_COLUMNS, PANEL_COLUMNS = 4, 8
EVENTS_ONLY = "Empty while nothing of the kind happens."
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboards() -> dict[str, str]:
    """Return each dashboard's file, by its name without the suffix."""
    described = yaml.safe_load((HERE / "dashboards.yaml").read_text())
    return {
        name: json.dumps(_dashboard(name, each), indent=1) + "\n"
        for name, each in described.items()
    }


def _dashboard(name: str, described: dict[str, Any]) -> dict[str, Any]:
    variables = [_variable(*each) for each in described["variables"].items()]
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    link = {"type": "dashboards", "tags": ["headrace"], "title": "Headrace", "asDropdown": True}
    return {
        "uid": f"headrace-{name}",
        "title": described["title"],
        "tags": ["headrace"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "links": [link],
        "panels": _placed(described["panels"]),
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        # Also what has no such label: a Prometheus that scrapes one cluster without relabelling.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Place panels from left to right, and down where a row is full."""
    column = row = height = 0
    placed = []
    for number, panel in enumerate(panels, start=1):
        is_stat = panel.get("kind") == "stat"
        width = panel.get("width", STAT_COLUMNS if is_stat else PANEL_COLUMNS)
        if column + width > GRID_COLUMNS:
            column, row, height = 0, row + height, 0
        tall = 4 if is_stat else 8
        placed.append(_panel(number, panel, {"x": column, "y": row, "w": width, "h": tall}))
        column, height = column + width, max(height, tall)
    return placed


def _panel(number: int, panel: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if "danger" in panel:
        steps.append({"color": "red", "value": panel["danger"]})
    defaults: dict[str, Any] = {
        "unit": panel.get("unit", "short"),
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if "mappings" in panel:
        options = {key: {"text": text} for key, text in panel["mappings"].items()}
        defaults["mappings"] = [{"type": "value", "options": options}]
    queries = panel.get("queries") or {"": panel["query"]}
    return {
        "id": number,
        "title": panel["title"],
        "type": kind,
        "description": EVENTS_ONLY if panel.get("events_only") else panel.get("description", ""),
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": kind in {"stat", "table"},
                "format": "table" if kind == "table" else "time_series",
            }
            for index, (legend, query) in enumerate(queries.items())
        ],
    }


if __name__ == "__main__":
    for each, text in dashboards().items():
        (HERE / f"{each}.json").write_text(text)
