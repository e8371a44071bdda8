"""The event-time progress of each source partition, as a query's groups report it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_jobs.progress.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["SourceWatermarks"]


@dataclass(frozen=True, kw_only=True)
class _Report:
    watermark_us: int
    at_seconds: float


class SourceWatermarks:
    """Keeps the latest report of each group and partition.

    A group without rows sends no report; after `idle_seconds` its last report is ignored.
    """

    def __init__(self, *, idle_seconds: float = 60.0) -> None:
        self._idle_seconds = idle_seconds
        self._reports: dict[tuple[int, TopicPartition], _Report] = {}
        self._windows: dict[int, int] = {}

    def report(self, rows: Iterable[Mapping[str, Any]], *, now_seconds: float) -> None:
        """Add a batch's rows: `group, topic, partition, windows, watermark_us`."""
        for row in rows:
            self._windows[row["group"]] = row["windows"]
            if row["watermark_us"] > 0:
                at = TopicPartition(row["topic"], row["partition"])
                self._reports[row["group"], at] = _Report(
                    watermark_us=row["watermark_us"], at_seconds=now_seconds
                )
        since = now_seconds - self._idle_seconds
        self._reports = {
            at: report for at, report in self._reports.items() if report.at_seconds > since
        }

    @property
    def open_windows(self) -> int | None:
        """How many windows are open; None if no group has reported any."""
        return sum(self._windows.values()) if self._windows else None

    def by_partition(self) -> dict[TopicPartition, float]:
        """Return, for each partition, the lowest watermark of its keys, in seconds since 1970."""
        lowest: dict[TopicPartition, float] = {}
        for (_, partition), report in self._reports.items():
            seconds = report.watermark_us / 1e6
            lowest[partition] = min(seconds, lowest.get(partition, seconds))
        return lowest
