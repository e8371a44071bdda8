"""EndTxn: decides a transaction's outcome, and completes it once all markers are written.

With version 2 the epoch moves when the outcome is decided, so an EndTxn with the previous epoch is
a retry and never concerns the next transaction (KIP-890). PF: PRODUCER_FENCED, ITS:
INVALID_TXN_STATE.

    epoch          │ abort: retry │ abort: current │ commit: retry │ commit: current
    Empty          │ PF           │ bumps          │ PF            │ ITS
    CompleteAbort  │ NONE         │ bumps          │ ITS           │ ITS
    CompleteCommit │ ITS          │ bumps          │ NONE          │ ITS

Before version 2, Complete* accepts only its own outcome again; every other EndTxn gets ITS. While
markers are written, all requests must wait, also those with the next epoch, which the client has
had since the decision.
"""

from headrace_broker.coordinator.transactions.shard import (
    Circumstances,
    TransactionDecision,
    TransactionShard,
    check_transactional_id,
    concurrent_transactions,
    fenced,
    record_of,
    wrong_producer,
)
from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import (
    LAST_EPOCH,
    Identity,
    Transaction,
    TransactionVersion,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NO_PRODUCER_ID


def decide_end(
    shard: TransactionShard,
    transactional_id: str,
    identity: Identity,
    circumstances: Circumstances,
    client_version: TransactionVersion,
    *,
    commits: bool,
) -> TransactionDecision[Identity]:
    """Commit or abort; the response is the producer's next identity."""
    check_transactional_id(transactional_id)
    found = shard.find(transactional_id)
    bumps = client_version.bumps_epochs
    is_retry = bumps and _is_retry(found, identity)
    if identity.producer_id != found.producer_id and not is_retry:
        raise wrong_producer(found)
    shard.check_not_pending(transactional_id)
    _check_epoch(found, identity, is_retry=is_retry)
    if found.status.is_prepared:
        raise concurrent_transactions()
    if found.status is not TransactionStatus.ONGOING:
        if _is_done(found, commits=commits) and (is_retry or not bumps):
            return TransactionDecision(response=found.identity if bumps else Identity())
        if is_retry or commits or not bumps:
            raise _wrong_state(found, commits=commits)
    next_id = NO_PRODUCER_ID
    if bumps and found.is_exhausted:
        next_id = circumstances.draw_producer_id()
    following = found.prepare(
        circumstances.now_ms, client_version, commits=commits, next_producer_id=next_id
    )
    # The client continues as if all markers were written; until they are, its requests wait.
    answer = following.complete(circumstances.now_ms).identity if bumps else Identity()
    return TransactionDecision(response=answer, record=record_of(following))


def _is_retry(found: Transaction, identity: Identity) -> bool:
    """Whether this EndTxn repeats one that moved the epoch, or the producer id.

    An EndTxn of an older client moves neither: a producer with the previous epoch was fenced.
    """
    if not found.client_version.bumps_epochs:
        return False
    if found.producer_id == identity.producer_id:
        return found.epoch == identity.epoch + 1
    return (
        found.previous_producer_id == identity.producer_id
        and identity.epoch == LAST_EPOCH
        and found.epoch == 0
    )


def _check_epoch(found: Transaction, identity: Identity, *, is_retry: bool) -> None:
    if is_retry:
        # An open or empty transaction began after the one that the retry is about.
        if found.status.is_prepared or found.status in _COMPLETE:
            return
        raise fenced(found)
    if identity.epoch != found.epoch:
        raise fenced(found)


_COMPLETE = frozenset({TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT})


def _is_commit(found: Transaction) -> bool:
    return found.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)


def _is_done(found: Transaction, *, commits: bool) -> bool:
    return found.status in _COMPLETE and _is_commit(found) == commits


def _wrong_state(found: Transaction, *, commits: bool) -> ApiError:
    verb = "commit" if commits else "abort"
    return ApiError(
        ErrorCode.INVALID_TXN_STATE, f"cannot {verb} a transaction in state {found.status.label}"
    )


def decide_complete(
    shard: TransactionShard, transactional_id: str, circumstances: Circumstances
) -> TransactionDecision[None] | None:
    """Complete a transaction whose markers are all written; None if it is not prepared now."""
    left = shard.unmarked.get(transactional_id)
    if left is None or left or transactional_id in shard.pending:
        return None
    found = shard.transactions[transactional_id]
    return TransactionDecision(
        response=None, record=record_of(found.complete(circumstances.now_ms))
    )
