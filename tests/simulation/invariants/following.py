"""How a follower follows, and who is heard in which leader epoch, judged by the rules once more.

KIP-101, KIP-279 and KIP-320: logs are compared by leader epochs, and whoever speaks of another
epoch than the present one is refused.
"""

from typing import Any

from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.fetch import replica_sessions
from headrace_broker.server.follower.replica_fetcher import FetchedPartitions, ReplicaFetcher
from headrace_broker.server.partitions import partition as partition_module
from headrace_broker.server.partitions.partition import Partition
from simulation.history import History
from simulation.loop import CURRENT
from simulation.observing import observer

_ANY_EPOCH = -1


def _name(partition: Any) -> str:
    return f"{partition.topic}-{partition.index}"


# ---- the leader


@observer(replica_sessions, "diverging_epoch")
def _diverging_epoch(
    history: History, original: Any, epochs: Any, last_epoch: int, fetch_offset: int
) -> Any:
    """A follower's log is a prefix: its last epoch is the leader's, too, and goes as far there."""
    found = original(epochs, last_epoch, fetch_offset)
    if found is not None or last_epoch < 0:
        return found
    entries = epochs.entries
    following = [start for epoch, start in entries if epoch > last_epoch]
    end = min(following, default=epochs._log_end_offset())
    is_known = any(epoch == last_epoch for epoch, _ in entries)
    is_older = bool(entries) and last_epoch < entries[0][0]
    if fetch_offset > end or not (is_known or is_older):
        history.violate(
            "diverging-counts",
            f"{epochs.path.parent.name}: {fetch_offset} after epoch {last_epoch}, the leader has "
            f"{entries} up to {epochs._log_end_offset()}",
        )
    return found


@observer(Partition, "check_epoch")
def _check_epoch(history: History, original: Any, partition: Partition, client_epoch: int) -> None:
    """Only a client that knows the present leader epoch is answered."""
    original(partition, client_epoch)
    if client_epoch not in (_ANY_EPOCH, partition.leader_epoch):
        history.violate(
            "leader-epoch",
            f"{_name(partition)} answers in {partition.leader_epoch} who knows {client_epoch}",
        )


@observer(Partition, "_new_leader_state")
def _new_leader_state(history: History, original: Any, partition: Partition) -> LeaderState:
    """A leader's epoch begins at its log's end, and whoever asks for the epoch before hears so.

    One process leads in it: the next one may have lost what that one has acknowledged (KIP-966).
    """
    leading: LeaderState = original(partition)
    process = CURRENT.get()
    term = (partition.topic_id, int(partition.index), int(partition.leader_epoch))
    former = history.led_by.setdefault(term, process)
    if former is not process:
        history.violate(
            "leads-after-another",
            f"{_name(partition)}: {process} in epoch {partition.leader_epoch}, {former} led in it",
        )
    epoch, end = partition.log.leader_epochs.latest, partition.log.log_end_offset
    if epoch != partition.leader_epoch or leading.epoch_start_offset != end:
        history.violate(
            "leader-epochs",
            f"{_name(partition)} leads in {partition.leader_epoch} from {end} on, and notes "
            f"{partition.log.leader_epochs.entries}",
        )
    return leading


@observer(Partition, "isr_committed")
def _isr_committed(
    history: History, original: Any, partition: Partition, leader_epoch: int, *rest: Any
) -> None:
    """What was asked for in a former leader epoch is not this epoch's."""
    before = (partition.leader_epoch, partition.in_sync_replicas, partition.partition_epoch)
    original(partition, leader_epoch, *rest)
    after = (partition.leader_epoch, partition.in_sync_replicas, partition.partition_epoch)
    if after != before and leader_epoch != partition.leader_epoch:
        history.violate(
            "in-sync-set-of-another-epoch", f"{_name(partition)}: {rest} of epoch {leader_epoch}"
        )


@observer(Partition, "_truncated")
def _truncated(history: History, original: Any, partition: Partition) -> Any:
    """Nothing above a log's end is committed there."""
    end = original(partition)
    if partition.high_watermark > partition.log.log_end_offset:
        history.violate(
            "high-watermark-above-end",
            f"{_name(partition)}: {partition.high_watermark} above {partition.log.log_end_offset}",
        )
    return end


# ---- the follower


@observer(LogSegment, "truncate")
def _truncate(
    history: History, original: Any, segment: LogSegment, position: int, next_offset: int
) -> None:
    """No index of a segment leads to what was cut."""
    original(segment, position, next_offset)
    last = segment.offset_index.last
    aborted = [
        each for each in segment.transaction_index.entries if each.last_offset >= next_offset
    ]
    if last is not None and (last[1] >= position or segment.base_offset + last[0] >= next_offset):
        history.violate("index", f"{segment.path.name} was cut at {position}, {last} is there")
    if aborted:
        history.violate("aborted-index", f"{segment.path.name} ends at {next_offset}: {aborted}")


@observer(partition_module, "truncation_offset")
def _truncation_offset(
    history: History, original: Any, epochs: Any, log_end: int, diverging: Any
) -> int:
    """A follower keeps what it shares with its leader: no less, and nothing beyond."""
    offset: int = original(epochs, log_end, diverging)
    entries = epochs.entries
    starts = [start for epoch, start in entries if epoch > diverging.epoch]
    shared = min([log_end, *starts])
    # One that has not got that epoch, but one before and one after, asks again with the former.
    lacks_it = all(epoch != diverging.epoch for epoch, _ in entries)
    if not (lacks_it and starts and entries[0][0] < diverging.epoch):
        shared = min(shared, diverging.end_offset)
    if offset != shared:
        history.violate(
            "truncated-elsewhere",
            f"{epochs.path.parent.name}: cut at {offset}, not {shared}: {entries} up to "
            f"{log_end}, the leader has {diverging}",
        )
    return offset


@observer(FetchedPartitions, "_append")
def _append(
    history: History, original: Any, fetched: FetchedPartitions, key: Any, *what: Any
) -> None:
    """What a leader of a former epoch answered is not taken."""
    partition, position, _ = what
    if partition.leading is not None or partition.leader_epoch != position.leader_epoch:
        history.violate(
            "former-leaders-answer",
            f"{_name(partition)} takes in {partition.leader_epoch} what was asked in {position}",
        )
    original(fetched, key, *what)


@observer(Partition, "follow_high_watermark")
def _follow_high_watermark(
    history: History, original: Any, partition: Partition, *told: Any
) -> None:
    """A follower's log begins no higher than what it knows to be committed."""
    original(partition, *told)
    if partition.log.log_start_offset > partition.high_watermark:
        history.violate(
            "start-above-high-watermark",
            f"{_name(partition)}: {partition.log.log_start_offset} above "
            f"{partition.high_watermark}",
        )


def _check_held(history: History, fetched: FetchedPartitions, key: Any) -> None:
    """What is not on disk yet is reported by no request until it is (flush.messages)."""
    partition, state = fetched._partitions.get(key), fetched.state
    if partition is None or key not in state._dirty or key in state._held:
        return
    if partition.durable_end < partition.log.log_end_offset:
        history.violate(
            "vouched-before-fsync",
            f"{_name(partition)} is asked for from {partition.log.log_end_offset} on, on disk is "
            f"what is below {partition.durable_end}",
        )


@observer(FetchedPartitions, "_add_when_durable")
async def _add_when_durable(
    history: History, original: Any, fetched: FetchedPartitions, key: Any, partition: Partition
) -> None:
    await original(fetched, key, partition)
    _check_held(history, fetched, key)


@observer(FetchedPartitions, "take")
def _take(
    history: History, original: Any, fetched: FetchedPartitions, key: Any, *rest: Any
) -> None:
    original(fetched, key, *rest)
    _check_held(history, fetched, key)


@observer(ReplicaFetcher, "_go_on_when_durable")
async def _go_on_when_durable(
    history: History, original: Any, fetcher: ReplicaFetcher, to_sync: Any, *rest: Any
) -> None:
    """A follower goes on once what it got is on its disk."""
    ends = [(each, each.log, each.log.log_end_offset, each.log._truncations) for _, each in to_sync]
    await original(fetcher, to_sync, *rest)
    for partition, log, end, truncations in ends:
        is_same = partition.log is log and log._truncations == truncations and not log.is_abandoned
        group = partition.flushing
        if is_same and group is not None and not group._is_closed and partition.durable_end < end:
            history.violate(
                "vouched-before-fsync",
                f"{_name(partition)} goes on at {end}, on disk is what is below "
                f"{partition.durable_end}",
            )
