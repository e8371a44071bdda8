"""What is settled when a local cluster is formed: its id, who votes, and with how many brokers.

Owns the choice; `state.json` keeps it. All brokers must be given the same id, and those that join
later the same defaults of replication as the first ones. Who votes is in the metadata log from the
first election on; what data on disk says of that is read here, too.
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING

from headrace_operator.local.properties import Formation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["form_cluster", "has_metadata", "may_form"]

METADATA_FOLDER = "__cluster_metadata-0"


def form_cluster(known: Formation, data_directories: Iterable[Path], *, brokers: int) -> Formation:
    """Keep what is known; else take the id that data on disk has, else make one."""
    directories = list(data_directories)
    cluster_id = known.cluster_id or next(
        (found for folder in directories if (found := _stored_id(folder))), ""
    )
    return Formation(
        cluster_id=cluster_id or _random_id(),
        brokers=known.brokers or max(1, brokers),
        is_formed=known.is_formed,
    )


def has_metadata(data_directory: Path) -> bool:
    """Whether a controller's disk has anything of the metadata log, or of a snapshot of it."""
    folder = data_directory / METADATA_FOLDER
    return any(
        path.stat().st_size > 0
        for pattern in ("*.log", "*.checkpoint")
        for path in folder.glob(pattern)
    )


def may_form(formation: Formation, own: Path, controllers: Iterable[Path]) -> bool:
    """Whether a node's settings may name the voters, so that it can begin the quorum.

    Before `is_formed` was kept, clusters were formed, too, and settings always named them. So
    data decides: beside one controller that has metadata, one that has none has lost its disk, and
    it learns who votes from the others. One that has its own goes by its log, not by settings.
    """
    if formation.is_formed:
        return False
    return has_metadata(own) or not any(has_metadata(each) for each in controllers)


def _stored_id(data_directory: Path) -> str:
    """Return the id in a broker's meta.properties: clusters of one broker made their own."""
    try:
        lines = (data_directory / "meta.properties").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2] for line in lines if line.startswith("cluster.id=")), "")


def _random_id() -> str:
    """Make an id in Kafka's form; one that begins with a dash looks like an option to its tools."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
