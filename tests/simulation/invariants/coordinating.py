"""What coordinators decide for members and producers, and what they answer before: the rules again.

KIP-848: a partition has one owner, and who commits is a member in its epoch. KIP-98 and KIP-890:
epochs move where they must. What a coordinator tells of is in its log, and committed.
"""

from typing import Any

from headrace_broker.coordinator import offsets
from headrace_broker.coordinator.consumer import (
    classic_members,
    fencing,
    heartbeat,
    leaving,
    reconcile,
)
from headrace_broker.coordinator.consumer.group import NO_OWNER
from headrace_broker.coordinator.records import OffsetRecord, read_record
from headrace_broker.coordinator.shard import session_key
from headrace_broker.coordinator.states import GroupState
from headrace_broker.coordinator.transactions import init_producer
from headrace_broker.coordinator.transactions.transaction import LAST_EPOCH, Transaction
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.cleaner import CleanerRules
from headrace_broker.protocol.batch import iterate_records
from headrace_broker.server.groups import group_driver, group_transactions
from headrace_broker.server.groups.group_driver_log import PartitionOffsetsLog
from headrace_broker.server.groups.group_driver_shard import ShardDriver, ShardStatus
from headrace_broker.server.shares.state_shard import StateShardDriver
from headrace_broker.server.transactions import shard_driver
from headrace_broker.server.transactions.shard_driver import ShardDriver as TransactionDriver
from headrace_broker.server.transactions.shard_driver import Status
from simulation.history import History
from simulation.observing import observer

_NONE: frozenset[int] = frozenset()

# ---- members of consumer groups


@observer(fencing, "_check_epoch")
def _check_epoch(history: History, original: Any, group: Any, member_id: str, epoch: int) -> None:
    """Who commits or reads offsets of a group is a member in its epoch."""
    original(group, member_id, epoch)
    member = group.members.get(member_id)
    if member is None or member.epoch != epoch:
        history.violate("zombie-commit", f"{member_id} of epoch {epoch} in {group}: {member}")


@observer(heartbeat, "_check_epoch")
def _check_heartbeat(history: History, original: Any, member: Any, request: Any) -> None:
    """Who beats is in its epoch, or has not heard of it, and owns nothing that it may not."""
    original(member, request)
    epoch, owned = request.member_epoch, request.topic_partitions
    if epoch in (0, member.epoch):
        return
    is_kept = owned is not None and all(
        set(item.partitions) <= member.assigned.get(item.topic_id, _NONE) for item in owned
    )
    if epoch > member.epoch or epoch != member.previous_epoch or not is_kept:
        history.violate("zombie-member", f"{member} goes on in {epoch} with {owned}")


@observer(offsets, "check_fetch")
def _check_fetch(history: History, original: Any, group: Any, member_id: Any, epoch: int) -> None:
    """Who reads a group's offsets as a member is one, in its epoch."""
    known = group.members.get(member_id)
    if epoch >= 0 and (known is None or known.epoch != epoch):
        history.reach("who was a member reads a consumer group's offsets")
    original(group, member_id, epoch)
    if epoch >= 0 and (known is None or known.epoch != epoch):
        history.violate("zombie-reads", f"{member_id} of epoch {epoch}: {known}")


@observer(reconcile, "_next")
def _next(history: History, original: Any, member: Any, goal: Any) -> Any:
    """A member gets what nobody owns, and goes on once it has given up what is not its own."""
    after = original(member, goal)
    said = {}
    for item in goal.owned or ():
        said[item.topic_id] = said.get(item.topic_id, _NONE) | frozenset(item.partitions)
    for topic_id, items in after.assigned.items():
        for index in items - member.assigned.get(topic_id, _NONE):
            owner = goal.owner_of(topic_id, index)
            if owner not in (NO_OWNER, member.member_id):
                history.violate("owned-twice", f"{member.member_id} gets {index}, {owner} has it")
    if after.epoch == member.epoch:
        return after
    for topic_id, held in (*member.assigned.items(), *member.revoking.items()):
        given_up = held - goal.target.get(topic_id, _NONE)
        keeps = given_up if goal.owned is None else given_up & said.get(topic_id, _NONE)
        if keeps:
            history.violate(
                "keeps-what-it-lost",
                f"{member.member_id} goes on to {after.epoch} with {sorted(keeps)}",
            )
    return after


@observer(classic_members, "downgrade")
@observer(leaving, "downgrade")
def _downgrade(history: History, original: Any, step: Any, *rest: Any) -> None:
    """Who is left in a group that goes back to the classic protocol has to join again."""
    original(step, *rest)
    group = step.shard.groups.get(step.group.group_id)
    if group is None or (group.members and group.state is not GroupState.PREPARING_REBALANCE):
        history.violate("no-rebalance", f"{step.group.group_id} went back and is {group}")


@observer(group_driver, "decide_txn_commit")
def _decide_txn_commit(
    history: History, original: Any, shard: Any, config: Any, request: Any, *rest: Any
) -> Any:
    """A transaction commits offsets for a member of the present generation (KIP-447)."""
    decision = original(shard, config, request, *rest)
    group = shard.groups.get(request.group_id)
    if request.generation_id >= 0 and request.group_id not in shard.consumer_groups:
        known = None if group is None else group.generation
        is_member = group is not None and request.member_id in group.members
        if known != request.generation_id or not is_member:
            history.violate(
                "zombie-commit",
                f"{request.member_id} of generation {request.generation_id} commits in {known}",
            )
    return decision


# ---- what is told is committed


@observer(PartitionOffsetsLog, "append")
async def _append(history: History, original: Any, log: PartitionOffsetsLog, batch: bytes) -> None:
    """What depends on a record is answered once the record is committed."""
    end = log.end_offset
    await original(log, batch)
    if log._partition.high_watermark <= end:
        history.violate(
            "told-before-commit",
            f"{log._partition.topic}-{log._partition.index}: what was appended at {end}, "
            f"{log._partition.high_watermark} is committed",
        )


@observer(ShardDriver, "_carry_out")
def _carry_out(
    history: History, original: Any, driver: ShardDriver, decision: Any, records: Any
) -> None:
    """No answer overtakes the records that were decided before it."""
    waits = bool(driver._unwritten)
    asked = [ticket for ticket, _ in decision.replies if ticket in driver._waiting]
    original(driver, decision, records)
    told = [ticket for ticket in asked if ticket not in driver._waiting]
    if told and (waits or records):
        history.violate(
            "told-before-commit",
            f"__consumer_offsets-{driver.shard.partition}: {decision.replies} before "
            f"{len(driver._unwritten)} writes",
        )


@observer(ShardDriver, "_load")
async def _load(history: History, original: Any, driver: ShardDriver) -> None:
    """A coordinator that takes over times all members' sessions: one may have died meanwhile."""
    await original(driver)
    if driver.status is not ShardStatus.ACTIVE:
        return
    shard = driver.shard
    for group in (*shard.groups.values(), *shard.consumer_groups.values()):
        for member_id in group.members:
            if session_key(group.group_id, member_id) not in driver._timers:
                history.violate(
                    "member-for-ever", f"nobody waits for {member_id} of {group.group_id}"
                )


@observer(ShardDriver, "_reload")
def _reload(history: History, original: Any, driver: ShardDriver, unwritten: Any) -> None:
    """Memory that is ahead of the log is not served."""
    is_ahead = unwritten is driver._unwritten and driver.status is not ShardStatus.CLOSED
    original(driver, unwritten)
    if is_ahead and driver.status is ShardStatus.ACTIVE:
        history.violate(
            "ahead-of-its-log", f"__consumer_offsets-{driver.shard.partition} goes on from memory"
        )


@observer(TransactionDriver, "_replay")
async def _replay(history: History, original: Any, driver: TransactionDriver) -> None:
    """A coordinator serves once all that it has read is committed."""
    partition: Any = driver._log._partition  # type: ignore[attr-defined]  # the only adapter
    before, end = driver.status, partition.log.log_end_offset
    await original(driver)
    is_served = before is not driver.status and driver.status is Status.ACTIVE
    if is_served and partition.high_watermark < end:
        history.violate(
            "told-before-commit",
            f"{partition.topic}-{partition.index} is served up to {end}, "
            f"{partition.high_watermark} is committed",
        )


@observer(group_transactions, "replay_batches")
def _replay_batches(history: History, original: Any, shard: Any, chunk: bytes) -> None:
    """What an open transaction commits is known to who loads the log (KIP-98)."""
    original(shard, chunk)
    open_ones: dict[int, set[tuple[str, tuple[str, int]]]] = {}
    for position, header in iterate_headers(chunk):
        if header.is_control:
            open_ones.pop(header.producer_id, None)
        elif header.is_transactional:
            offsets = open_ones.setdefault(header.producer_id, set())
            for record in iterate_records(chunk, position):
                found = None if record.key is None else read_record(record.key, record.value)
                if isinstance(found, OffsetRecord) and found.value is not None:
                    key = found.key
                    offsets.add((key.group, (key.topic, key.partition)))
    for producer_id, offsets in open_ones.items():
        for group, where in sorted(offsets):
            if where not in shard.pending_offsets.get(group, ()):
                history.violate("lost-pending-offset", f"{producer_id} has {where} for {group}")


@observer(group_transactions, "forget_transactional")
def _forget(history: History, original: Any, shard: Any, producer_id: Any, noted: Any) -> None:
    """What was refused is not pending, now or once what came after it is refused, too."""
    original(shard, producer_id, noted)
    refused = history.refused_offsets.setdefault(id(shard), [shard])
    refused += noted
    left: list[Any] = []
    for newest in shard.transactional._by_producer.get(producer_id, {}).values():
        pending = newest
        while pending is not None:
            left.append(pending)
            pending = pending.previous
    if any(each is one for each in left for one in refused):
        history.violate("pending-for-ever", f"what {producer_id} wrote was refused: {noted}")


# ---- transactions


@observer(shard_driver, "decide_timeout")
def _decide_timeout(
    history: History, original: Any, shard: Any, name: str, circumstances: Any
) -> Any:
    """Whoever takes too long is fenced: the abort has the next epoch."""
    found = shard.transactions.get(name)
    decision = original(shard, name, circumstances)
    if decision is not None and decision.record is not None:
        now = decision.record.transaction
        if now.identity == found.identity:
            history.violate("epoch-stays", f"{found} took too long, and is {now}")
    return decision


@observer(init_producer, "_next")
def _next_producer(
    history: History, original: Any, found: Any, timeout_ms: int, expected: Any, now: Any
) -> Any:
    """No producer has the epoch above the last one, which only fences."""
    following = original(found, timeout_ms, expected, now)
    if following.identity.epoch > LAST_EPOCH:
        history.violate("exhausted-epochs", f"{found} goes on as {following.identity}")
    return following


@observer(Transaction, "add")
def _add(history: History, original: Any, transaction: Transaction, *what: Any) -> Any:
    """A transaction's time counts from its beginning, whatever joins it later."""
    after = original(transaction, *what)
    if not transaction.status.is_idle and after.start_ms != transaction.start_ms:
        history.violate("transaction-begins-anew", f"{transaction} became {after}")
    return after


# ---- what goes


@observer(CleanerRules, "is_over")
def _is_over(history: History, original: Any, rules: CleanerRules, horizon: Any) -> bool:
    """Tombstones and markers stay while a replica is away: it would keep what they ended."""
    is_over: bool = original(rules, horizon)
    if is_over and (not rules.is_everywhere or horizon is None or rules.now_ms <= horizon):
        history.violate("compacted-away", f"a tombstone of {horizon}: {rules.is_everywhere}")
    return is_over


@observer(StateShardDriver, "prune")
async def _prune(history: History, original: Any, driver: StateShardDriver) -> None:
    """Share state is deleted below what each partition's newest snapshot needs, once committed."""
    log: Any = driver._log
    partition = log._partition
    start, is_committed = partition.log.log_start_offset, log.is_committed
    needed = min(driver.shard.snapshot_offsets.values(), default=partition.log.log_end_offset)
    await original(driver)
    if partition.log.log_start_offset > start and (
        not is_committed or partition.log.log_start_offset > needed
    ):
        history.violate(
            "share-state-pruned",
            f"{partition.topic}-{partition.index}: below {partition.log.log_start_offset}, "
            f"{needed} is needed, committed: {is_committed}",
        )
