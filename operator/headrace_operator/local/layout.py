"""The paths of a local cluster's files. Owns the names only; creates nothing but folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ClusterLayout", "clusters_in"]


@dataclass(frozen=True, kw_only=True)
class ClusterLayout:
    """The folder of one cluster: `<data dir>/<cluster>/`."""

    root: Path

    @property
    def state_file(self) -> Path:
        """Addresses and processes of the running cluster (see `state`)."""
        return self.root / "state.json"

    @property
    def ports_file(self) -> Path:
        """The ports of the last run, so that clients keep their addresses over a restart."""
        return self.root / "ports.json"

    @property
    def up_lock(self) -> Path:
        """Held by the cluster's only `headrace up`."""
        return self.root / "up.lock"

    @property
    def reconcile_lock(self) -> Path:
        """Held around observe, plan and apply, so that two reconcilers do not interleave."""
        return self.root / "reconcile.lock"

    @property
    def desired_directory(self) -> Path:
        """The manifests of the desired state: one file for each resource."""
        return self.root / "desired"

    @property
    def log_directory(self) -> Path:
        """The output of the processes."""
        return self.root / "logs"

    def broker_directory(self, node_id: int) -> Path:
        """Properties and data of one broker."""
        return self.root / f"broker-{node_id}"

    @property
    def jobs_directory(self) -> Path:
        """The folder with each SparkApplication's checkpoint and scratch files."""
        return self.root / "jobs"

    def create(self) -> None:
        """Create the folders that every cluster has."""
        for folder in (self.root, self.desired_directory, self.log_directory):
            folder.mkdir(parents=True, exist_ok=True)


def clusters_in(data_directory: Path) -> list[str]:
    """Names of the clusters that have files under this data directory, sorted."""
    if not data_directory.is_dir():
        return []
    return sorted(child.name for child in data_directory.iterdir() if (child / "desired").is_dir())
