"""The monitoring manifests as Prometheus itself wants them, and where its programs are."""

import http.client
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pytest
import yaml

from support.processes import LOOPBACK, ManagedProcess, free_port

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


_DURATION = re.compile(r"(?<=[\[ ])(\d+)([smhd])(?=[\]\s)]|$)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FASTER = 60


def sped_up(query: str) -> str:
    """Divide the windows and offsets of a query by 60, so that ten minutes are ten seconds."""

    def shorter(match: re.Match[str]) -> str:
        return f"{int(match[1]) * _SECONDS[match[2]] * 1000 // FASTER}ms"

    return _DURATION.sub(shorter, query)


class Prometheus:
    """A Prometheus of a test's own that scrapes every half second."""

    def __init__(
        self,
        directory: Path,
        targets: dict[str, list[str]],
        scrape_configs: Sequence[dict[str, Any]] = (),
    ) -> None:
        """`targets`: addresses by the path that is scraped there; `scrape_configs`: as they are."""
        self.address = f"{LOOPBACK}:{free_port()}"
        self._directory = directory
        self._targets = targets
        self._scrape_configs = scrape_configs
        self._process: ManagedProcess | None = None

    def __enter__(self) -> Self:
        binary = program("prometheus", "prometheus")
        config = self._write()
        self._process = ManagedProcess(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={self._directory / 'tsdb'}",
                f"--web.listen-address={self.address}",
            ],
            self._directory / "prometheus.log",
        )
        self._process.wait_ready(self._is_ready, 60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop(timeout_seconds=30)

    def _write(self) -> Path:
        rules = []
        for path in rule_files():
            groups = rule_groups(path)
            for group in groups:
                group["interval"] = "500ms"
                for rule in group["rules"]:
                    rule["expr"] = sped_up(rule["expr"])
            target = self._directory / path.name
            target.write_text(yaml.safe_dump({"groups": groups}))
            rules.append(str(target))
        document = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": rules,
            "scrape_configs": [
                *self._scrape_configs,
                *(
                    {
                        "job_name": path,
                        "metrics_path": path,
                        "honor_labels": True,
                        "static_configs": [
                            {
                                "targets": addresses,
                                # What a PodMonitor of the operator gives to its targets.
                                "labels": {"namespace": "default", "headrace_cluster": "main"},
                            }
                        ],
                    }
                    for path, addresses in self._targets.items()
                ),
            ],
        }
        config = self._directory / "prometheus.yaml"
        config.write_text(yaml.safe_dump(document))
        return config

    def _is_ready(self) -> bool:
        with suppress(OSError):
            return self._get("/-/ready")[0] == HTTPStatus.OK
        return False

    def _get(self, path: str, **parameters: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", f"{path}?{urlencode(parameters)}")
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the result of an instant query; a query that is wrong is an error."""
        status, body = self._get("/api/v1/query", query=query)
        document = json.loads(body)
        assert status == HTTPStatus.OK, f"{query}: {document.get('error')}"
        result = document["data"]["result"]
        return result if document["data"]["resultType"] == "vector" else [result]

    def value(self, query: str) -> float:
        """Return the value of a query that has one."""
        found = self.query(query)
        assert len(found) == 1, f"{query}: {found}"
        return float(found[0]["value"][1])

    def targets_down(self) -> list[str]:
        _, body = self._get("/api/v1/targets")
        return [
            f"{target['scrapeUrl']}: {target['lastError']}"
            for target in json.loads(body)["data"]["activeTargets"]
            if target["health"] != "up"
        ]

    def rule_errors(self) -> list[str]:
        _, body = self._get("/api/v1/rules")
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in json.loads(body)["data"]["groups"]
            for rule in group["rules"]
            if rule.get("lastError")
        ]
