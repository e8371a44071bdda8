"""Replays the metadata that the quorum has committed, and tells this node's parts of it.

One task reads the log up to the high watermark, replays it, lets the subscribers act, and only then
shows the new image: a client can use whatever it sees there. Nothing is published before this
process has caught up once. Its predecessor may have acted on later records, such as a topic that
was deleted and recreated; the new topic's records would be taken for the deleted one's. The active
controller, followers and observers all do the same. If a subscriber fails, the process exits,
because the change is half applied. If the log cannot be read for lack of a file descriptor, it is
read later.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

import structlog

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.records import MetadataRecord
from headrace_broker.metadata.snapshot import delta_between
from headrace_broker.protocol.types import NO_OFFSET, LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace_broker.raft.types import OffsetAndEpoch
from headrace_broker.server.quorum.metadata_batches import decode_batches
from headrace_broker.server.quorum.raft_log import MetadataLog

Subscriber = Callable[[MetadataDelta, MetadataImage], Awaitable[None] | None]

log = structlog.get_logger()

_RETRY_SECONDS = 0.1


class MetadataLoader:
    """The image of one node. `advance` and `load_snapshot` are the quorum's to call."""

    def __init__(self, log_: MetadataLog, on_failure: Callable[[BaseException], None]) -> None:
        self._log = log_
        self._on_failure = on_failure
        self._image = MetadataImage()
        self._subscribers: list[Subscriber] = []
        self._end = Offset(0)
        self._snapshot: OffsetAndEpoch | None = None
        self._again: dict[tuple[UUID, int], None] = {}
        self._is_released = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[tuple[Offset, int, asyncio.Future[None]]] = []
        self._waiter_count = 0
        self.is_failed = False
        self.bytes_since_snapshot = 0
        self.after_publication: Callable[[], None] = _nothing

    @property
    def image(self) -> MetadataImage:
        """The latest published image."""
        return self._image

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every published change; awaitables are awaited."""
        self._subscribers.append(subscriber)

    def start(self) -> None:
        """Begin to publish."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata loader")

    async def close(self) -> None:
        """Stop publishing. Waiting callers are cancelled."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for _, _, waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def release(self) -> None:
        """Publish from now on: all that was committed at this node's start can be read."""
        if not self._is_released:
            self._is_released = True
            self._wake.set()

    def advance(self, high_watermark: Offset) -> None:
        """Publish the records below an offset: they are committed."""
        if high_watermark > self._end:
            self._end = high_watermark
            self._wake.set()

    def load_snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Replace the image by the one in a snapshot."""
        if snapshot_id.offset - 1 > self._image.offset:
            self._snapshot = snapshot_id
            self._wake.set()

    def publish_again(self, partitions: Collection[tuple[UUID, int]]) -> None:
        """Have the subscribers act once more on partitions: (topic id, index)."""
        self._again.update(dict.fromkeys(partitions))
        self._wake.set()

    def wait_for(self, offset: Offset) -> asyncio.Future[None]:
        """Return a future that is done once the record at `offset` is in the published image."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._image.offset >= offset:
            waiter.set_result(None)
        else:
            self._waiter_count += 1
            heapq.heappush(self._waiters, (offset, self._waiter_count, waiter))
        return waiter

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._is_released:
                    await self._publish_committed()
                    await self._publish_again()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.critical("a metadata change failed half way", exc_info=error)
            self.is_failed = True
            self._on_failure(error)

    async def _publish_committed(self) -> None:
        """Publish all committed records as one change: no subscriber sees an intermediate state."""
        snapshot, self._snapshot = self._snapshot, None
        delta = None
        try:
            image = self._image if snapshot is None else self._read_snapshot(snapshot)
            if self._end > image.offset + 1:
                image, delta = await self._replay_log(image, self._end)
        except OutOfDescriptorsError:
            self._snapshot = self._snapshot or snapshot
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._wake.set)
            return
        if image is not self._image and self._image.offset == NO_OFFSET:
            delta = MetadataDelta.from_nothing(image)
        elif snapshot is not None:
            delta = delta_between(self._image, image)
        if delta is not None:
            await self._publish(delta, image)

    async def _publish_again(self) -> None:
        if not self._again:
            return
        again, self._again = self._again, {}
        topics: dict[str, frozenset[PartitionIndex]] = {}
        for topic_id, index in again:
            topic = self._image.topics_by_id.get(TopicId(topic_id))
            if topic is not None and index in topic.partitions:
                known = topics.get(topic.name, frozenset())
                topics[topic.name] = known | {PartitionIndex(index)}
        await self._publish(MetadataDelta.of_topics(topics), self._image)

    async def _replay_log(
        self, image: MetadataImage, end: Offset
    ) -> tuple[MetadataImage, MetadataDelta]:
        start = max(image.offset + 1, self._log.start_offset)
        records: list[MetadataRecord] = []
        last_offset, epoch = image.offset, image.epoch
        for data in self._log.chunks(Offset(start), end):
            for batch in decode_batches(data):
                records += batch.records
                last_offset, epoch = batch.last_offset, batch.epoch
            self.bytes_since_snapshot += len(data)
            await asyncio.sleep(0)
        return image.replay_batch(records, offset=last_offset, epoch=epoch)

    def _read_snapshot(self, snapshot_id: OffsetAndEpoch) -> MetadataImage:
        records: list[MetadataRecord] = []
        for batch in decode_batches(self._log.snapshots.read(snapshot_id)):
            records += batch.records
        self.bytes_since_snapshot = 0
        image, _ = MetadataImage().replay_batch(
            records,
            offset=Offset(snapshot_id.offset - 1),
            epoch=LeaderEpoch(snapshot_id.epoch),
        )
        return image

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if not delta.is_empty:
            for subscriber in self._subscribers:
                result = subscriber(delta, image)
                if result is not None:
                    await result
        self._image = image
        while self._waiters and self._waiters[0][0] <= image.offset:
            _, _, waiter = heapq.heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)
        self.after_publication()


def _nothing() -> None:
    """The default when nothing follows a publication."""
