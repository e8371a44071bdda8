"""`CommitSlot`: the answer to one usual acks=all request, sent where its records are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace_broker.server.api.produce import TOPIC_IDS_FROM
from headrace_broker.server.frames import flexible_frame
from headrace_broker.server.pending_answer import fail, not_committed_in_time
from headrace_broker.server.slots import FrameSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_broker.log.partition_log import AppendInfo
    from headrace_broker.server.partition import Partition
    from headrace_broker.server.waiting import Deadlines


class CommitSlot(FrameSlot):
    """Holds the parts of a success; an error, which is rare, is laid out by the general codec."""

    __slots__ = (
        "_deadlines",
        "_frame",
        "_info",
        "_on_commit",
        "_partition",
        "_timeout_ms",
        "_version",
    )

    def __init__(
        self,
        correlation_id: int,
        version: int,
        frame: list[bytes],
        partition: Partition,
        info: AppendInfo,
        on_commit: Callable[[], None],
    ) -> None:
        super().__init__(correlation_id)
        self._frame = frame
        self._partition = partition
        self._info = info
        self._on_commit = on_commit
        self._version = version
        self._timeout_ms = 0
        self._deadlines: Deadlines | None = None

    def wait(self, deadlines: Deadlines, timeout_ms: int) -> None:
        """Be answered when the records are committed, or not in time."""
        self._deadlines = deadlines
        self._timeout_ms = max(timeout_ms, 0)
        deadlines.add(self, self._timeout_ms)
        self._partition.when_committed(self._info.last_offset + 1, self._acknowledge)  # type: ignore[arg-type]  # NewType costs a call

    def expire(self) -> None:
        """The producer's patience is over."""
        self._deadlines = None
        self._answer(not_committed_in_time(self._partition))

    def _acknowledge(self, error: ApiError | None) -> None:
        deadlines = self._deadlines
        if deadlines is None:
            return  # too late
        self._deadlines = None
        deadlines.discard(self, self._timeout_ms)
        if error is None:
            self.send(self._frame)
            self._on_commit()
        else:
            self._answer(error)

    def _answer(self, error: ApiError) -> None:
        partition, info = self._partition, self._info
        answer = PartitionProduceResponse(
            index=partition.index,
            base_offset=info.first_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
        )
        fail(answer, error)
        topic = TopicProduceResponse(topic_id=partition.topic_id, partition_responses=[answer])
        if self._version < TOPIC_IDS_FROM:
            topic = TopicProduceResponse(name=partition.topic, partition_responses=[answer])
        encode = self.entry.encoders[self._version]
        parts: list[Any] = encode(ProduceResponse(responses=[topic]))
        self.send(flexible_frame(self.correlation_id, parts))
