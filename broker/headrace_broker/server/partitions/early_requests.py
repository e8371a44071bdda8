"""Produce requests in flight while this replica becomes the leader.

The requests that arrive just before are refused (NOT_LEADER_OR_FOLLOWER). Those just after reach
the new leader, where their sequence numbers leave a gap. librdkafka answers
OUT_OF_ORDER_SEQUENCE_NUMBER with a new producer epoch (KIP-360) and then sends as new the batches
that the former leader had replicated but not acknowledged: they would be written twice. If the
later requests are refused like the first ones, the producer sends all of them again in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.log.batches import read_header
from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.log.producer_state import ProducerStates
    from headrace_broker.replication.leader import LeaderState

EARLY_MS_MAX = 5000
"""How long after this replica became leader such requests may still arrive."""


def refusal(
    error: ApiError,
    records: bytes | bytearray | memoryview,
    producers: ProducerStates,
    leading: LeaderState,
    now_ms: int,
) -> ApiError:
    """Return the error that the producer gets for a batch that the log refused.

    NOT_LEADER_OR_FOLLOWER if the sequence gap may stem from requests refused before this replica
    led: it became leader a short time ago, and has appended nothing from this producer.
    """
    if (
        error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        or now_ms - leading.since_ms > EARLY_MS_MAX
    ):
        return error
    known = producers.get(read_header(records).producer_id)
    if known is None or known.last_offset >= leading.epoch_start_offset:
        return error
    if leading.epoch_start_offset == 0:
        return error  # no former leader has replicated anything
    return ApiError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier request came before this broker led"
    )
