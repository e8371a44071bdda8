"""Requests under way together while a replica becomes leader.

Those that come a moment too early are refused (NOT_LEADER_OR_FOLLOWER), the rest meet a leader, for
which their sequence has a gap. librdkafka answers OUT_OF_ORDER_SEQUENCE_NUMBER by a new producer
epoch (KIP-360), and then sends as new what the former leader had replicated and not acknowledged:
those records would be there twice. Refused like the first ones, all are sent again in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.log.batches import read_header
from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.log.producer_state import ProducerStates
    from headrace_broker.replication.leader import LeaderState

EARLY_MS_MAX = 5000
"""For how long requests may arrive that were sent before this replica led."""


def refusal(
    error: ApiError,
    records: bytes | bytearray | memoryview,
    producers: ProducerStates,
    leading: LeaderState,
    now_ms: int,
) -> ApiError:
    """Return what the producer hears of a batch that the log refused.

    NOT_LEADER_OR_FOLLOWER where the gap in its sequence may be requests refused before this replica
    led: it leads since a short time, and has appended nothing of this producer.
    """
    if (
        error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        or now_ms - leading.since_ms > EARLY_MS_MAX
    ):
        return error
    known = producers.get(read_header(records).producer_id)
    if known is None or known.last_offset >= leading.epoch_start_offset:
        return error
    return ApiError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier request came before this broker led"
    )
