"""`PendingAnswer`: a produce response that waits for its records to be committed or durable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import Offset

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.produce import (
        PartitionProduceResponse,
        ProduceResponse,
    )
    from headrace_broker.server.partition import Partition


class PendingAnswer:
    """One response, its partitions that are not done, and the client's timeout."""

    __slots__ = ("_count", "_future", "_response", "_timeout_ms", "_timer", "_waiting")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._count = 0
        self._waiting: dict[int, tuple[Partition, PartitionProduceResponse]] = {}
        self._future: asyncio.Future[ProduceResponse] | None = None
        self._response: ProduceResponse | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait_committed(
        self, partition: Partition, last_offset: int, answer: PartitionProduceResponse
    ) -> None:
        """Hold the response until the records are below the high watermark."""
        number = self._count = self._count + 1
        self._waiting[number] = partition, answer
        partition.when_committed(Offset(last_offset + 1), lambda error: self._settle(number, error))

    def wait_durable(
        self, partition: Partition, last_offset: int, answer: PartitionProduceResponse
    ) -> None:
        """Hold the response until the records are on this broker's disk."""
        number = self._count = self._count + 1
        self._waiting[number] = partition, answer
        partition.when_durable(Offset(last_offset + 1), lambda error: self._settle(number, error))

    def future(self, response: ProduceResponse) -> asyncio.Future[ProduceResponse]:
        """Return the future of `response`; none of it is settled yet."""
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        self._response = response
        if not self._waiting:
            future.set_result(response)
            return future
        self._timer = loop.call_later(max(self._timeout_ms, 0) / 1000, self._expire)
        return future

    def _settle(self, number: int, error: ApiError | None) -> None:
        found = self._waiting.pop(number, None)
        if found is None:
            return
        if error is not None:
            fail(found[1], error)
        if not self._waiting:
            self._finish()

    def _expire(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for partition, answer in waiting.values():
            fail(answer, not_committed_in_time(partition))
        self._finish()

    def _finish(self) -> None:
        future = self._future
        if future is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if not future.done() and self._response is not None:
            future.set_result(self._response)


def not_committed_in_time(partition: Partition) -> ApiError:
    """Return what a producer hears whose records were appended and not committed in its time."""
    if partition.leading is not None and partition.leading.is_under_min_isr:
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "appended, but too few replicas are in sync to commit it",
        )
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time; its outcome is unknown")


def fail(answer: PartitionProduceResponse, error: ApiError) -> None:
    """Put an error into a partition's answer that said where its records went."""
    answer.error_code = error.code
    answer.error_message = error.message
    answer.base_offset = -1
