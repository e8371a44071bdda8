"""Who leads, and who is in sync, after each decision of the controller: the rules once more.

KIP-841 and KIP-966: a broker that is fenced, leaves or comes back leads nothing and is in sync
nowhere; one that may have lost records is not eligible either; one that left an in-sync set that
was too small is.
"""

from typing import Any

from headrace_broker.metadata import partition_change
from headrace_broker.metadata.brokers import liveness
from headrace_broker.metadata.entities import merge_partition
from headrace_broker.metadata.records import PartitionChangeRecord
from headrace_broker.raft import elections, fetching, leading
from headrace_broker.raft.log_index import LogIndex
from headrace_broker.server.api import broker_registration
from simulation.history import History
from simulation.observing import observer


@observer(partition_change, "_settle_leader")
def _settle_leader(history: History, original: Any, before: Any, target: Any, *rest: Any) -> Any:
    """Eligible is who has all that is committed, and nobody who may have lost some of it."""
    replicas, _, rules = rest
    after = original(before, target, *rest)
    if after.is_unclean:
        return after
    if target.lost & {*after.isr, *after.elr} or after.leader in target.lost:
        history.violate("eligible", f"{sorted(target.lost)} lost records: {after}")
    if len(after.isr) < rules.min_isr:
        once = {*before.isr, *before.eligible_leader_replicas} & set(replicas)
        missing = once - {*after.isr, *after.elr} - target.lost
        if missing:
            history.violate("eligible", f"{sorted(missing)} of {before} are forgotten: {after}")
    elif after.elr:
        history.violate("eligible", f"enough are in sync: {after}")
    return after


@observer(partition_change, "_settle_assignment")
def _settle_assignment(history: History, original: Any, before: Any, target: Any, isr: Any) -> Any:
    """A reassignment is over once all of the new replicas are in sync."""
    assignment, in_sync = original(before, target, isr)
    adding = before.adding_replicas if target.adding is None else target.adding
    removing = before.removing_replicas if target.removing is None else target.removing
    is_over = (adding or removing) and not (assignment.adding or assignment.removing)
    if is_over and not set(assignment.replicas) <= set(in_sync):
        history.violate("reassigned-too-early", f"{assignment} with {in_sync} in sync: {before}")
    return assignment, in_sync


@observer(partition_change, "_record")
def _record(
    history: History, original: Any, topic_id: Any, index: Any, before: Any, *rest: Any
) -> Any:
    """Who has no replica any more is told so by another leader epoch, which a leader's name is."""
    record = original(topic_id, index, before, *rest)
    _, (assignment, _) = rest
    is_removed = not set(before.replicas) <= set(assignment.replicas)
    if is_removed and (record is None or record.leader is None):
        history.violate("removed-replica-goes-on", f"{before} becomes {record}")
    return record


def _check_gone(
    history: History, image: Any, node_id: Any, records: Any, *, lost: bool, why: str
) -> None:
    """A broker leads nothing and is in no in-sync set once these records are applied."""
    changed: dict[tuple[Any, int], Any] = {}
    for record in records:
        if isinstance(record, PartitionChangeRecord):
            key = (record.topic_id, int(record.partition_id))
            before = changed.get(key)
            if before is None:
                before = image.topics_by_id[record.topic_id].partitions[record.partition_id]
            changed[key] = merge_partition(before, record)
    for topic_id, topic in image.topics_by_id.items():
        for index, partition in topic.partitions.items():
            after = changed.get((topic_id, int(index)), partition)
            is_left = node_id in after.isr or after.leader == node_id
            if is_left or (lost and node_id in after.eligible_leader_replicas):
                history.violate(
                    "stays-in-sync", f"{topic.name}-{index}: broker {node_id} {why}: {after}"
                )


@observer(liveness, "_fencing")
def _fencing(history: History, original: Any, image: Any, broker: Any, policy: Any) -> Any:
    records = original(image, broker, policy)
    _check_gone(history, image, broker.node_id, records, lost=False, why="is fenced")
    return records


@observer(liveness, "_shutting_down")
def _shutting_down(history: History, original: Any, image: Any, broker: Any, policy: Any) -> Any:
    records = original(image, broker, policy)
    _check_gone(history, image, broker.node_id, records, lost=False, why="shuts down")
    return records


@observer(broker_registration, "decide_register_broker")
def _register(
    history: History, original: Any, image: Any, registration: Any, *rest: Any, **named: Any
) -> Any:
    """Whoever does not name the epoch that its clean stop ended may have lost records."""
    decision = original(image, registration, *rest, **named)
    known = image.brokers.get(registration.node_id)
    if decision.records:
        is_clean = known is not None and registration.previous_broker_epoch == known.epoch
        _check_gone(
            history,
            image,
            registration.node_id,
            decision.records,
            lost=not is_clean,
            why="has a new process",
        )
    return decision


# ---- the quorum


@observer(elections, "_decide_vote")
def _decide_vote(history: History, original: Any, replica: Any, asked: Any, *rest: Any) -> bool:
    """Note who gave whom a vote, and in which epoch; a pre-vote gives none."""
    is_granted: bool = original(replica, asked, *rest)
    if is_granted and not asked.pre_vote:
        votes = history.votes.setdefault((asked.replica_epoch, asked.replica_id), set())
        votes.add(int(replica.key.node_id))
    return is_granted


@observer(leading, "become_leader")
def _become_leader(history: History, original: Any, replica: Any, ballot: Any) -> None:
    """Who leads an epoch has the votes of a majority, given in this very epoch (Raft 5.2)."""
    own = int(replica.key.node_id)
    votes = {own, *history.votes.get((int(replica.epoch), own), ())}
    if len(votes.intersection(replica.voters.ids)) < replica.voters.majority:
        history.violate(
            "leads-without-votes",
            f"node {own} leads epoch {replica.epoch} with the votes of {sorted(votes)}",
        )
    original(replica, ballot)


@observer(leading, "update_high_watermark")
@observer(fetching, "update_high_watermark")
def _update_high_watermark(history: History, original: Any, replica: Any, leader: Any) -> bool:
    """A leader commits by counting only with a record of its own epoch (Raft 5.4.2)."""
    has_moved: bool = original(replica, leader)
    if has_moved and replica.high_watermark <= leader.epoch_start_offset:
        history.violate(
            "commits-of-a-former-epoch",
            f"{replica.high_watermark} in epoch {leader.epoch}, which began at "
            f"{leader.epoch_start_offset}",
        )
    return has_moved


@observer(LogIndex, "truncate")
def _truncate(history: History, original: Any, index: LogIndex, end_offset: Any) -> None:
    """No fsync that is under way covers what follows a truncation."""
    original(index, end_offset)
    ends = [index.flushed_end, *index._tickets.values()]
    if max(ends) > end_offset:
        history.violate("not-on-disk", f"the metadata log was cut at {end_offset}: {ends}")
