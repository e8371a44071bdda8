"""The rare situations that a bug could hide in, counted: what no seed reaches, no seed tests.

Each mark is reached by a workload or an invariant (`History.reach`), by what a broker logs, or by
an observer below: it looks at a call of the broker's, before and after, and changes nothing. A
situation that is new to you is one line in `MARKS`, and where it is seen, one `reach`.
"""

from typing import Any
from uuid import UUID

from headrace_broker.coordinator import offsets
from headrace_broker.coordinator.consumer import classic_members, heartbeat, leaving
from headrace_broker.coordinator.consumer import step as consumer_step
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.log import partition_log
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.metadata import alter_partition
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import UNASSIGNED_DIRECTORY
from headrace_broker.raft import elections, fetching
from headrace_broker.raft import leading as raft_leading
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.api import fetch
from headrace_broker.server.fetch.fetch_sessions import FetchSessions
from headrace_broker.server.partitions import partition as partition_module
from headrace_broker.server.partitions.earlier_requests import EarlierRequests
from headrace_broker.server.partitions.partition import Partition
from simulation.history import History
from simulation.observing import observer
from simulation.power_cuts import BEHIND, LEFT_OUT, SWAPPED
from simulation.share_marks import SHARE_MARKS
from simulation.steps import STEP_MARKS
from simulation.transaction_marks import FREQUENT as FREQUENT_OF_TRANSACTIONS
from simulation.transaction_marks import LEVEL_MARKS, TRANSACTION_MARKS
from simulation.workloads.forgetting import MARKS as FORGETTING_MARKS

# What a broker logs, and the name of its mark.
LOGGED = {
    "log truncated to the leader's": "a follower's log is truncated",
    "log restarts at the leader's start": "a follower begins anew at its leader's start",
    "metadata log truncated": "the metadata log is truncated",
    "metadata snapshot installed": "a metadata snapshot is installed",
    "torn tail is cut at the last whole batch": "a torn tail is cut",
    "index file is damaged and is built again": "a damaged index is built again",
    "segments compacted": "segments are compacted",
    "retention removed segments": "retention removes segments",
    "stray replica set aside": "a stray replica is set aside",
    "broker fenced": "a broker is fenced",
    "in-sync set was not changed": "an in-sync set that was asked for is refused",
    "in-sync sets could not be changed yet": "the outcome of an AlterPartition is unknown",
    "bit rot": "what an fsync had covered is damaged",
    "damaged records are cut and replicated again": "a damaged replica is healed",
    "replica is in another log directory": "a replica has moved to another directory",
    "log directory is offline": "a log directory fails",
    "replica moves no more": "a move between directories is given up",
    "lost power without fsyncs": "a machine loses power without having fsynced",
}

# How many of 1,000 seeds of the mix must reach each; `make simulate-reached` asserts it.
MARKS: dict[str, int] = {
    **dict.fromkeys(LOGGED.values(), 5),
    "a damaged range is refused": 3,
    "a former process fetches as if it had everything": 50,
    "a former process speaks to the controller": 50,
    "a member beats in a former generation": 20,
    "a reader meets damage": 10,
    "the scrub finds damage": 10,
    "a member commits with a former generation": 20,
    "a commit comes while its group rebalances": 5,
    "a member has not joined again when the phase ends": 10,
    "a static member has not joined again when the phase ends": 3,
    "a static member's former process commits": 5,
    "a member of a consumer group commits with a former epoch": 5,
    "a member of a consumer group gives partitions up": 20,
    "a member of a consumer group is fenced": 20,
    "a partition waits until its former owner gives it up": 10,
    "a classic group with members becomes a consumer group": 10,
    "a consumer group with members becomes a classic one": 20,
    "a group of both protocols begins a new life": 5,
    "a member of a consumer group finds a classic one": 3,
    "records are deleted by request": 50,
    "a topic's setting is changed under load": 100,
    "a move between directories is asked for": 50,
    "a consumer validates its position against a new leader": 100,
    "a delivery times out and a new producer epoch begins": 50,
    "records are committed while an in-sync set is asked for": 10,
    "an acknowledgement waits while leadership is lost": 20,
    "a stale broker epoch fetches": 10,
    "a follower has less than it had": 5,
    "a node leads the quorum again after others have decided": 3,
    "a refused in-sync set may have been applied": 5,
    "an in-sync set is asked for while one is pending": 10,
    "a leader of a former epoch has a record on a majority": 5,
    "a truncation below an index entry": 10,
    "a truncation below what an fsync covered": 10,
    "a truncation below a checkpoint": 5,
    "a truncation removes a leader epoch": 10,
    "a start finds leader epochs that begin above its log": 5,
    LEFT_OUT: 5,
    BEHIND: 5,
    SWAPPED: 5,
    "a diverging follower lacks the leader's epoch": 5,
    "an fsync ends after a truncation": 3,
    "somebody who is no member commits": 20,
    "a member syncs in a former generation": 20,
    "a new producer epoch begins in its middle": 20,
    "a leader takes a former process for in sync": 20,
    "a leader takes a fenced one for in sync": 5,
    "a former controller announces itself": 20,
    "a fetch session is to forget a partition": 20,
    "a transactional id is almost used up": 20,
    "who was a member reads a consumer group's offsets": 20,
    "a member of a consumer group beats in a former epoch": 10,
    "a log that is being copied to another directory is truncated": 3,
    "a replica may be in a log directory that has failed": 10,
    "one that is assigned to none may be in a log directory that has failed": 1,
    "a truncation overtakes a pass of compaction": 1,
    "a replica falls out while its log is compacted": 1,
    "retention would remove what is not committed": 5,
    "a duplicate batch is recognised": 20,
    "a former producer epoch writes": 5,
    "a sequence has a gap": 20,
    "a request follows one that came before its leader led": 5,
    "a request follows one that lacked replicas": 5,
    "the controller refuses a former leader epoch": 5,
    "the controller refuses a former partition epoch": 5,
    "a former controller decides what a leader asks for": 3,
    "the controller refuses a former registration": 5,
    "the in-sync set is smaller than it must be": 100,
    "a candidate holds the high watermark back": 50,
    "a new leader's high watermark is below its log's end": 50,
    "a client's leader epoch is fenced": 20,
    "a client's leader epoch is not known yet": 20,
    "a fetch session is not known": 20,
    "a vote is asked for by a log that lacks records": 10,
    "a second candidate asks in an epoch": 5,
    "an eligible replica that is not in sync leads": 20,
    "a last known leader leads": 20,
    "a partition is without a leader": 100,
    "a leader's acknowledgement is lost with it": 10,
    **FORGETTING_MARKS,
    **TRANSACTION_MARKS,
    **LEVEL_MARKS,
    **STEP_MARKS,
    **SHARE_MARKS,
}

# What 60 seeds of the mix reach for sure.
FREQUENT = (
    "a follower's log is truncated",
    "a broker is fenced",
    "a partition is without a leader",
    "a last known leader leads",
    "the in-sync set is smaller than it must be",
    "a candidate holds the high watermark back",
    "a new leader's high watermark is below its log's end",
    "a consumer validates its position against a new leader",
    "a leader of a former epoch has a record on a majority",
    "a truncation removes a leader epoch",
    "a duplicate batch is recognised",
    *FREQUENT_OF_TRANSACTIONS,
)

# ---- replication


@observer(Partition, "_stop_leading")
def _stop_leading(history: History, original: Any, partition: Partition) -> None:
    if partition._commit_waiters._heap:
        history.reach("an acknowledgement waits while leadership is lost")
    original(partition)


@observer(Partition, "_new_leader_state")
def _new_leader_state(history: History, original: Any, partition: Partition) -> Any:
    if partition.high_watermark < partition.log.log_end_offset:
        history.reach("a new leader's high watermark is below its log's end")
    return original(partition)


@observer(Partition, "check_epoch")
def _check_epoch(history: History, original: Any, partition: Partition, client_epoch: int) -> None:
    try:
        original(partition, client_epoch)
    except ApiError as error:
        is_old = error.code is ErrorCode.FENCED_LEADER_EPOCH
        history.reach(f"a client's leader epoch is {'fenced' if is_old else 'not known yet'}")
        raise


@observer(LeaderState, "record_fetch")
def _record_fetch(
    history: History, original: Any, leading: Any, node_id: Any, epoch: Any, offset: int, *rest: Any
) -> Any:
    before = leading.followers[node_id].fetch_offset
    is_new = original(leading, node_id, epoch, offset, *rest)
    if not is_new:
        history.reach("a stale broker epoch fetches")
    elif offset < before:
        history.reach("a follower has less than it had")
    return is_new


@observer(fetch, "handle_follower")
def _handle_follower(
    history: History, original: Any, broker: Any, context: Any, request: Any
) -> Any:
    state = request.replica_state
    registered = broker.replicas.host.image.brokers.get(state.replica_id)
    if registered is not None and state.replica_epoch < registered.epoch:
        history.reach("a stale broker epoch fetches")
    return original(broker, context, request)


@observer(Partition, "expand_isr")
def _expand_isr(history: History, original: Any, partition: Partition) -> None:
    leading = partition.leading
    if leading is not None and leading.pending is not None:
        for node_id, progress in leading.followers.items():
            is_behind = progress.fetch_offset < partition.high_watermark
            if node_id not in leading.maximal_isr and not is_behind:
                history.reach("an in-sync set is asked for while one is pending")
    original(partition)


@observer(LeaderState, "propose")
def _propose(history: History, original: Any, leading: Any, *arguments: Any) -> Any:
    proposed = original(leading, *arguments)
    history.on_proposed(int(leading.node_id), sorted(proposed.nodes - set(leading.isr)))
    return proposed


@observer(LeaderState, "note_candidate")
def _note_candidate(history: History, original: Any, leading: Any, *arguments: Any) -> None:
    before = len(leading.joining)
    original(leading, *arguments)
    if len(leading.joining) > before:
        history.reach("a candidate holds the high watermark back")


@observer(LeaderState, "committed_end")
def _committed_end(history: History, original: Any, leading: Any, leader_end: int) -> Any:
    if len(leading.isr) < leading.min_in_sync_replicas:
        history.reach("the in-sync set is smaller than it must be")
    return original(leading, leader_end)


@observer(partition_module, "truncation_offset")
def _truncation_offset(
    history: History, original: Any, epochs: Any, log_end: int, diverging: Any
) -> Any:
    if epochs.end_offset_for(diverging.epoch)[0] != diverging.epoch:
        history.reach("a diverging follower lacks the leader's epoch")
    return original(epochs, log_end, diverging)


# ---- logs


@observer(LogSegment, "truncate")
def _truncate_segment(
    history: History, original: Any, segment: LogSegment, position: int, end: int
) -> Any:
    last = segment.offset_index.last
    if last is not None and last[0] + segment.base_offset >= end:
        history.reach("a truncation below an index entry")
    return original(segment, position, end)


@observer(PartitionLog, "truncate_to")
def _truncate_log(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    if offset < log.recovery_point and offset < log.log_end_offset:
        history.reach("a truncation below what an fsync covered")
    original(log, offset)


@observer(LogDirectories, "place")
def _place(
    history: History,
    original: Any,
    every: LogDirectories,
    topic: str,
    index: int,
    assigned: UUID,
    *rest: Any,
    **named: Any,
) -> LogDirectory | None:
    found: LogDirectory | None = original(every, topic, index, assigned, *rest, **named)
    if found is None:
        history.reach("a replica may be in a log directory that has failed")
        if assigned == UNASSIGNED_DIRECTORY:
            history.reach("one that is assigned to none may be in a log directory that has failed")
    return found


@observer(LogDirectory, "_lower_checkpoints")
def _lower_checkpoints(
    history: History, original: Any, directory: LogDirectory, key: Any, offset: int
) -> None:
    if directory._recovery_points.get(key, 0) > offset:
        history.reach("a truncation below a checkpoint")
    original(directory, key, offset)


@observer(LeaderEpochCache, "truncate_from_end")
def _truncate_epochs(history: History, original: Any, cache: LeaderEpochCache, end: int) -> None:
    if cache._starts and cache._starts[-1] >= end:
        history.reach("a truncation removes a leader epoch")
    original(cache, end)


@observer(LeaderEpochCache, "extend_back")
def _extend_back(
    history: History, original: Any, cache: LeaderEpochCache, start: int, batches: Any
) -> None:
    before = cache.entries
    original(cache, start, batches)
    if cache.entries != before:
        history.reach("a start finds leader epochs that begin above its log")


@observer(PartitionLog, "finish_flush")
def _finish_flush(history: History, original: Any, log: PartitionLog, flush: Any) -> Any:
    if flush.truncations != log._truncations:
        history.reach("an fsync ends after a truncation")
    return original(log, flush)


@observer(partition_log, "removable_segments")
def _removable_segments(
    history: History, original: Any, segments: Any, config: Any, **named: Any
) -> Any:
    found = original(segments, config, **named)
    if named["high_watermark"] < named["log_end_offset"]:
        everything = original(
            segments, config, **named | {"high_watermark": named["log_end_offset"]}
        )
        if len(everything) > len(found):
            history.reach("retention would remove what is not committed")
    return found


@observer(ProducerStates, "check")
def _check_producer(history: History, original: Any, *arguments: Any) -> Any:
    try:
        found = original(*arguments)
    except ApiError as error:
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            history.reach("a former producer epoch writes")
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            history.reach("a sequence has a gap")
        raise
    if found is not None:
        history.reach("a duplicate batch is recognised")
    return found


@observer(EarlierRequests, "refusal")
def _refuse_later_request(history: History, original: Any, *arguments: Any) -> Any:
    refusal = original(*arguments)
    code = None if refusal is None else refusal.code
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        history.reach("a request follows one that came before its leader led")
    elif code is ErrorCode.NOT_ENOUGH_REPLICAS:
        history.reach("a request follows one that lacked replicas")
    return refusal


# ---- controllers, coordinators, sessions


@observer(heartbeat, "upgrade")
def _upgrade(history: History, original: Any, step: Any, classic: Any) -> None:
    original(step, classic)
    if classic.members:
        history.reach("a classic group with members becomes a consumer group")


@observer(leaving, "downgrade")
@observer(classic_members, "downgrade")
def _downgrade(history: History, original: Any, *arguments: Any) -> None:
    original(*arguments)
    history.reach("a consumer group with members becomes a classic one")


_REFUSALS = {
    ErrorCode.FENCED_LEADER_EPOCH: "the controller refuses a former leader epoch",
    ErrorCode.INVALID_UPDATE_VERSION: "the controller refuses a former partition epoch",
}


@observer(alter_partition, "_epoch_error")
def _epoch_error(history: History, original: Any, partition: Any, asked: Any) -> Any:
    error = original(partition, asked)
    if error in _REFUSALS:
        history.reach(_REFUSALS[error])
    if history.is_former_controller():
        history.reach("a former controller decides what a leader asks for")
    return error


@observer(alter_partition, "_is_eligible")
def _is_eligible(history: History, original: Any, brokers: Any, partition: Any, state: Any) -> Any:
    broker = brokers.get(state.broker_id)
    if broker is not None and state.broker_epoch not in (-1, broker.epoch):
        history.reach("the controller refuses a former registration")
    return original(brokers, partition, state)


@observer(elections, "is_up_to_date")
def _is_up_to_date(history: History, original: Any, candidate: Any, own: Any) -> Any:
    is_so = original(candidate, own)
    if not is_so:
        history.reach("a vote is asked for by a log that lacks records")
    return is_so


@observer(elections, "may_grant")
def _may_grant(
    history: History, original: Any, replica: Any, candidate: Any, *rest: Any, **named: Any
) -> Any:
    voted = replica.durable.voted
    if not named.get("is_pre_vote") and voted is not None and voted != candidate:
        history.reach("a second candidate asks in an epoch")
    return original(replica, candidate, *rest, **named)


@observer(raft_leading, "update_high_watermark")
@observer(fetching, "update_high_watermark")
def _update_high_watermark(history: History, original: Any, replica: Any, leader: Any) -> Any:
    has_moved = original(replica, leader)
    ends = sorted(
        (
            replica.log.flushed_end
            if voter.key.matches(replica.key)
            else getattr(raft_leading.progress_of(leader, voter.key), "end_offset", -1)
            for voter in replica.voters
        ),
        reverse=True,
    )
    reached = ends[replica.voters.majority - 1] if ends else -1
    if replica.high_watermark < reached <= leader.epoch_start_offset:
        history.reach("a leader of a former epoch has a record on a majority")
    return has_moved


@observer(offsets, "_check_commit")
def _check_commit(history: History, original: Any, group: Any, request: Any, **named: Any) -> None:
    try:
        original(group, request, **named)
    except ApiError as error:
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            history.reach("a commit comes while its group rebalances")
        raise


@observer(consumer_step, "reconcile")
def _reconcile(history: History, original: Any, *arguments: Any) -> Any:
    member = original(*arguments)
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        history.reach("a partition waits until its former owner gives it up")
    return member


@observer(FetchSessions, "open")
def _open_session(history: History, original: Any, *arguments: Any, **named: Any) -> Any:
    found = original(*arguments, **named)
    if found[1] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
        history.reach("a fetch session is not known")
    return found
