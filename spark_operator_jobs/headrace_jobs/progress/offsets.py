"""Offsets in Spark's format, and the lag computed from them. Pure."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "TICK",
    "LagClock",
    "TopicPartition",
    "end_offsets",
    "format_offsets",
    "is_tick",
    "lag_records",
    "offsets_of",
    "parse_offsets",
    "span",
]

#: What an offset of the clock (`sources.clock`) counts, beside those of Kafka's sources.
TICK = "headrace-tick"


class TopicPartition(NamedTuple):
    """A topic's partition."""

    topic: str
    partition: int


def parse_offsets(text: str | None) -> dict[TopicPartition, int]:
    """Parse `{"topic": {"0": 17}}`, the JSON of Spark's Kafka source.

    Spark's placeholders for earliest (-2) and latest (-1) name no offset and are left out. Raises
    `ValueError` for anything else.
    """
    if not text:
        return {}
    try:
        document = json.loads(text)
        return {
            TopicPartition(topic, int(index)): int(offset)
            for topic, partitions in document.items()
            for index, offset in partitions.items()
            if int(offset) >= 0
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"not the offsets of a Kafka source: {text[:200]}") from error


def is_tick(text: str) -> bool:
    """Whether a source's line in the offset log belongs to the clock."""
    return text.startswith(f'{{"{TICK}"')


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the JSON that `parse_offsets` reads and a source accepts as `startingOffsets`."""
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(document)


def offsets_of(topic: str, starting_offsets: str) -> str:
    """Return the offsets for one topic's source, which refuses other topics' partitions.

    `starting_offsets` is earliest, latest, or the JSON for the partitions of several topics.
    """
    if not starting_offsets.startswith("{"):
        return starting_offsets
    return json.dumps({topic: json.loads(starting_offsets).get(topic, {})})


def end_offsets(source_offsets: Iterable[str | None]) -> dict[TopicPartition, int]:
    """Merge the end offsets of all sources of a query.

    If a topic is read twice (a self-join), the lower offset counts: both have read up to there.
    """
    merged: dict[TopicPartition, int] = {}
    for text in source_offsets:
        for partition, offset in parse_offsets(text).items():
            merged[partition] = min(offset, merged.get(partition, offset))
    return merged


def span(start: str | None, end: str | None) -> int:
    """Return how many offsets are between two of a source: at least the records of a batch.

    A partition that is new at the end counts from 0, as all do in a query's first batch, where
    pyspark has the text None for the start.
    """
    before = parse_offsets(start) if start and start.startswith("{") else {}
    found = parse_offsets(end).items()
    return sum(max(0, offset - before.get(partition, 0)) for partition, offset in found)


def lag_records(
    committed: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[str, int]:
    """Return how many records each topic is behind; never negative.

    The latest offsets may be older than the committed ones.
    """
    lag: dict[str, int] = {}
    for partition, end in latest.items():
        behind = max(0, end - committed.get(partition, end))
        lag[partition.topic] = lag.get(partition.topic, 0) + behind
    return lag


class LagClock:
    """The age of the first unprocessed record of a partition, from samples of its end.

    Exact to one sampling interval; records older than the oldest sample count from that sample.
    (The broker knows the records' timestamps and reports the exact age for the same group.)
    """

    def __init__(self, samples_max: int = 720) -> None:
        self._samples: dict[TopicPartition, deque[tuple[int, float]]] = {}
        self._samples_max = samples_max

    def sample(self, latest: Mapping[TopicPartition, int], *, now_seconds: float) -> None:
        """Record the partitions' ends at this time."""
        for partition, end in latest.items():
            samples = self._samples.setdefault(partition, deque(maxlen=self._samples_max))
            if samples and end < samples[-1][0]:
                samples.clear()  # the topic was recreated
            # Among samples with the same end, the first shows when that end was reached.
            if not samples or end > samples[-1][0]:
                samples.append((end, now_seconds))

    def lag_seconds(
        self, committed: Mapping[TopicPartition, int], *, now_seconds: float
    ) -> dict[str, float]:
        """Return the age of each topic's oldest unprocessed record; 0 if caught up."""
        lag: dict[str, float] = {}
        for partition, samples in self._samples.items():
            position = committed.get(partition)
            behind_seconds = 0.0
            if position is not None:
                later = bisect_right(samples, position, key=lambda sample: sample[0])
                if later < len(samples):
                    behind_seconds = now_seconds - samples[later][1]
            lag[partition.topic] = max(behind_seconds, lag.get(partition.topic, 0.0))
        return lag
