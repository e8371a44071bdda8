"""Decisions judged by the rule that they stand under, stated a second time.

What a decision may not have looked at is compared with what was true when it was made: a wrong one
shows at once, whether or not the run goes on to lose a record by it.
"""

from typing import Any

from headrace_broker.coordinator import offsets
from headrace_broker.log import compaction
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.metadata.alter_partition import _Alteration
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import elections
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.api import alter_partition
from headrace_broker.server.follower.replica_fetcher import ReplicaFetcher
from headrace_broker.server.partitions.isr_updates import IsrUpdates
from headrace_broker.server.partitions.partition import Partition
from simulation.history import History, asked_set
from simulation.observing import observer


@observer(_Alteration, "alter")
def _alter(history: History, original: Any, alteration: Any, topic_id: Any, asked: Any) -> Any:
    """AlterPartition holds for the epochs that its leader knows (KIP-497, KIP-841, KIP-903)."""
    answer = original(alteration, topic_id, asked)
    is_forged = asked_set(topic_id, asked) in history.forged
    if answer.error_code == ErrorCode.NOT_CONTROLLER and not is_forged:
        # A leader asks the controller of the newest epoch that it knows of, with what it knew
        # before; and an active controller has applied all that was committed before its epoch.
        history.violate("leader-ahead", f"{asked} is ahead of {alteration._image.offset}")
    if answer.error_code not in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
        members = frozenset(state.broker_id for state in asked.new_isr_with_epochs)
        # A refusal for an epoch that is over says nothing of what an earlier request has done.
        if answer.error_code == ErrorCode.INELIGIBLE_REPLICA:
            history.refused.add(
                (alteration._leader, asked.leader_epoch, asked.partition_epoch, members)
            )
        return answer
    image = alteration._image
    partition = image.topics_by_id[topic_id].partitions[asked.partition_index]
    known = (alteration._leader, asked.leader_epoch, asked.partition_epoch)
    true = (partition.leader, partition.leader_epoch, partition.partition_epoch)
    if known != true:
        history.violate("alter-partition", f"{known} was taken, {true} is so")
    for state in asked.new_isr_with_epochs:
        broker = image.brokers.get(state.broker_id)
        if broker is None or broker.fenced or state.broker_epoch not in (-1, broker.epoch):
            history.violate("alter-partition", f"{state} was taken, {broker} is so")
        elif state.broker_id not in partition.isr and broker.in_controlled_shutdown:
            history.violate("alter-partition", f"{state} joins while it leaves")
    return answer


@observer(alter_partition, "decide_alter_partition")
def _decide_alter_partition(
    history: History, original: Any, image: Any, request: Any, policy: Any
) -> Any:
    """Only the registered process of a broker changes in-sync sets."""
    decision = original(image, request, policy)
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        history.violate(
            "alter-partition", f"broker {request.broker_id} of {request.broker_epoch}: {broker}"
        )
    return decision


@observer(Partition, "check_leader")
def _check_leader(history: History, original: Any, partition: Partition, client_epoch: int) -> None:
    """Only a leader serves, in the epoch that its client knows (KIP-320)."""
    original(partition, client_epoch)
    if partition.leading is None or client_epoch not in (-1, partition.leader_epoch):
        history.violate(
            "leader-epoch",
            f"{partition.topic}-{partition.index} serves epoch {client_epoch} in "
            f"{partition.leader_epoch}",
        )


@observer(LeaderState, "commit_isr")
def _commit_isr(history: History, original: Any, leading: Any, isr: Any, epoch: int) -> Any:
    """No older in-sync set takes the place of a newer one."""
    before = leading.partition_epoch
    is_taken = original(leading, isr, epoch)
    if leading.partition_epoch < before:
        history.violate("in-sync-set-went-back", f"from {before} to {leading.partition_epoch}")
    return is_taken


@observer(IsrUpdates, "_take_one")
def _take_one(
    history: History, original: Any, updates: IsrUpdates, partition: Any, update: Any, data: Any
) -> bool:
    """Count refusals that say nothing of what is asked for: its epoch is over."""
    is_pending = partition.leading is not None and partition.leading.pending is update
    if is_pending and data.error_code == ErrorCode.INVALID_UPDATE_VERSION:
        history.reach("a refused in-sync set may have been applied")
    is_final: bool = original(updates, partition, update, data)
    return is_final


@observer(LeaderState, "withdraw")
def _withdraw(history: History, original: Any, leading: Any, update: Any) -> None:
    """An in-sync set counts until the controller has refused it: it may have been applied."""
    key = (leading.node_id, update.leader_epoch, update.partition_epoch, update.nodes)
    if leading.pending is update and key not in history.refused:
        history.violate("in-sync-set-given-up", f"broker {leading.node_id}: {update}")
    original(leading, update)


@observer(LeaderState, "record_fetch")
def _record_fetch(
    history: History,
    original: Any,
    leading: Any,
    node_id: Any,
    broker_epoch: Any,
    fetch_offset: int,
    *arguments: Any,
) -> Any:
    """A process does not count after its successor has fetched (KIP-903), which has what it says.

    Also where that is less than its predecessor, or the same process, had: records may be lost.
    """
    progress = leading.followers.get(node_id)
    known = -1 if progress is None else progress.broker_epoch
    is_taken = original(leading, node_id, broker_epoch, fetch_offset, *arguments)
    if is_taken and progress.fetch_offset != fetch_offset:
        history.violate(
            "progress", f"broker {node_id} has {fetch_offset}, {progress.fetch_offset} counts"
        )
    if is_taken and broker_epoch < known:
        history.violate(
            "former-process-counts", f"broker {node_id} of {broker_epoch} after {known}"
        )
    return is_taken


@observer(LeaderState, "may_join")
def _may_join(
    history: History,
    original: Any,
    leading: Any,
    node_id: Any,
    high_watermark: int,
    eligible: Any,
) -> Any:
    """Who joins has all that is committed, and what the leader had when its epoch began."""
    joins = original(leading, node_id, high_watermark, eligible)
    needed = max(high_watermark, leading.epoch_start_offset)
    if joins and leading.followers[node_id].fetch_offset < needed:
        history.violate("joins-too-early", f"broker {node_id} joins without {needed}")
    return joins


@observer(ProducerStates, "check")
def _check_producer(
    history: History, original: Any, states: Any, header: Any, *arguments: Any
) -> Any:
    """An epoch does not go back, and a sequence has no gap (KIP-98, KIP-360)."""
    state = states.get(header.producer_id)
    found = original(states, header, *arguments)
    if state is None or found is not None or header.base_sequence < 0:
        return found
    first, last = header.base_sequence, state.last_sequence
    wanted = last + 1 if header.producer_epoch == state.epoch else 0
    is_wrapped = first == 0 and last == 2**31 - 1
    if header.producer_epoch < state.epoch or (first != wanted and not is_wrapped and last >= 0):
        history.violate(
            "producer",
            f"sequence {first} of epoch {header.producer_epoch} is taken after {last} of epoch "
            f"{state.epoch}",
        )
    return found


@observer(offsets, "_check_commit")
def _check_commit(history: History, original: Any, group: Any, request: Any, **named: Any) -> None:
    """A member commits in its group's generation alone."""
    original(group, request, **named)
    generation = request.generation_id_or_member_epoch
    if generation < 0:
        return
    if generation != group.generation or request.member_id not in group.members:
        history.violate(
            "zombie-commit",
            f"{request.member_id} of generation {generation} commits in {group.generation} of "
            f"{sorted(group.members)}",
        )


@observer(elections, "may_grant")
def _may_grant(
    history: History, original: Any, replica: Any, candidate: Any, end: Any, **named: Any
) -> Any:
    """One vote an epoch, for a log that is as far (Raft 5.2 and 5.4.1)."""
    own, voted = replica.log.end, replica.durable.voted
    is_granted = original(replica, candidate, end, **named)
    if not is_granted:
        return is_granted
    is_again = voted == candidate
    if (end.epoch, end.offset) < (own.epoch, own.offset) and not is_again:
        history.violate("vote", f"{candidate} with {end} is voted for by a log with {own}")
    if not named["is_pre_vote"] and voted is not None and not is_again:
        history.violate("vote", f"{candidate} is voted for after {voted}")
    return is_granted


@observer(ReplicaFetcher, "_send")
def _send_fetch(
    history: History, original: Any, fetcher: ReplicaFetcher, connection: Any, round_: Any
) -> None:
    """A follower vouches for what is on its disk alone (flush.messages)."""
    for key, position in round_.dirty:
        partition = fetcher.partitions._partitions.get(key)
        # What a request of a former leader epoch says is refused wherever it arrives.
        counts = partition is not None and position.leader_epoch == partition.leader_epoch
        if counts and position.fetch_offset > partition.durable_end:
            history.violate(
                "vouched-before-fsync",
                f"{partition.topic}-{partition.index} is fetched from {position.fetch_offset}, "
                f"on disk is what is below {partition.durable_end}",
            )
    original(fetcher, connection, round_)


@observer(compaction, "_cleanable_segments")
def _cleanable_segments(history: History, original: Any, log: Any, now_ms: Any) -> Any:
    """What is not committed, or not decided, is not compacted."""
    segments = original(log, now_ms)
    bound = min(log.high_watermark, log.last_stable_offset)
    if segments and compaction._next_base(log, segments[-1]) > bound:
        history.violate("compacted-too-far", f"{log.directory.name} above {bound}")
    return segments
