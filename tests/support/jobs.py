"""A job's process as a user starts it, and its metrics as Prometheus reads them."""

import sys
import urllib.request
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.processes import ManagedProcess

_PREFIX = "headrace_job_"


def scrape(url: str) -> dict[str, float]:
    """Return a job's own samples by name, without their prefix; `name/topic` and
    `name/topic/partition` where they have these labels.

    Every one has to have the labels `job` and `query`. Histogram buckets are left out.
    """
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - a test's own server
        text = response.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith(_PREFIX) or "le" in sample.labels:
                continue
            if not {"job", "query"} <= sample.labels.keys():
                raise ValueError(f"{sample} lacks a label")
            labels = [sample.labels.get(label) for label in ("topic", "partition", "phase")]
            name = sample.name.removeprefix(_PREFIX)
            found["/".join([name, *filter(None, labels)])] = sample.value
    return found


class JobProcess:
    """One SparkApplication run by `headrace_jobs.launch`."""

    def __init__(self, directory: Path, application: dict, bootstrap: str) -> None:
        self.directory = directory
        self.name = application["metadata"]["name"]
        self.log_path = directory / "job.log"
        self._bootstrap = bootstrap
        self._manifest = directory / "application.yaml"
        self._manifest.write_text(yaml.safe_dump(application))
        self._process: ManagedProcess | None = None

    @property
    def process(self) -> ManagedProcess:
        if self._process is None:
            raise RuntimeError("the job was not started")
        return self._process

    @property
    def output(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self) -> None:
        self._address_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "headrace_jobs.launch", str(self._manifest)]
        command += ["--bootstrap-servers", self._bootstrap, "--data-dir", str(self.directory)]
        self._process = ManagedProcess(command, self.log_path)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()

    def metrics(self) -> dict[str, float]:
        """Scrape the job; empty until it serves."""
        try:
            return scrape(self._address_file.read_text().strip())
        except OSError:
            return {}

    @property
    def _address_file(self) -> Path:
        return self.directory / self.name / "metrics.address"
