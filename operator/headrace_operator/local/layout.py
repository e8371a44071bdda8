"""Where a local cluster keeps its files. Owns names of paths only; creates nothing but folders."""

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
        """Addresses and processes of the cluster as it runs (see `state`)."""
        return self.root / "state.json"

    @property
    def ports_file(self) -> Path:
        """Ports that brokers had last time: clients keep their addresses over a restart."""
        return self.root / "ports.json"

    @property
    def up_lock(self) -> Path:
        """Held by the one `headrace up` of this cluster."""
        return self.root / "up.lock"

    @property
    def reconcile_lock(self) -> Path:
        """Held around observe, plan and apply, so that two reconcilers do not interleave."""
        return self.root / "reconcile.lock"

    @property
    def desired_directory(self) -> Path:
        """The manifests that should hold: one file for each resource."""
        return self.root / "desired"

    @property
    def log_directory(self) -> Path:
        """What the processes print."""
        return self.root / "logs"

    def broker_directory(self, node_id: int) -> Path:
        """Properties and data of one broker."""
        return self.root / f"broker-{node_id}"

    @property
    def jobs_directory(self) -> Path:
        """Has a folder for each SparkApplication: its checkpoint and scratch files."""
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
