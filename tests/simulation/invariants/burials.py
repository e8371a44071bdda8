"""Each step of a dead letter (KIP-1191), judged by its rule, stated a second time.

A record that is given up is archiving, durably so, until its letter is committed; only then is it
archived, and only then may the start offset pass it.
"""

import contextvars
from typing import Any

from headrace_broker.coordinator.share_partition import partition as share_partition
from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.share_partition.states import AcknowledgeType, RecordState
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.produce import ProduceRequest
from headrace_broker.server.peers.peers import PeerConnections
from headrace_broker.server.shares.dead_letters import DeadLetterWriter
from simulation.history import History
from simulation.observing import observer

_ALL = -1
_heard: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("heard", default=None)
"""The errors that a writer of dead letters was answered."""
_reached: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("reached", default=None)
"""Where its next batch begins."""


@observer(share_partition, "_after")
def _after(history: History, original: Any, kind: Any, count: int, limits: Any) -> Any:
    """What is rejected, or was delivered as often as it may be, is on its way to the topic."""
    outcome = original(kind, count, limits)
    is_dead = kind is AcknowledgeType.REJECT or (
        kind is AcknowledgeType.RELEASE and count >= limits.deliveries_max
    )
    wanted = RecordState.ARCHIVING if limits.has_dead_letters else RecordState.ARCHIVED
    if is_dead and outcome.state is not wanted:
        history.violate("no-dead-letter", f"{kind.name} after {count} deliveries: {outcome}")
    return outcome


@observer(SharePartition, "take_write")
def _take_write(history: History, original: Any, state: SharePartition) -> Any:
    """What is archiving is written as that, and stays above the start offset."""
    before = [
        (run.first, run.last)
        for run in state.runs.items
        if (run.state if run.outcome is None else run.outcome.state) is RecordState.ARCHIVING
    ]
    write = original(state)
    for first, last in before:
        if write.start_offset > first:
            history.violate("dead-letter-passed", f"{first} to {last}: {write}")
        for batch in write.batches:
            is_its = batch.first_offset <= last and first <= batch.last_offset
            if is_its and batch.delivery_state != RecordState.ARCHIVING:
                history.violate("dead-letter-passed", f"{first} to {last} is written as {batch}")
    return write


@observer(SharePartition, "dead_letters")
def _dead_letters(history: History, original: Any, state: SharePartition, limits: Any) -> Any:
    """A letter is written once it is durable that nobody gets its record any more."""
    letters = original(state, limits)
    for letter in letters:
        for run in state.runs.overlapping(letter.first, letter.last):
            if run.is_dirty or run.state is not RecordState.ARCHIVING:
                history.violate("dead-letter-too-early", f"{letter} of {run}")
    if letters:
        history.letters[state] = [(letter.first, letter.last) for letter in letters]
    return letters


@observer(SharePartition, "archive_dead")
def _archive_dead(
    history: History, original: Any, state: SharePartition, first: int, last: int
) -> None:
    """What is archived are the letters that were written, and nothing beside them."""
    written = history.letters.get(state, ())
    for run in state.runs.overlapping(first, last):
        low, high = max(run.first, first), min(run.last, last)
        is_written = any(begin <= low and high <= end for begin, end in written)
        if run.state is RecordState.ARCHIVING and not is_written:
            history.violate("dead-letter-passed", f"{low} to {high}, written were {written}")
    original(state, first, last)


@observer(PeerConnections, "send")
async def _send(
    history: History,  # noqa: ARG001 - as each observer has it
    original: Any,
    peers: PeerConnections,
    destination: Any,
    request: Any,
    **named: Any,
) -> Any:
    response = await original(peers, destination, request, **named)
    heard = _heard.get()
    if heard is not None and isinstance(request, ProduceRequest):
        heard.append(response.responses[0].partition_responses[0].error_code)
        heard += [] if request.acks == _ALL else [ErrorCode.INVALID_REQUIRED_ACKS]
    return response


@observer(DeadLetterWriter, "_append")
async def _append(history: History, original: Any, writer: DeadLetterWriter, *what: Any) -> None:
    """A letter that was refused, or is not on all that are in sync, is not written."""
    heard: list[int] = []
    token = _heard.set(heard)
    try:
        await original(writer, *what)
    finally:
        _heard.reset(token)
    if any(heard):
        history.violate("dead-letter-refused", f"{ErrorCode(max(heard)).name} counts as written")


@observer(DeadLetterWriter, "_append_here")
async def _append_here(
    history: History, original: Any, writer: DeadLetterWriter, topic: str, index: int, batch: bytes
) -> None:
    """A letter is written once it is committed."""
    partition = writer._node.replicas.partition(topic, index)  # type: ignore[arg-type]  # an int is one
    end = partition.log.log_end_offset
    await original(writer, topic, index, batch)
    if partition.high_watermark <= end:
        history.violate(
            "told-before-commit", f"a dead letter at {end}, {partition.high_watermark} is committed"
        )


@observer(DeadLetterWriter, "_write_some")
async def _write_some(
    history: History,  # noqa: ARG001 - as each observer has it
    original: Any,
    writer: DeadLetterWriter,
    *what: Any,
) -> int:
    position: int = await original(writer, *what)
    reached = _reached.get()
    if reached is not None:
        reached.append(position)
    return position


@observer(DeadLetterWriter, "write")
async def _write(
    history: History,
    original: Any,
    writer: DeadLetterWriter,
    group_id: str,
    source: Any,
    letters: Any,
) -> bool:
    """All letters are written when they count as written."""
    reached: list[int] = []
    token = _reached.set(reached)
    try:
        is_written: bool = await original(writer, group_id, source, letters)
    finally:
        _reached.reset(token)
    if is_written and (not reached or reached[-1] <= letters[-1].last):
        history.violate("dead-letter-left-out", f"{letters}: the last batch ends at {reached}")
    return is_written
