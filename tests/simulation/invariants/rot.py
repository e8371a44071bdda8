"""Damaged records are never served: what a log returns is whole, whoever asks."""

from typing import Any

from crc32c import crc32c

from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.scrub import ScrubStep
from headrace_broker.protocol.batch_header import ATTRIBUTES_POSITION
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.partitions.partition import Partition
from simulation.history import History
from simulation.observing import observer


@observer(PartitionLog, "read")
def _read(history: History, original: Any, log: PartitionLog, *rest: Any, **named: Any) -> Any:
    try:
        data = original(log, *rest, **named)
    except ApiError as error:
        if error.code is ErrorCode.CORRUPT_MESSAGE:
            history.reach("a damaged range is refused")
        raise
    if history.rots:
        view = memoryview(data)
        for at, header in iterate_headers(view):
            if crc32c(view[at + ATTRIBUTES_POSITION : at + header.size_bytes]) != header.crc:
                history.violate("damage-served", f"{log.directory.name} at {header.base_offset}")
    return data


@observer(PartitionLog, "_look")
def _look(history: History, original: Any, *arguments: Any) -> None:
    history.reach("a reader meets damage")
    original(*arguments)


@observer(ScrubStep, "finish")
def _finish(history: History, original: Any, step: ScrubStep) -> Any:
    found = original(step)
    if found:
        history.reach("the scrub finds damage")
    return found


@observer(Partition, "cut_damage")
def _cut(history: History, original: Any, partition: Partition) -> Any:
    end = original(partition)
    # Nobody counts on this replica: its high watermark goes back with its log.
    history.cuts[partition] = int(partition.high_watermark)
    return end
