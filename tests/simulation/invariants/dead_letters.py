"""Invariants of dead letters (KIP-1191): who must be in the topic in the end, and who must not.

A record that no member ever accepted, and that the group is done with, was rejected or delivered as
often as it may be: it is there, once at least. One whose acceptance took effect is not.
"""

from typing import Any

from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.protocol.batch import Record
from headrace_broker.server.shares.dead_letters import DeadLetterWriter
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver
from simulation.history import History
from simulation.invariants.invariant import Final, Invariant
from simulation.invariants.shares import Place, Shares, book_of
from simulation.observing import observer
from simulation.share_faults import ABOUT_TO_BE_APPENDED, COMMITTED
from simulation.workloads.share import GROUP, TOPIC


class DeadLetters(Invariant):
    """Compares what is in the dead-letter topic with what members said."""

    def at_the_end(self, final: Final) -> None:  # noqa: ARG002 - the topic is read by the workload
        """Judge, in the seeds that have the topic."""
        shares: Shares = self.history.shares
        if shares.dead_letters is not None:
            _judge(shares, *shares.dead_letters)


def _judge(shares: Shares, found: list[tuple[int, Record]], partitions: int) -> None:
    history, dead = shares.history, dict[Place, int]()
    for index, record in found:
        place = _place(history, record)
        if place is None:
            continue
        dead[place] = dead.get(place, 0) + 1
        if index != place[0] % partitions:
            history.violate("dead-letter", f"{place} is in partition {index} of {partitions}")
        if record.value != shares.values.get(place, record.value):
            history.violate(
                "dead-letter", f"{place} was {shares.values[place]!r}, is {record.value!r}"
            )
        if place not in shares.delivered:
            history.violate("dead-letter", f"{place} was never delivered")
    for place in sorted(shares.accepted & dead.keys()):
        history.violate("dead-letter-of-an-accepted-record", f"{place}")
    for place in sorted(shares.values.keys() - shares.said_accept - dead.keys()):
        history.violate("lost-dead-letter", f"{place} was accepted by nobody, and is not there")
    for mark, is_reached in (
        ("a record becomes a dead letter", bool(dead)),
        ("a dead letter is written twice", any(count > 1 for count in dead.values())),
    ):
        if is_reached:
            history.reach(mark)


def _place(history: History, record: Record) -> Place | None:
    headers = {header[0]: bytes(header[1] or b"") for header in record.headers}
    try:
        of = headers["__dlq.errors.group"].decode(), headers["__dlq.errors.topic"].decode()
        place = int(headers["__dlq.errors.partition"]), int(headers["__dlq.errors.offset"])
    except (KeyError, ValueError):
        history.violate("dead-letter", f"it does not say of what: {headers}")
        return None
    if of != (GROUP, TOPIC):
        history.violate("dead-letter", f"{place} is of {of}")
    return place


@observer(SharePartition, "committed")
def _committed(history: History, original: Any, state: SharePartition, write: Any) -> None:
    """Note whose acceptance takes effect."""
    book, shares = book_of(history, state), history.shares
    if book is not None and state in shares.indexes:
        index = shares.indexes[state]
        for first, last in state._writing:
            for offset in range(first, last + 1):
                hold = book.holds.get(offset)
                if hold is not None and hold.said is AcknowledgeType.ACCEPT:
                    shares.accepted.add((index, offset))
    original(state, write)


@observer(SharePartitionDriver, "_load")
async def _load(history: History, original: Any, driver: SharePartitionDriver) -> None:
    await original(driver)
    if any(run.state is RecordState.ARCHIVING for run in driver.state.runs.items):
        history.reach("a new leader has dead letters to write")


@observer(DeadLetterWriter, "_append")
async def _append(history: History, original: Any, writer: DeadLetterWriter, *what: Any) -> None:
    history.shares.moment(ABOUT_TO_BE_APPENDED)
    await original(writer, *what)
    history.shares.moment(COMMITTED)
