"""Produce requests whose predecessors in flight were refused before the log saw them.

A producer with several requests in flight sends a refused one again, with all that follow it. Those
that arrive meanwhile must be refused too, with an error that is retried (NOT_LEADER_OR_FOLLOWER or
NOT_ENOUGH_REPLICAS), though the reason of the first refusal is gone: this replica has become the
leader, or a follower is in sync again. librdkafka cannot bear anything else:

- OUT_OF_ORDER_SEQUENCE_NUMBER makes it begin a new producer epoch (KIP-360), in which it sends
  again all that was not acknowledged. What had been appended, and timed out, is written twice.
- A success, which any first sequence of a producer that the partition does not know would have,
  it takes for that of all earlier requests. The refused ones are lost, and reported as delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.log.batches import read_header
from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.log.producer_state import ProducerStates

NEW_LEADER_MS = 5000
"""How long after this replica became leader requests may arrive that follow refused ones."""
REFUSED_MS = 30_000
"""How long after a refusal. What comes later, a client with defaults has given up
(request.timeout.ms)."""
PRODUCERS_MAX = 1000
"""Of so many unknown producers a partition remembers the first request that it refused."""


class EarlierRequests:
    """Until when requests may follow refused ones, which end before `end_offset` in the log."""

    __slots__ = ("_code", "_end_offset", "_first", "until_ms")

    def __init__(
        self, code: ErrorCode, end_offset: int, until_ms: int, before: EarlierRequests | None
    ) -> None:
        self._code = code
        self._end_offset = end_offset
        self.until_ms = until_ms
        self._first: dict[int, tuple[int, int]] = {}
        """Epoch and lowest sequence of what was refused to unknown producers, by their ids.

        When the time is over these are taken, and nothing that follows them: of several in flight
        the first ones may have been refused just before.
        """
        if before is not None:
            self.until_ms = max(until_ms, before.until_ms)
            self._first = before._first  # noqa: SLF001 - the same class

    def are_over(self, now_ms: int) -> bool:
        """Whether what arrives now follows no request that was refused."""
        waits_ms = REFUSED_MS if self._first else 0
        return now_ms > self.until_ms + waits_ms

    def refusal(
        self,
        error: ApiError,
        records: bytes | bytearray | memoryview,
        producers: ProducerStates,
        now_ms: int,
    ) -> ApiError | None:
        """Return what refuses a batch with a gap before it; None if it follows no refused one.

        It is the earlier requests' own error, unless something of the producer was appended after
        them.
        """
        header = read_header(records)
        producer_id, epoch = header.producer_id, header.producer_epoch
        sequence = header.base_sequence
        known = producers.get(producer_id)
        known_epoch, first = self._first.get(producer_id, (epoch, sequence))
        if now_ms > self.until_ms:
            if epoch != known_epoch or sequence <= first or self.are_over(now_ms):
                self._first.pop(producer_id, None)
                return None
        elif known is None and (producer_id in self._first or len(self._first) < PRODUCERS_MAX):
            lowest = min(sequence, first) if epoch == known_epoch else sequence
            self._first[producer_id] = epoch, lowest
        if known is not None and known.last_offset >= self._end_offset:
            return error
        return ApiError(self._code, "an earlier request of this producer was refused")
