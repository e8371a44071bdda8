"""Whether a transaction's write to a partition needs the coordinator's approval (KIP-890)."""

from typing import Final

from headrace_broker.coordinator.transactions.transaction import Identity
from headrace_broker.log.verification import ONGOING, TRUSTED, Verification
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.server.clock import Clock
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.partitions.partition import Partition

COORDINATOR_TROUBLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


NEVER: Final = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED})
"""Said of an identity that has no transaction, and never will have one."""


def admission(
    partition: Partition, identity: Identity, sequence: int, clock: Clock, config: BrokerConfig
) -> Verification:
    """Return the verification for an append; ask the coordinator if `is_asked`.

    It need not be asked within a transaction that is open here, nor if the append will be refused
    anyway. Raises INVALID_PRODUCER_EPOCH.
    """
    producers = partition.log.producers
    known = producers.get(identity.producer_id)
    if known is not None:
        goes_on = known.epoch == identity.epoch and known.txn_first_offset >= 0
        if goes_on or identity.epoch < known.epoch:
            return ONGOING
    if partition.leading is None:
        return ONGOING
    if not config.values["transaction.partition.verification.enable"]:
        return TRUSTED
    return producers.verifications.ask(
        identity.producer_id, identity.epoch, sequence, clock.now_ms()
    )
