"""What is fixed when a local cluster is formed: its id, its voters, and its number of brokers.

Owns the choice; `state.json` keeps it. All brokers must get the same id, and brokers that join
later must get the same replication defaults as the first ones. From the first election on, the
voters are in the metadata log; this module also reads what the data on disk says about that.
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
    """Keep what is known; else use the id in the data on disk, else generate one."""
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
    """Whether a controller's disk has any metadata log or snapshot."""
    folder = data_directory / METADATA_FOLDER
    return any(
        path.stat().st_size > 0
        for pattern in ("*.log", "*.checkpoint")
        for path in folder.glob(pattern)
    )


def may_form(formation: Formation, own: Path, controllers: Iterable[Path]) -> bool:
    """Whether a node's settings may name the voters, so that it can start the quorum.

    Clusters formed before `is_formed` was stored always named the voters in the settings, so the
    data decides. If one controller has metadata and another has none, the latter has lost its disk,
    and learns the voters from the others. A controller with metadata uses its log, not its
    settings.
    """
    if formation.is_formed:
        return False
    return has_metadata(own) or not any(has_metadata(each) for each in controllers)


def _stored_id(data_directory: Path) -> str:
    """Return the id in a broker's meta.properties: single-broker clusters generated their own."""
    try:
        lines = (data_directory / "meta.properties").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition("=")[2] for line in lines if line.startswith("cluster.id=")), "")


def _random_id() -> str:
    """Generate an id in Kafka's form; its tools would take a leading dash for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
