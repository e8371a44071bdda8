"""Finds a leader epoch in a log that cannot be true. No checksum of a batch covers its epoch.

Epochs never fall along a log. Changes nothing: `recovery.py` decides what to do about it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace_broker.log.batches import Header
from headrace_broker.log.segments.batch_check import EpochOf
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.log.segments.segments import LogSegments


class Batch(NamedTuple):
    """A batch on disk."""

    segment: LogSegment
    position: int
    header: Header


def batches_from(
    segments: LogSegments, offset: int, *, is_lenient: bool = False
) -> Iterator[Batch]:
    """Yield the batches from the one that holds an offset on.

    Raises SuspectedDamage; with `is_lenient` the rest of that segment is left out instead.
    """
    for segment in segments:
        following = segments.after(segment)
        if following is not None and following.base_offset <= offset:
            continue
        start = segment.position_of(offset, is_lenient=is_lenient)
        for position, header in segment.headers(start, is_lenient=is_lenient):
            yield Batch(segment, position, header)


def false_epoch(batches: Iterable[Batch], before: int, noted: EpochOf) -> Batch | None:
    """Return the first batch whose epoch is false, as far as that shows; `before` is the last one.

    Where epochs fall, either the batch with the lower one is false, or that with which the higher
    one began. It is the former if the higher epoch is known: from `noted`, or from two batches. An
    epoch that was not noted was not covered by an fsync either, which includes what was noted.
    """
    highest, is_known, first = before, True, None
    for batch in batches:
        epoch = batch.header.partition_leader_epoch
        if epoch < highest:
            return batch if is_known else first
        is_known = epoch == highest or noted(batch.header.base_offset) == epoch
        if epoch > highest:
            highest, first = epoch, batch
    return None
