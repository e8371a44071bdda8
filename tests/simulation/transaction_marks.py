"""The rare situations of transactions, counted: see `marks`."""

from typing import Any

from headrace_broker.coordinator import offsets
from headrace_broker.coordinator.transactions import end, expiry, init_producer
from headrace_broker.coordinator.transactions.shard import TransactionShard
from headrace_broker.coordinator.transactions.transaction import TransactionVersion
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.segments.transaction_index import TransactionIndex
from headrace_broker.log.verification import Verifications
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.groups import group_driver
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.transactions import coordinator, shard_driver
from headrace_broker.server.transactions.marker_sender import MarkerSender
from headrace_broker.server.transactions.shard_driver import ShardDriver, Status
from simulation.history import History
from simulation.observing import observer
from simulation.workloads.repeaters import BETWEEN, LATE

TV_2 = TransactionVersion.TV_2

# How many of 1,000 seeds of the mix must reach each.
TRANSACTION_MARKS: dict[str, int] = {
    "a fenced producer commits": 20,
    "a producer ends after an older client has had its id": 20,
    "a producer pauses in the middle of a transaction": 100,
    "a producer leaves its transaction open": 50,
    "a producer never hears whether it committed": 5,
    "a coordinator loads with an open transaction": 50,
    "a coordinator loads with a prepared transaction": 20,
    "a coordinator's append fails": 10,
    "a transition waits for the one before": 50,
    "an EndTxn is repeated": 20,
    "a fenced epoch ends a transaction": 20,
    "a timeout aborts": 50,
    "a transactional id expires": 20,
    "a marker is sent again": 20,
    "a marker is in the log already": 20,
    "a former coordinator's marker is refused": 50,
    "a verification is taken back": 3,
    "a leader takes over with an open transaction": 50,
    "a log has a marker above its high watermark when it is read": 20,
    "an open transaction is truncated": 5,
    "a marker is truncated": 5,
    "an aborted transaction's index entry is truncated": 3,
    "an offset waits for its transaction": 10,
    "a transaction commits offsets with a former generation": 10,
    LATE: 50,
    BETWEEN: 50,
}

# From the seeds on that change the level of transactions.
LEVEL_MARKS: dict[str, int] = {
    "the level of transactions is raised": 50,
    "the level of transactions is lowered": 50,
    "a transaction begun below version 2 ends under 2": 20,
    "a transaction begun under version 2 ends below 2": 20,
    "a transaction is ended by the coordinator under another version": 10,
    "a producer without bumps meets version 2": 30,
    "a producer with bumps meets a version below 2": 20,
    "a producer goes on with version 2": 30,
    "a producer goes on without version 2": 20,
    "a coordinator loads what was decided under another version": 5,
}

# What 60 seeds of the mix reach for sure.
FREQUENT = (
    "a fenced producer commits",
    "a coordinator loads with an open transaction",
    "an EndTxn is repeated",
    "a timeout aborts",
    "a marker is sent again",
    "a leader takes over with an open transaction",
)

# ---- coordinators


@observer(ShardDriver, "_replay")
async def _replay(history: History, original: Any, driver: ShardDriver) -> None:
    await original(driver)
    if driver.status is not Status.ACTIVE:
        return
    for transaction in driver.shard.transactions.values():
        if transaction.status.is_prepared:
            history.reach("a coordinator loads with a prepared transaction")
            if (transaction.client_version < TV_2) != (driver._host.version < TV_2):
                history.reach("a coordinator loads what was decided under another version")
        elif not transaction.status.is_idle:
            history.reach("a coordinator loads with an open transaction")


@observer(ShardDriver, "_settle")
def _settle(
    history: History, original: Any, driver: ShardDriver, record: Any, settled: Any, error: Any
) -> None:
    if error is not None:
        history.reach("a coordinator's append fails")
    original(driver, record, settled, error)


@observer(TransactionShard, "check_not_pending")
def _check_not_pending(history: History, original: Any, shard: Any, name: str) -> None:
    if name in shard.pending:
        history.reach("a transition waits for the one before")
    original(shard, name)


@observer(end, "_is_retry")
def _is_retry(history: History, original: Any, *arguments: Any) -> Any:
    is_so = original(*arguments)
    if is_so:
        history.reach("an EndTxn is repeated")
    return is_so


@observer(end, "_check_epoch")
def _check_epoch(history: History, original: Any, *arguments: Any, **named: Any) -> None:
    try:
        original(*arguments, **named)
    except ApiError:
        history.reach("a fenced epoch ends a transaction")
        raise


@observer(shard_driver, "decide_timeout")
def _decide_timeout(history: History, original: Any, *arguments: Any) -> Any:
    decision = original(*arguments)
    if decision is not None:
        history.reach("a timeout aborts")
    return decision


@observer(shard_driver, "decide_expiry")
def _decide_expiry(history: History, original: Any, *arguments: Any) -> Any:
    records = original(*arguments)
    if records:
        history.reach("a transactional id expires")
    return records


@observer(MarkerSender, "_send_again")
def _send_again(
    history: History, original: Any, sender: Any, shard: Any, transaction: Any, partitions: Any
) -> None:
    if shard.wants_markers(transaction):
        history.reach("a marker is sent again")
    original(sender, shard, transaction, partitions)


# ---- levels


@observer(coordinator, "decide_add")
def _decide_add(history: History, original: Any, *arguments: Any) -> Any:
    shard, name, _, _, now, _ = arguments
    known = shard.transactions.get(name)
    decision = original(*arguments)
    if decision.record is not None and known.status.is_idle:
        history.begun_at[name, decision.record.transaction.start_ms] = now.version
    return decision


@observer(coordinator, "decide_end")
def _decide_end(history: History, original: Any, *arguments: Any, **named: Any) -> Any:
    _, name, _, now, version = arguments
    decision = original(*arguments, **named)
    if decision.record is None:
        return decision
    begun = history.begun_at.get((name, decision.record.transaction.start_ms), now.version)
    if begun < TV_2 <= now.version:
        history.reach("a transaction begun below version 2 ends under 2")
        if version < TV_2:
            history.reach("a producer without bumps meets version 2")
    elif now.version < TV_2 <= begun:
        history.reach("a transaction begun under version 2 ends below 2")
    if now.version < TV_2 <= version:
        history.reach("a producer with bumps meets a version below 2")
    return decision


@observer(init_producer, "fence")
@observer(expiry, "fence")
def _fence(history: History, original: Any, transaction: Any, now: Any) -> Any:
    key = (transaction.transactional_id, transaction.start_ms)
    if (history.begun_at.get(key, now.version) < TV_2) != (now.version < TV_2):
        history.reach("a transaction is ended by the coordinator under another version")
    return original(transaction, now)


# ---- partitions


@observer(ProducerStates, "is_marked")
def _is_marked(history: History, original: Any, *arguments: Any) -> Any:
    try:
        is_so = original(*arguments)
    except ApiError as error:
        if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            history.reach("a former coordinator's marker is refused")
        raise
    if is_so:
        history.reach("a marker is in the log already")
    return is_so


@observer(ProducerStates, "check_marker")
def _check_marker(history: History, original: Any, *arguments: Any) -> None:
    try:
        original(*arguments)
    except ApiError as error:
        if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            history.reach("a former coordinator's marker is refused")
        raise


@observer(Verifications, "check")
def _check(history: History, original: Any, *arguments: Any) -> None:
    try:
        original(*arguments)
    except ApiError as error:
        if error.code is ErrorCode.INVALID_TXN_STATE:
            history.reach("a verification is taken back")
        raise


@observer(Partition, "_new_leader_state")
def _new_leader_state(history: History, original: Any, partition: Partition) -> Any:
    if partition.log.producers.ongoing:
        history.reach("a leader takes over with an open transaction")
    return original(partition)


@observer(PartitionLog, "recheck_markers")
def _recheck_markers(history: History, original: Any, log: PartitionLog) -> None:
    original(log)
    if log.producers.unreplicated:
        history.reach("a log has a marker above its high watermark when it is read")


@observer(PartitionLog, "truncate_to")
def _truncate_to(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    producers = log.producers
    if any(first >= offset for first in producers.ongoing.values()):
        history.reach("an open transaction is truncated")
    if any(done.last_offset >= offset for done in producers.unreplicated):
        history.reach("a marker is truncated")
    original(log, offset)


@observer(TransactionIndex, "truncate")
def _truncate_index(history: History, original: Any, index: TransactionIndex, offset: int) -> None:
    before = len(index.entries)
    original(index, offset)
    if len(index.entries) < before:
        history.reach("an aborted transaction's index entry is truncated")


# ---- groups


@observer(offsets, "read_offsets")
def _read_offsets(
    history: History, original: Any, shard: Any, request: Any, *rest: Any, **named: Any
) -> Any:
    answer = original(shard, request, *rest, **named)
    if any(
        partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        for topic in answer.topics
        for partition in topic.partitions
    ):
        history.reach("an offset waits for its transaction")
    return answer


@observer(group_driver, "decide_txn_commit")
def _decide_txn_commit(history: History, original: Any, *arguments: Any) -> Any:
    try:
        return original(*arguments)
    except ApiError as error:
        if error.code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            history.reach("a transaction commits offsets with a former generation")
        raise
