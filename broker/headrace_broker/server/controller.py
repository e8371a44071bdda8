"""The controller: the one owner of the cluster's metadata on this node.

`submit` serialises decisions: each sees an image with all earlier ones in it, their records are
appended and made durable together (one fsync for all that waited), and only then are the new image
and the delta published and the answers given. What is decided lives in `headrace_broker.metadata`;
here are the queue, the log and the publication. If an effect fails after the image moved, the
driver stops for good and says so through `on_failure`: the process must end.

The quorum is this node alone: `append_and_commit` is where Raft takes over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from headrace_broker.metadata.auto_creation import (
    WantedTopic,
    decide_auto_create_topics,
    decide_ensure_topic,
)
from headrace_broker.metadata.broker_liveness import decide_unfence_broker
from headrace_broker.metadata.brokers import (
    Registration,
    decide_allocate_producer_ids,
    decide_bootstrap,
    decide_register_broker,
)
from headrace_broker.metadata.decision import Decision, RandomSource
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import MetadataRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import BrokerEpoch, LeaderEpoch, NodeId, Offset, ProducerId
from headrace_broker.server.clock import Clock
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.controller_log import MetadataLog, encode_batch

R = TypeVar("R")
Decide = Callable[[MetadataImage], Decision[R]]
Subscriber = Callable[[MetadataDelta, MetadataImage], Awaitable[None] | None]

# Decisions that may wait; further callers wait for a place, so memory stays bounded.
_QUEUE_LENGTH_MAX = 1000

# Decisions that share one fsync.
_GROUP_COMMIT_MAX = 256

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Submission:
    """One decision that waits for its turn, and where its answer goes."""

    decide: Decide[Any]
    answer: asyncio.Future[Any]


@dataclass(slots=True, kw_only=True)
class _Decided:
    """One decision whose records are about to be committed."""

    records: Sequence[MetadataRecord]
    batch: bytearray
    response: Any
    answer: asyncio.Future[Any]


class ControllerDriver:
    """Decides, commits, replays and publishes metadata. Use `start` first and `close` last."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MetadataLog,
        clock: Clock,
        rng: RandomSource,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._config = config
        self._node_id = config.node_id
        self._clock = clock
        self.rng = rng
        self.policy = topic_policy(config)
        self._on_failure = on_failure
        self._image = MetadataImage()
        self._epoch = LeaderEpoch(0)
        self._subscribers: list[Subscriber] = []
        self._queue: asyncio.Queue[_Submission] = asyncio.Queue(_QUEUE_LENGTH_MAX)
        self._task: asyncio.Task[None] | None = None
        # One thread, so that the log has one user at a time.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="metadata-log")

    @property
    def image(self) -> MetadataImage:
        """The latest published image."""
        return self._image

    @property
    def leader(self) -> NodeId:
        """The active controller: this node, in a quorum of one."""
        return self._node_id

    @property
    def epoch(self) -> LeaderEpoch:
        """The quorum's leader epoch."""
        return self._epoch

    @property
    def log_size_bytes(self) -> int:
        """Bytes of the metadata log."""
        return self._log.size_bytes

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every published change, before it is answered.

        An awaitable result is awaited. A subscriber that raises stops the driver.
        """
        self._subscribers.append(subscriber)

    async def start(self) -> None:
        """Replay the log, publish what it says, and begin to take decisions."""
        loop = asyncio.get_running_loop()
        image, epoch = await loop.run_in_executor(self._disk, self._replay_log)
        # A new leader epoch each time, as an election would give (Raft section 5.1).
        self._epoch = LeaderEpoch(epoch + 1)
        delta = MetadataDelta.from_nothing(image)
        await self._publish(delta, image)
        self._task = asyncio.create_task(self._run(), name="controller")
        await self.submit(decide_bootstrap)

    def _replay_log(self) -> tuple[MetadataImage, LeaderEpoch]:
        records: list[MetadataRecord] = []
        last_offset, epoch = Offset(-1), LeaderEpoch(0)
        for batch in self._log.replay():
            records += batch.records
            last_offset, epoch = batch.last_offset, batch.epoch
        image, _ = MetadataImage().replay_batch(records, offset=last_offset, epoch=epoch)
        return image, epoch

    async def register_broker(self, registration: Registration) -> BrokerEpoch:
        """Register this process and let it serve; returns its broker epoch."""
        policy = self.policy
        epoch = await self.submit(lambda image: decide_register_broker(image, registration, policy))
        node_id = registration.node_id
        await self.submit(lambda image: decide_unfence_broker(image, node_id, epoch, policy))
        return epoch

    async def submit(self, decide: Decide[R]) -> R:
        """Run `decide` when its turn comes; return its response once its records are applied.

        Raises what `decide` raises (ApiError), with nothing changed. A caller that is cancelled
        does not undo the decision: its outcome is then unknown to the caller.
        """
        task = self._task
        if task is None or task.done():
            raise self._unavailable()
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Submission(decide=decide, answer=answer))
        # The driver may have stopped while this caller waited for a place.
        if task.done() and not answer.done():
            raise self._unavailable()
        return await answer

    def _unavailable(self) -> ApiError:
        return ApiError(
            ErrorCode.NOT_CONTROLLER, "the controller of this node is stopped; try again later"
        )

    async def allocate_producer_ids(self) -> tuple[ProducerId, int]:
        """Return the first id and the length of a block that nobody else gets."""
        return await self.submit(lambda image: decide_allocate_producer_ids(image, self._node_id))

    async def ensure_internal_topic(self, name: str) -> None:
        """Make one of the cluster's own topics unless it exists; raises ApiError."""
        if name in self._image.topics:
            return
        wanted = internal_topic(name, self._config)
        await self.submit(lambda image: decide_ensure_topic(image, wanted, self.policy, self.rng))

    async def auto_create_topics(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Make topics with the broker's defaults; return each name's error, NONE where it exists.

        Whether clients may ask for that (auto.create.topics.enable) is the caller's to check.
        """
        return await self.submit(
            lambda image: decide_auto_create_topics(image, names, self.policy, self.rng)
        )

    async def _run(self) -> None:
        waiting: list[_Submission] = []
        try:
            while True:
                waiting = [await self._queue.get()]
                while len(waiting) < _GROUP_COMMIT_MAX and not self._queue.empty():
                    waiting.append(self._queue.get_nowait())
                await self._commit(waiting)
        except asyncio.CancelledError:
            self._refuse(waiting, self._unavailable())
            raise
        except Exception as error:
            # The log or a subscriber failed after the image had moved: what is on disk and what
            # readers see may differ, so nothing more may be decided here (STYLE, rule 2).
            log.critical("the controller stops: a metadata change failed half way", exc_info=error)
            self._refuse(
                waiting,
                ApiError(ErrorCode.REQUEST_TIMED_OUT, "the change may or may not have been made"),
            )
            self._on_failure(error)

    def _refuse(self, waiting: Sequence[_Submission], error: ApiError) -> None:
        for submission in waiting:
            _set_exception(submission.answer, error)
        while not self._queue.empty():
            _set_exception(self._queue.get_nowait().answer, self._unavailable())

    async def _commit(self, waiting: Sequence[_Submission]) -> None:
        image = self._image
        decided: list[_Decided] = []
        for submission in waiting:
            if submission.answer.cancelled():
                continue
            try:
                entry, image = self._decide(submission, image)
            except Exception as error:  # noqa: BLE001 - the caller's decision: it gets its own error
                _set_exception(submission.answer, error)
            else:
                decided.append(entry)
        changes = [entry for entry in decided if entry.records]
        if changes:
            await self._commit_changes(changes)
        for entry in decided:
            if not entry.answer.done():
                entry.answer.set_result(entry.response)

    def _decide(
        self, submission: _Submission, image: MetadataImage
    ) -> tuple[_Decided, MetadataImage]:
        """Decide on `image`; return what is to be committed and the image with it."""
        decision = submission.decide(image)
        batch = bytearray()
        if decision.records:
            batch = encode_batch(decision.records, self._clock.now_ms())
            image, _ = self._replay(image, decision.records)
        entry = _Decided(
            records=decision.records,
            batch=batch,
            response=decision.response,
            answer=submission.answer,
        )
        return entry, image

    def _replay(
        self, image: MetadataImage, records: Sequence[MetadataRecord]
    ) -> tuple[MetadataImage, MetadataDelta]:
        offset = Offset(image.offset + len(records))
        return image.replay_batch(records, offset=offset, epoch=self._epoch)

    async def _commit_changes(self, changes: Sequence[_Decided]) -> None:
        offset = await self.append_and_commit([entry.batch for entry in changes])
        # Replayed once more as one, which gives one delta for all that was committed.
        records = [record for entry in changes for record in entry.records]
        image, delta = self._replay(self._image, records)
        if image.offset != offset:
            raise RuntimeError(f"the image is at {image.offset}, the log at {offset}")
        await self._publish(delta, image)

    async def append_and_commit(self, batches: Sequence[bytearray]) -> Offset:
        """Append encoded decisions and return the last offset once all are committed.

        In a quorum of one, durable is committed.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._disk, self._log.append, batches, self._epoch, self._clock.now_ms()
        )

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Let the subscribers act, then show the image: what clients see can be used already."""
        if not delta.is_empty:
            for subscriber in self._subscribers:
                result = subscriber(delta, image)
                if result is not None:
                    await result
        self._image = image

    async def close(self) -> None:
        """Stop deciding and close the log. Waiting callers get NOT_CONTROLLER."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._disk, self._log.close)
        self._disk.shutdown()


def topic_policy(config: BrokerConfig) -> TopicPolicy:
    """Return what the broker's settings say of topics."""
    values = config.values
    return TopicPolicy(
        node_id=config.node_id,
        static=config.static,
        num_partitions=values["num.partitions"],
        replication_factor=values["default.replication.factor"],
        deletion_enabled=values["delete.topic.enable"],
        partitions_per_topic_max=values["headrace.max.partitions.per.topic"],
        partitions_max=values["headrace.max.partitions"],
    )


def internal_topic(name: str, config: BrokerConfig) -> WantedTopic:
    """Return how one of the cluster's own topics is made, as Kafka's coordinators make theirs."""
    if name != GROUP_METADATA_TOPIC:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} is not made by this broker")
    values = config.values
    return WantedTopic(
        name=name,
        num_partitions=values["offsets.topic.num.partitions"],
        replication_factor=values["offsets.topic.replication.factor"],
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(values["offsets.topic.segment.bytes"]),
        },
    )


def _set_exception(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
