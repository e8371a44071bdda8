"""What the active controller does without being asked.

It fences brokers whose session expired or whose process died, returns leadership to preferred
leaders, and gives the internal topics their full replication factor. It elects leaders and
completes reassignments where that has become possible, and carries out an approved plan of moves.
The decisions are made in `headrace_broker.metadata` and the balancer; this module holds the
intervals and the broker sessions, which exist in this process only. Time is the event loop's, which
changes of the wall clock do not affect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from headrace_broker.balancer.execution import decide_advance_plan
from headrace_broker.metadata.brokers.liveness import decide_fence_broker
from headrace_broker.metadata.brokers.sessions import BrokerSessions
from headrace_broker.metadata.configs.balance_settings import has_plan
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.elections import (
    decide_leaderless_partitions,
    decide_preferred_leaders,
)
from headrace_broker.metadata.entities import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.internal_topics import decide_grow_internal_topics
from headrace_broker.metadata.leader_returns import LeaderReturns
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.reassignments import decide_complete_reassignments
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.types import BrokerEpoch, NodeId, Offset

_SESSION_CHECK_MS = 100
_SETTLE_MS = 1000
_PLAN_MS = 500

log = structlog.get_logger()


class Controller(Protocol):
    """What the tasks need from the controller's driver."""

    @property
    def image(self) -> MetadataImage:
        """The latest published image."""
        ...

    @property
    def policy(self) -> TopicPolicy:
        """What this node's settings say of topics."""
        ...

    async def submit(self, decide: Callable[[MetadataImage], MetadataDecision[Any]]) -> Any:
        """Run a decision and commit its records; raises ApiError."""
        ...


class ControllerTasks:
    """The periodic tasks: `begin` when this node becomes the active controller, `end` when not.

    `on_failure` is called once if a task raises: without the tasks no session would ever expire.
    """

    def __init__(
        self,
        controller: Controller,
        values: Mapping[str, Any],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._controller = controller
        self._values = values
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._settled_offset = Offset(-1)
        self._planned_offset = Offset(-1)
        self.sessions = BrokerSessions(values["broker.session.timeout.ms"])
        self._returns = LeaderReturns(
            delay_ms=values["headrace.leader.return.delay.ms"],
            interval_ms=values["leader.imbalance.check.interval.seconds"] * 1000,
        )

    @staticmethod
    def now_ms() -> int:
        """Return the current time, in the clock that sessions use."""
        return int(asyncio.get_running_loop().time() * 1000)

    @property
    def is_active(self) -> bool:
        """Whether this node runs the active controller's tasks now."""
        return self._task is not None

    def begin(self, image: MetadataImage) -> None:
        """Start: this node is the active controller, and `image` is its latest state."""
        self._cancel()
        self.sessions.begin(image, self.now_ms())
        self._settled_offset = self._planned_offset = Offset(-1)
        self._returns.begin()
        self._task = asyncio.create_task(self._run(), name="controller-tasks")

    def end(self) -> None:
        """Stop: this node is no longer the active controller."""
        self._cancel()
        self.sessions.end()

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Stop for good, and wait for the tasks to end."""
        task = self._task
        self.end()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def broker_process_died(self, node_id: NodeId, epoch: BrokerEpoch | None = None) -> None:
        """Fence a broker at once: its port refuses connections, so its process is gone.

        `epoch` is the registration to fence, by default the current one.
        """
        broker = self._controller.image.brokers.get(node_id)
        if broker is None or not self.is_active:
            return
        epoch = broker.epoch if epoch is None else epoch
        self.sessions.declare_dead(node_id, epoch)
        await self._fence(node_id, epoch, "its process died")

    async def _fence(self, node_id: NodeId, epoch: BrokerEpoch, reason: str) -> None:
        policy = self._controller.policy
        if await self._try(lambda image: decide_fence_broker(image, node_id, policy, epoch)):
            log.warning("broker fenced", broker=node_id, broker_epoch=epoch, reason=reason)

    async def _try(self, decide: Callable[[MetadataImage], MetadataDecision[Any]]) -> Any:
        """Return the decision, or None if it could not be committed: a later round retries it."""
        try:
            return await self._controller.submit(decide)
        except ApiError as error:
            log.info("controller task put off", error=error.code.name, message=error.message)
            return None

    async def _run(self) -> None:
        settle_ms = plan_ms = self.now_ms()
        balance_every_ms = self._values["leader.imbalance.check.interval.seconds"] * 1000
        balance_ms = settle_ms + balance_every_ms
        try:
            while True:
                await asyncio.sleep(_SESSION_CHECK_MS / 1000)
                await self._check_sessions()
                now_ms = self.now_ms()
                if now_ms >= settle_ms:
                    settle_ms = now_ms + _SETTLE_MS
                    await self._settle()
                    await self._return_leaders(now_ms)
                if now_ms >= plan_ms:
                    plan_ms = now_ms + _PLAN_MS
                    await self._advance_plan()
                if now_ms >= balance_ms:
                    balance_ms = now_ms + balance_every_ms
                    await self._balance_leaders()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.critical("the controller's tasks stop", exc_info=error)
            self._on_failure(error)

    async def _check_sessions(self) -> None:
        for broker in self.sessions.expired(self._controller.image, self.now_ms()):
            await self._fence(broker.node_id, broker.epoch, "it was silent for too long")

    async def _settle(self) -> None:
        """Do what the current image allows; nothing if the image has not changed since."""
        image = self._controller.image
        if image.offset == self._settled_offset:
            return
        self._settled_offset = image.offset
        policy = self._controller.policy
        values = self._values
        factors = {
            GROUP_METADATA_TOPIC: values["offsets.topic.replication.factor"],
            TRANSACTION_STATE_TOPIC: values["transaction.state.log.replication.factor"],
            SHARE_GROUP_STATE_TOPIC: values["share.coordinator.state.topic.replication.factor"],
        }
        decisions: list[Callable[[MetadataImage], MetadataDecision[int]]] = [
            lambda image: decide_leaderless_partitions(image, policy),
            lambda image: decide_complete_reassignments(image, policy),
            lambda image: decide_grow_internal_topics(image, factors, policy),
        ]
        for decide in decisions:
            # Decide on the current image first: most of the time there is nothing to submit.
            if decide(self._controller.image).records:
                await self._try(decide)

    async def _advance_plan(self) -> None:
        """Take the next steps of an approved plan; nothing if the image has not changed since."""
        image, policy = self._controller.image, self._controller.policy
        if image.offset == self._planned_offset or not has_plan(image):
            return
        if not decide_advance_plan(image, policy).records:
            self._planned_offset = image.offset
        else:
            await self._try(lambda image: decide_advance_plan(image, policy))

    async def _return_leaders(self, now_ms: int) -> None:
        """Make returned brokers leaders again where they are preferred, once they are in sync."""
        if not self._values["auto.leader.rebalance.enable"]:
            return
        image, policy = self._controller.image, self._controller.policy
        self._returns.observe(image, now_ms)
        due = self._returns.due(image, now_ms)
        if not due or not decide_preferred_leaders(image, policy, among=due).records:
            return
        moved = await self._try(lambda image: decide_preferred_leaders(image, policy, among=due))
        if moved:
            log.info("leaderships given back", brokers=sorted(due), partitions=moved)

    async def _balance_leaders(self) -> None:
        if not self._values["auto.leader.rebalance.enable"]:
            return
        policy = self._controller.policy
        moved = await self._try(lambda image: decide_preferred_leaders(image, policy))
        if moved:
            log.info("leaderships given back to preferred leaders", partitions=moved)
