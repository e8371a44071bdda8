"""Planted bugs of one broker's storage, each of a kind that somebody once shipped."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from headrace_broker.log import checkpoints, partition_log, recovery
from headrace_broker.log.future_log import FutureLog
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.segments import flush
from headrace_broker.log.segments.batch_check import BatchWindow
from headrace_broker.log.segments.flush import Flush
from headrace_broker.server.groups.group_driver_log import PartitionOffsetsLog
from simulation.mutants.edited import edited
from simulation.mutants.mutant import Mutant, does
from simulation.profile import TRUNCATION
from simulation.workloads.directories import NAME, SINCE
from simulation.workloads.workload import STRANGERS_SINCE


class _EqualToAll(int):
    """A checksum that nothing differs from."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


def _never(_original: Any) -> Any:
    return lambda *_arguments, **_named: False


def _vouch_for_all(original: Any) -> Any:
    def close(self: LogDirectory, **options: Any) -> None:
        self._unrecovered.clear()
        original(self, **options)

    return close


def _no_states(original: Any) -> Any:
    def rebuild(*arguments: Any, **named: Any) -> Any:
        original(*arguments, **named)
        return ProducerStates()

    return rebuild


async def _no_chunks(_self: Any) -> AsyncIterator[bytes]:
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


def _flush_later(original: Any) -> Any:
    """fsync is skipped, and its success reported, as with a write-back cache that lies."""

    def begin(self: PartitionLog) -> Flush:
        begun = original(self)
        return replace(begun, segments=(), snapshots=())

    return begin


def _forget_producers(original: Any) -> Any:
    def take_over(self: PartitionLog, other: PartitionLog) -> None:
        original(self, other)
        self.producers = ProducerStates()

    return take_over


def _forget_the_last(original: Any) -> Any:
    """What is appended while the controller is told of the move is not copied."""

    def next_step(self: FutureLog, bytes_max: int) -> Any:
        return None if self._flush is not None else original(self, bytes_max)

    return next_step


STORAGE_MUTANTS = (
    Mutant(
        name="a move between directories forgets producers",
        owner=PartitionLog,
        attribute="take_over",
        replace=_forget_producers,
        nodes=3,
        needs=does(NAME),
        since=SINCE,
        seeds_max=60,
    ),
    Mutant(
        name="a move between directories does not copy what comes last",
        owner=FutureLog,
        attribute="next_step",
        replace=_forget_the_last,
        nodes=3,
        needs=does(NAME),
        since=SINCE,
        seeds_max=60,
    ),
    Mutant(
        name="a torn tail is kept",
        owner=BatchWindow,
        attribute="crc",
        replace=lambda _original: lambda *_arguments: _EqualToAll(),
        seeds_max=60,
        seed_known=23,
    ),
    Mutant(
        name="nothing is recovered after a kill",
        owner=LogDirectory,
        attribute="_may_be_torn",
        replace=_never,
        seeds_max=60,
        seed_known=36,
    ),
    Mutant(
        name="a leader epoch that a power cut changed is believed",
        owner=recovery,
        attribute="_cut_false_epoch",
        replace=_nothing,
        nodes=3,
        needs=lambda profile: profile.loses_power,
        seeds_max=200,
        seed_known=918253,
    ),
    Mutant(
        name="an append is not fsynced",
        owner=PartitionLog,
        attribute="begin_flush",
        replace=_flush_later,
        seed_known=2,
    ),
    Mutant(
        name="directories are not fsynced",
        owner=flush,
        attribute="sync_directory",
        replace=_nothing,
        seed_known=2,
    ),
    Mutant(
        name="a truncation leaves checkpoints above the log's end",
        owner=LogDirectory,
        attribute="_lower_checkpoints",
        replace=_nothing,
        nodes=3,
        needs=lambda profile: profile.loses_power and profile.focus == TRUNCATION,
        seeds_max=200,
        seed_known=7695,
    ),
    Mutant(
        name="a checkpoint is believed without its checksum",
        owner=checkpoints,
        attribute="_checked_lines",
        replace=edited("if last != _checksum_line(data[: -len(last)]):", "if False:"),
        needs=lambda profile: profile.loses_power,
        seeds_max=1000,
        since=STRANGERS_SINCE,
    ),
    Mutant(
        name="a recreated partition inherits checkpoints",
        owner=LogDirectory,
        attribute="_forget",
        replace=_nothing,
        needs=lambda profile: profile.loses_power and "churn" in profile.works,
        seeds_max=60,
        seed_known=7,
    ),
    Mutant(
        name="a stopped process vouches for logs that it never opened",
        owner=LogDirectory,
        attribute="close",
        replace=_vouch_for_all,
        seeds_max=200,
        seed_known=106,
    ),
    Mutant(
        name="producer state is lost at a restart",
        owner=partition_log,
        attribute="rebuild_producers",
        replace=_no_states,
        seed_known=2,
    ),
    Mutant(
        name="retries are not recognised",
        owner=PartitionLog,
        attribute="_check_producer",
        replace=_nothing,
        seed_known=2,
    ),
    Mutant(
        name="committed offsets are not loaded",
        owner=PartitionOffsetsLog,
        attribute="read_all",
        replace=lambda _original: _no_chunks,
        seed_known=5,
    ),
)
