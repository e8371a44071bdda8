"""InitProducerId with a transactional id: the producer's next id and epoch.

A starting producer sends no identity, and fences its predecessor. A recovering one sends its own
(KIP-360): with the current epoch it gets a new one; the previous epoch means that the response was
lost.
"""

from headrace_broker.coordinator.transactions.shard import (
    Circumstances,
    TransactionDecision,
    TransactionShard,
    check_transactional_id,
    concurrent_transactions,
    fenced,
    record_of,
)
from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import (
    LAST_EPOCH,
    Identity,
    Transaction,
    is_exhausted,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


def decide_init(
    shard: TransactionShard,
    transactional_id: str,
    timeout_ms: int,
    expected: Identity,
    circumstances: Circumstances,
) -> TransactionDecision[Identity]:
    """Give a producer its identity; `expected` is what it sent, if anything.

    An open transaction is aborted first, with an epoch that fences its producer and that no
    producer gets. Until then the response is CONCURRENT_TRANSACTIONS.
    """
    check_transactional_id(transactional_id)
    if not 0 < timeout_ms <= circumstances.config.timeout_ms_max:
        raise ApiError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"the timeout must be 1 to {circumstances.config.timeout_ms_max} ms "
            f"(transaction.max.timeout.ms) but is {timeout_ms}",
        )
    if (expected.producer_id == NO_PRODUCER_ID) != (expected.epoch == NO_PRODUCER_EPOCH):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together")
    shard.check_not_pending(transactional_id)
    known = shard.transactions.get(transactional_id)
    if known is None:
        found = _newcomer(transactional_id, timeout_ms, circumstances)
    else:
        found = known
        _check_expected(found, expected)
    if found.status.is_prepared:
        raise concurrent_transactions()
    if found.status is TransactionStatus.ONGOING:
        return TransactionDecision(
            response=Identity(),
            record=record_of(fence(found, circumstances)),
            error=ErrorCode.CONCURRENT_TRANSACTIONS,
        )
    following = _next(found, timeout_ms, expected, circumstances)
    return TransactionDecision(response=following.identity, record=record_of(following))


def fence(transaction: Transaction, circumstances: Circumstances) -> Transaction:
    """Return an open transaction, aborted on behalf of its producer.

    With version 2 the last epoch moves the producer to its next id at once (KAFKA-20090).
    """
    version = circumstances.version
    if version.bumps_epochs and transaction.epoch >= LAST_EPOCH:
        next_id = circumstances.draw_producer_id()
        return transaction.fence(circumstances.now_ms, version, next_id)
    return transaction.fence(circumstances.now_ms, version)


def _newcomer(transactional_id: str, timeout_ms: int, circumstances: Circumstances) -> Transaction:
    if not circumstances.room_for_an_id:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "headrace.max.transactional.ids is reached")
    return Transaction(
        transactional_id=transactional_id,
        producer_id=circumstances.draw_producer_id(),
        timeout_ms=timeout_ms,
        updated_ms=circumstances.now_ms,
    )


def _check_expected(found: Transaction, expected: Identity) -> None:
    """Raise PRODUCER_FENCED for a producer id that is neither the current nor the previous one."""
    if expected.producer_id in (NO_PRODUCER_ID, found.producer_id):
        return
    if expected.producer_id == found.previous_producer_id and is_exhausted(expected.epoch):
        return
    raise fenced(found)


def _next(
    found: Transaction, timeout_ms: int, expected: Identity, circumstances: Circumstances
) -> Transaction:
    now_ms = circumstances.now_ms
    recovers = expected.epoch != NO_PRODUCER_EPOCH
    is_new = found.epoch == NO_PRODUCER_EPOCH
    if recovers and not is_new and expected != found.identity:
        if expected.epoch != found.last_epoch:
            raise fenced(found)
        return found.restart(timeout_ms, now_ms)
    if found.is_exhausted:
        fresh = circumstances.draw_producer_id()
        return found.rotate(fresh, timeout_ms, now_ms, keeps_last_epoch=recovers)
    return found.bump(timeout_ms, now_ms, keeps_last_epoch=recovers)
