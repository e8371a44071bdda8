"""What is settled when a local cluster is formed: its id, and with how many brokers.

Owns the choice; `state.json` keeps it. All brokers must be given the same id, and those that join
later the same defaults of replication as the first ones.
"""

from __future__ import annotations

import base64
import uuid
from typing import TYPE_CHECKING

from headrace_operator.local.properties import Formation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["form_cluster"]


def form_cluster(known: Formation, data_directories: Iterable[Path], *, brokers: int) -> Formation:
    """Keep what is known; else take the id that data on disk has, else make one."""
    directories = list(data_directories)
    cluster_id = known.cluster_id or next(
        (found for folder in directories if (found := _stored_id(folder))), ""
    )
    return Formation(
        cluster_id=cluster_id or _random_id(), brokers=known.brokers or max(1, brokers)
    )


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
