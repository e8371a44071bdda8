"""The controller: it decides metadata changes while this node leads the quorum.

`submit` runs a decision at once on an image that includes all earlier decisions, committed or not.
It appends the records, and returns when the quorum has committed them and this node has published
them. If this node loses leadership, records that are appended but not committed have an unknown
outcome (REQUEST_TIMED_OUT), and the image that includes them is dropped. The decisions themselves
live in `headrace_broker.metadata`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from headrace_broker.metadata.auto_creation import (
    WantedTopic,
    decide_auto_create_topics,
    decide_ensure_topic,
)
from headrace_broker.metadata.brokers.registration import (
    decide_allocate_producer_ids,
    decide_bootstrap,
)
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import NoOpRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import (
    NO_LEADER_EPOCH,
    NO_NODE,
    LeaderEpoch,
    NodeId,
    Offset,
    ProducerId,
)
from headrace_broker.server.clock import Clock
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.quorum.forwarding import Forwarding
from headrace_broker.server.quorum.metadata_batches import encode_batch
from headrace_broker.server.quorum.metadata_loader import MetadataLoader, Subscriber
from headrace_broker.server.quorum.raft_driver import RaftDriver

R = TypeVar("R")
Decide = Callable[[MetadataImage], MetadataDecision[R]]
ActivityObserver = Callable[[bool, MetadataImage], None]

_RETRY_SECONDS = 0.1
# Decisions that may wait for their commit; further callers queue, so memory is bounded.
_UNCOMMITTED_MAX = 1000
_CREATED_AT_ONCE_MAX = 1000

log = structlog.get_logger()


class ControllerDriver:
    """Decides on the active controller; every other node sends its requests there."""

    def __init__(
        self,
        config: BrokerConfig,
        quorum: RaftDriver,
        loader: MetadataLoader,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._quorum = quorum
        self._loader = loader
        self._clock = clock
        self.rng = rng
        self.policy = topic_policy(config)
        self.forwarding: Forwarding | None = None
        self._speculative = MetadataImage()
        self._active_epoch = NO_LEADER_EPOCH
        self._activation = asyncio.Event()
        self._activity_observers: list[ActivityObserver] = []
        self._uncommitted: dict[asyncio.Future[None], None] = {}
        self._places = asyncio.Semaphore(_UNCOMMITTED_MAX)
        self._being_created: set[str] = set()
        self._creations: set[asyncio.Task[None]] = set()
        self._is_closed = False
        quorum.observe(self)

    # what is known

    @property
    def image(self) -> MetadataImage:
        """The latest published image."""
        return self._loader.image

    @property
    def leader(self) -> NodeId:
        """The active controller as far as this node knows, or -1."""
        leader = self._quorum.leader_id
        return NO_NODE if leader is None else leader

    @property
    def epoch(self) -> LeaderEpoch:
        """The quorum's leader epoch."""
        return self._quorum.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller and has applied what came before it."""
        return self._active_epoch != NO_LEADER_EPOCH and self._quorum.is_leader

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber(delta, image)` for every published change, before it is answered."""
        self._loader.subscribe(subscriber)

    def subscribe_activity(self, observer: ActivityObserver) -> None:
        """Call `observer(is_active, image)` when this node gains or loses the controller role."""
        self._activity_observers.append(observer)

    # leadership, as reported by RaftDriver

    def became_leader(self, epoch: LeaderEpoch, epoch_start_offset: Offset) -> None:
        """Become active once every record before this epoch is applied."""
        applied = self._loader.wait_for(epoch_start_offset)
        applied.add_done_callback(lambda done: None if done.cancelled() else self._activate(epoch))

    def _activate(self, epoch: LeaderEpoch) -> None:
        if self._is_closed or not self._quorum.is_leader or self._quorum.epoch != epoch:
            return
        self._speculative = self._loader.image
        self._active_epoch = epoch
        try:
            self._decide(decide_bootstrap)
        except ApiError as error:
            self._active_epoch = NO_LEADER_EPOCH
            if self._quorum.is_leader and self._quorum.epoch == epoch:
                # The quorum waits for a file descriptor.
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._activate, epoch)
            else:
                log.info("led no more before it was active", error=str(error))
            return
        self._tell_activity(is_active=True)
        self._activation.set()
        self._activation = asyncio.Event()

    def lost_leadership(self, epoch: LeaderEpoch) -> None:
        """Drop what was not committed."""
        was_active = self._active_epoch != NO_LEADER_EPOCH
        self._active_epoch = NO_LEADER_EPOCH
        self._activation.set()
        self._activation = asyncio.Event()
        self._fail_uncommitted(f"this node lost the controllership of epoch {epoch}")
        if was_active:
            self._tell_activity(is_active=False)

    def _tell_activity(self, *, is_active: bool) -> None:
        for observer in self._activity_observers:
            observer(is_active, self._loader.image)

    def loader_failed(self) -> None:
        """Give up: what is committed cannot be applied on this node."""
        self._is_closed = True
        self._fail_uncommitted("the change could not be applied")

    def _fail_uncommitted(self, reason: str) -> None:
        error = ApiError(
            ErrorCode.REQUEST_TIMED_OUT, f"{reason}: the change may or may not have been made"
        )
        for waiter in self._uncommitted:
            if not waiter.done():
                waiter.set_exception(error)
        self._uncommitted.clear()

    def close(self) -> None:
        """Decide nothing more. Waiting callers get REQUEST_TIMED_OUT, later ones NOT_CONTROLLER."""
        self._is_closed = True
        self._fail_uncommitted("this node stops")

    # decisions

    async def submit(self, decide: Decide[R], *, is_confirmed: bool = False) -> R:
        """Run `decide` now; return its response once its records are committed and applied here.

        `is_confirmed`: an answer without records, a refusal, waits for the quorum as well. A
        controller that is cut off does not know what its successor decided meanwhile.

        Raises what `decide` raises with nothing changed, NOT_CONTROLLER where this node does not
        lead, and REQUEST_TIMED_OUT where the outcome is unknown. A caller that is cancelled does
        not undo the decision.
        """
        async with self._places:
            while not self.is_active:
                if self._is_closed or not self._quorum.is_leader:
                    raise ApiError(
                        ErrorCode.NOT_CONTROLLER,
                        "this node is not the active controller; try again later",
                    )
                await self._activation.wait()
            if self._is_closed:
                raise ApiError(ErrorCode.NOT_CONTROLLER, "this controller is stopped")
            response, committed = self._decide(decide, is_confirmed=is_confirmed)
            self._uncommitted[committed] = None
            try:
                await committed
            finally:
                self._uncommitted.pop(committed, None)
            return response

    def _decide(
        self, decide: Decide[R], *, is_confirmed: bool = False
    ) -> tuple[R, asyncio.Future[None]]:
        """Decide on the speculative image and append; the future is done at the commit."""
        before = self._speculative
        end_offset = self._quorum.log.end_offset
        if before.offset != end_offset - 1:
            # The quorum's own records (voters) hold offsets, too.
            before = replace(before, offset=Offset(end_offset - 1))
        decision = decide(before)
        records = decision.records
        if not records and is_confirmed and len(self._quorum.node.voters.voters) > 1:
            # Once it is committed, nobody led the quorum in between.
            records = [NoOpRecord()]
        if not records:
            # What the answer rests on must be committed before it is given.
            return decision.response, self._loader.wait_for(self._speculative.offset)
        batch = encode_batch(records, self._clock.now_ms())
        offset = Offset(before.offset + len(records))
        image, _ = before.replay_batch(records, offset=offset, epoch=self._active_epoch)
        epoch = self._active_epoch
        last = self._quorum.append(batch, epoch)
        if last is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "this node has just lost the controllership")
        if self._active_epoch != epoch:
            # Lost in the very step that appended: the next leader may give the offset to another
            # change, whose commit would say nothing of this one's.
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "this node lost the controllership: the change may or may not have been made",
            )
        if last != offset:
            raise RuntimeError(f"the image is at {offset}, the log at {last}")
        self._speculative = image
        return decision.response, self._loader.wait_for(offset)

    # what this node wants from the active controller, wherever that is

    async def allocate_producer_ids(self) -> tuple[ProducerId, int]:
        """Return the first id and the length of a block that nobody else gets."""
        if self.is_active or self.forwarding is None:
            node_id = self._config.node_id
            return await self.submit(lambda image: decide_allocate_producer_ids(image, node_id))
        return await self.forwarding.allocate_producer_ids()

    async def ensure_internal_topic(self, name: str) -> None:
        """Make one of the cluster's own topics unless it exists; raises ApiError."""
        await self.ensure_topic(internal_topic(name, self._config))

    async def ensure_topic(self, wanted: WantedTopic) -> None:
        """Make a topic that this broker needs unless it exists; raises ApiError."""
        if wanted.name in self.image.topics:
            return
        if self.is_active or self.forwarding is None:
            await self.submit(
                lambda image: decide_ensure_topic(image, wanted, self.policy, self.rng)
            )
        else:
            await self.forwarding.ensure_topic(wanted)

    async def auto_create_topics(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Make topics with the broker's defaults; return each name's error, NONE where it exists.

        Whether clients may ask for that (auto.create.topics.enable) is the caller's to check.
        """
        if self.is_active or self.forwarding is None:
            return await self.submit(
                lambda image: decide_auto_create_topics(image, names, self.policy, self.rng)
            )
        return await self.forwarding.create_topics(names)

    def create_behind(self, names: Sequence[str]) -> None:
        """Make topics that clients asked for; nobody waits, and asking again meanwhile is free."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._being_created]
        if wanted and len(self._being_created) < _CREATED_AT_ONCE_MAX:
            self._being_created.update(wanted)
            self._creations.add(task := asyncio.create_task(self._create(wanted)))
            task.add_done_callback(self._creations.discard)

    async def _create(self, names: Sequence[str]) -> None:
        try:
            for name in INTERNAL_TOPICS.intersection(names):
                await self.ensure_internal_topic(name)
            plain = [name for name in names if name not in INTERNAL_TOPICS]
            errors = await self.auto_create_topics(plain) if plain else {}
            failed = {name: error.name for name, error in errors.items() if error}
            if failed:
                log.info("topics not created on demand", errors=failed)
        except ApiError as error:
            log.info("topics not created on demand", topics=list(names), error=str(error))
        finally:
            self._being_created.difference_update(names)


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
    values = config.values
    if name == TRANSACTION_STATE_TOPIC:
        return WantedTopic(
            name=name,
            num_partitions=values["transaction.state.log.num.partitions"],
            replication_factor=values["transaction.state.log.replication.factor"],
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(values["transaction.state.log.min.isr"]),
                "segment.bytes": str(values["transaction.state.log.segment.bytes"]),
                "unclean.leader.election.enable": "false",
            },
        )
    if name == SHARE_GROUP_STATE_TOPIC:
        return WantedTopic(
            name=name,
            num_partitions=values["share.coordinator.state.topic.num.partitions"],
            replication_factor=values["share.coordinator.state.topic.replication.factor"],
            configs={
                # Not compacted: the coordinator deletes what no snapshot needs.
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "min.insync.replicas": str(values["share.coordinator.state.topic.min.isr"]),
                "retention.bytes": "-1",
                "retention.ms": "-1",
                "segment.bytes": str(values["share.coordinator.state.topic.segment.bytes"]),
            },
        )
    if name != GROUP_METADATA_TOPIC:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} is not made by this broker")
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
