"""The totals of a share group's records, from its leaders' `/metrics` (KIP-932).

No request of Kafka's protocol returns them. Counters start with the leaders' processes.
"""

from __future__ import annotations

import http.client
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ShareRecords", "read_share_records", "share_records"]

_TIMEOUT_SECONDS = 5.0
_PREFIX = "headrace_sharegroup_"


@dataclass(frozen=True, kw_only=True)
class ShareRecords:
    """Records of one group, over all brokers that answered."""

    in_flight: int = 0
    redelivered: int = 0
    rejected: int = 0
    undeliverable: int = 0
    """Records that reached the delivery limit."""
    dead_lettered: int = 0
    dead_letters_lost: int = 0
    #: Brokers that did not answer: records of their partitions are not counted.
    silent: tuple[str, ...] = ()


def read_share_records(addresses: Sequence[str], group: str) -> ShareRecords | None:
    """Ask brokers at their HTTP addresses; None if none answers."""
    texts, silent = [], []
    for address in addresses:
        try:
            with urllib.request.urlopen(  # noqa: S310 - a broker's own address
                f"{address.rstrip('/')}/metrics", timeout=_TIMEOUT_SECONDS
            ) as response:
                texts.append(response.read().decode())
        except (OSError, ValueError, http.client.HTTPException):
            silent.append(address)
    return share_records(texts, group, silent) if texts else None


def share_records(texts: Sequence[str], group: str, silent: Sequence[str] = ()) -> ShareRecords:
    """Sum a group's metrics over several brokers. Pure."""
    sums = _sums(texts, group)

    def count(series: str, **labels: str) -> int:
        return int(sums.get((_PREFIX + series, *labels.values()), 0))

    return ShareRecords(
        in_flight=count("records_in_flight"),
        redelivered=count("redelivered_records_total"),
        rejected=count("archived_records_total", reason="rejected"),
        undeliverable=count("archived_records_total", reason="delivery_limit"),
        dead_lettered=count("dead_letter_records_total", outcome="written"),
        dead_letters_lost=count("dead_letter_records_total", outcome="lost"),
        silent=tuple(silent),
    )


def _sums(texts: Sequence[str], group: str) -> Mapping[tuple[str, ...], float]:
    """Return sums over topics and brokers, by the series and its remaining labels."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[tuple[str, ...], float] = {}
    for text in texts:
        # A broker's other series are skipped.
        lines = (line for line in text.splitlines() if _PREFIX in line)
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                labels = sample.labels
                if labels.get("sharegroup") == group:
                    more = (labels[key] for key in ("reason", "outcome") if key in labels)
                    key = (sample.name, *more)
                    sums[key] = sums.get(key, 0.0) + sample.value
    return sums
