"""Judge what clients saw against what a log may do, in the terms of Jepsen's Kafka workload.

A history is what producers and consumers were answered; `check` returns every anomaly that no
log of acks=all, idempotent producers may show. It knows no broker and no time.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

Offset = int
Value = int
PartitionIndex = int


class Outcome(Enum):
    """What a producer knows about a record it sent."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "certainly not written"
    UNKNOWN = "written or not"


class Anomaly(Enum):
    """The kinds of violations, by the names of Jepsen's Kafka workload where it has one."""

    LOST_WRITE = "lost-write"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    POLL_SKIP = "poll-skip"
    ABORTED_READ = "aborted-read"  # G1a: what was never written is read
    UNCOMMITTED_READ = "uncommitted-read"  # what stood above the high watermark and went away
    REORDERED = "reordered"
    OFFSET_GAP = "offset-gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A record and what its producer was answered; values are unique and rise per producer."""

    producer: int
    partition: PartitionIndex
    value: Value
    outcome: Outcome
    offset: Offset | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A record that a consumer saw."""

    offset: Offset
    value: Value


@dataclass(slots=True, kw_only=True)
class History:
    """All sends; each consumer's reads of a partition since `assign`; and the final logs.

    `final` is what a new consumer reads of each partition, from the start to the end, after
    everything healed.
    """

    sends: list[Send] = field(default_factory=list)
    polls: dict[tuple[str, PartitionIndex], list[Read]] = field(default_factory=dict)
    final: dict[PartitionIndex, list[Read]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One anomaly with the evidence a person needs."""

    anomaly: Anomaly
    partition: PartitionIndex
    evidence: str

    def __str__(self) -> str:
        return f"{self.anomaly.value} in partition {self.partition}: {self.evidence}"


def check(history: History) -> list[Violation]:
    """Return every violation of `history`, or nothing."""
    partitions = {send.partition for send in history.sends} | set(history.final)
    found: list[Violation] = []
    for partition in sorted(partitions):
        sends = [send for send in history.sends if send.partition == partition]
        final = history.final.get(partition, [])
        polls = {who: reads for (who, where), reads in history.polls.items() if where == partition}
        kinds = (
            _lost_writes(sends, final),
            _duplicates(final),
            _inconsistent_offsets(sends, polls, final),
            _polls_out_of_order(polls),
            _skipped(polls, final),
            _aborted_reads(sends, polls, final),
            _uncommitted_reads(polls, final),
            _reordered(sends, final),
            _gaps(final),
        )
        found += (
            Violation(anomaly=anomaly, partition=partition, evidence=evidence)
            for kind in kinds
            for anomaly, evidence in kind
        )
    return found


Findings = Iterator[tuple[Anomaly, str]]
Polls = dict[str, list[Read]]


def _lost_writes(sends: list[Send], final: list[Read]) -> Findings:
    there = {read.value for read in final}
    for send in sends:
        if send.outcome is Outcome.ACKNOWLEDGED and send.value not in there:
            at = f"{send.value}, acknowledged at {send.offset} to producer {send.producer}"
            yield Anomaly.LOST_WRITE, f"{at}; the log ends at {_end(final)}"


def _duplicates(final: list[Read]) -> Findings:
    offsets: dict[Value, list[Offset]] = defaultdict(list)
    for read in final:
        offsets[read.value].append(read.offset)
    for value, places in offsets.items():
        if len(places) > 1:
            yield Anomaly.DUPLICATE, f"{value} at {places}"


def _inconsistent_offsets(sends: list[Send], polls: Polls, final: list[Read]) -> Findings:
    """An offset names one record for ever: every acknowledgement and every read agrees."""
    witnesses: dict[Offset, dict[Value, str]] = defaultdict(dict)
    for who, reads in [*polls.items(), ("the final read", final)]:
        for read in reads:
            witnesses[read.offset].setdefault(read.value, who)
    for send in sends:
        if send.outcome is Outcome.ACKNOWLEDGED and send.offset is not None:
            witnesses[send.offset].setdefault(send.value, f"the answer to {send.producer}")
    for offset, values in witnesses.items():
        if len(values) > 1:
            yield Anomaly.INCONSISTENT_OFFSETS, f"offset {offset} is {values}"


def _polls_out_of_order(polls: Polls) -> Findings:
    for who, reads in polls.items():
        for before, after in itertools.pairwise(reads):
            if after.offset <= before.offset:
                yield Anomaly.NONMONOTONIC_POLL, f"{who} read {before}, then {after}"


def _skipped(polls: Polls, final: list[Read]) -> Findings:
    """A consumer that is assigned passes over nothing that is in the log."""
    there = {read.offset for read in final}
    for who, reads in polls.items():
        for before, after in itertools.pairwise(reads):
            between = range(before.offset + 1, after.offset)
            if skipped := [offset for offset in between if offset in there]:
                evidence = f"{who} went from {before} to {after} over {len(skipped)} records"
                yield Anomaly.POLL_SKIP, evidence


def _aborted_reads(sends: list[Send], polls: Polls, final: list[Read]) -> Findings:
    known = {send.value: send.outcome for send in sends}
    for who, reads in [*polls.items(), ("the final read", final)]:
        for read in reads:
            outcome = known.get(read.value, Outcome.FAILED)
            if outcome is Outcome.FAILED:
                yield Anomaly.ABORTED_READ, f"{who} saw {read}, which was never written"


def _uncommitted_reads(polls: Polls, final: list[Read]) -> Findings:
    there = {read.value for read in final}
    for who, reads in polls.items():
        for read in reads:
            if read.value not in there:
                evidence = f"{who} saw {read}, which is gone; the log ends at {_end(final)}"
                yield Anomaly.UNCOMMITTED_READ, evidence


def _reordered(sends: list[Send], final: list[Read]) -> Findings:
    """An idempotent producer's records stand in the order in which it sent them."""
    producers = {send.value: send.producer for send in sends}
    last: dict[int, Read] = {}
    for read in final:
        producer = producers.get(read.value)
        if producer is None:
            continue
        before = last.get(producer)
        if before is not None and read.value < before.value:
            yield Anomaly.REORDERED, f"{read} of producer {producer} after {before}"
        last[producer] = read


def _gaps(final: list[Read]) -> Findings:
    """Without transactions and compaction, offsets are dense."""
    for before, after in itertools.pairwise(final):
        if after.offset != before.offset + 1:
            yield Anomaly.OFFSET_GAP, f"{before}, then {after}"


def _end(final: Iterable[Read]) -> Offset:
    return max((read.offset + 1 for read in final), default=0)
