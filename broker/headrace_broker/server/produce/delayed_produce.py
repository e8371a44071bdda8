"""Produce requests whose responses wait for records to be committed or durable, in two codecs.

`append.py` decides what they wait for, and what the producer gets if that does not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.protocol.errors import ApiError, RecordsRefusedError
from headrace_broker.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace_broker.protocol.types import Offset
from headrace_broker.server.network.delayed import DelayedOperation
from headrace_broker.server.partitions.partition import CutOffError
from headrace_broker.server.produce.append import TOPIC_IDS_FROM, Wait, not_in_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_broker.log.partition_log import AppendInfo
    from headrace_broker.server.partitions.partition import Partition


class DelayedProduce(DelayedOperation):
    """The general codec: any number of partitions, with response messages."""

    __slots__ = ("_commits", "_count", "_waiting", "response")

    def __init__(self, version: int, correlation_id: int) -> None:
        super().__init__(version, correlation_id)
        self.response: ProduceResponse | None = None
        self._commits = False
        self._count = 0
        self._waiting: dict[int, tuple[Partition, PartitionProduceResponse]] = {}

    def watch(
        self, wait: Wait, partition: Partition, last_offset: int, answer: PartitionProduceResponse
    ) -> None:
        """Wait until records are committed, or on this broker's disk; `answer` is the success."""
        number = self._count = self._count + 1
        self._waiting[number] = partition, answer
        self._commits = wait is Wait.COMMIT  # all partitions have the same `acks`
        when = partition.when_committed if wait is Wait.COMMIT else partition.when_durable
        when(Offset(last_offset + 1), lambda error: self._settle(number, error))

    @property
    def is_waiting(self) -> bool:
        """Whether a partition is still pending."""
        return bool(self._waiting)

    def expire(self) -> None:
        """Answer at the producer's timeout."""
        waiting, self._waiting = self._waiting, {}
        for partition, answer in waiting.values():
            fail(answer, not_in_time(partition))
        self._finish()

    def give_up(self) -> bool:
        """Give up if the leader is cut off: the producer then looks for another one."""
        for number, (partition, _) in list(self._waiting.items()):
            if self._commits and partition.is_cut_off:
                self._settle(number, CutOffError())
        return not self._waiting

    def _settle(self, number: int, error: ApiError | None) -> None:
        found = self._waiting.pop(number, None)
        if found is None:
            return  # too late
        if error is not None:
            fail(found[1], error)
        if not self._waiting:
            self._finish()

    def _finish(self) -> None:
        if self.complete():
            self.send(self.response)


class FastDelayedProduce(DelayedOperation):
    """The fast codec: one partition's commit, and the frame of a success.

    An error is rare, so the general codec encodes it.
    """

    __slots__ = ("_frame", "_info", "_on_commit", "_partition")

    def __init__(
        self,
        version: int,
        correlation_id: int,
        frame: list[bytes],
        partition: Partition,
        info: AppendInfo,
        on_commit: Callable[[], None],
    ) -> None:
        super().__init__(version, correlation_id)
        self._frame = frame
        self._partition = partition
        self._info = info
        self._on_commit = on_commit
        partition.when_committed(info.last_offset + 1, self._settle)  # type: ignore[arg-type]  # NewType costs a call

    def expire(self) -> None:
        """Answer at the producer's timeout."""
        self._settle(not_in_time(self._partition))

    def give_up(self) -> bool:
        """Give up, as above."""
        if self._partition.is_cut_off:
            self._settle(CutOffError())
        return self._partition.is_cut_off

    def _settle(self, error: ApiError | None) -> None:
        if not self.complete():
            return  # too late
        if error is None:
            self.send_frame(self._frame)
            self._on_commit()
        else:
            self.send(self._refused(error))

    def _refused(self, error: ApiError) -> ProduceResponse:
        partition, info = self._partition, self._info
        answer = PartitionProduceResponse(
            index=partition.index,
            base_offset=info.first_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
        )
        fail(answer, error)
        topic = TopicProduceResponse(topic_id=partition.topic_id, partition_responses=[answer])
        if self.version < TOPIC_IDS_FROM:
            topic = TopicProduceResponse(name=partition.topic, partition_responses=[answer])
        return ProduceResponse(responses=[topic])


def fail(answer: PartitionProduceResponse, error: ApiError) -> None:
    """Replace a partition's success in a response by an error."""
    answer.error_code = error.code
    answer.error_message = error.message
    if isinstance(error, RecordsRefusedError):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=reason)
            for place, reason in error.records
        ]
    answer.base_offset = -1
