"""A broker's membership: it registers, sends heartbeats, and leaves.

A process registers with a new incarnation id and starts out fenced. A heartbeat unfences it once it
has applied the metadata up to its own registration; when its heartbeats stop, it is fenced again. A
controlled shutdown first moves its leaders away (KIP-631).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace_broker.metadata.brokers.registration import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_MIN,
)
from headrace_broker.metadata.entities import Endpoint
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace_broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, Offset
from headrace_broker.server.peers.peers import PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.peers.peers import PeerConnections
    from headrace_broker.server.quorum.metadata_loader import MetadataLoader

_RETRY_SECONDS = 0.05
_SHUTDOWN_SECONDS_MAX = 10.0
_STOPPING_REQUEST_MS = 1000
_STARTING_SECONDS_MAX = 2.0
# How many heartbeat intervals to wait for an answer: meanwhile `Beats` keeps the session alive.
_REQUEST_HEARTBEATS = 5

_NOBODYS = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})
"""The error codes of a node that does not lead the quorum."""

log = structlog.get_logger()


class BrokerLifecycle:
    """One broker process in the cluster. `start` first; `shut_down` before it stops serving."""

    def __init__(
        self,
        config: BrokerConfig,
        peers: PeerConnections,
        loader: MetadataLoader,
        *,
        incarnation_id: UUID,
        cluster_id: str,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._node_id: NodeId = config.node_id
        self._rack = config.rack
        self._interval = config.values["broker.heartbeat.interval.ms"] / 1000
        self._request_ms: int = _REQUEST_HEARTBEATS * config.values["broker.heartbeat.interval.ms"]
        self._peers = peers
        self._loader = loader
        self._incarnation_id = incarnation_id
        self._cluster_id = cluster_id
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._may_stop = asyncio.Event()
        self._may_serve = False
        self._starting_until = 0.0
        self._soon = asyncio.Event()
        self._request = BrokerRegistrationRequest()
        self._failed_directories: list[UUID] = []
        self.epoch = BrokerEpoch(-1)
        self.heard_at = asyncio.get_running_loop().time()
        """When an active controller answered last, on the event loop's clock."""
        self.registered = asyncio.Event()
        self.unfenced = asyncio.Event()

    def start(
        self, endpoints: list[Endpoint], log_dirs: list[UUID], previous_epoch: BrokerEpoch
    ) -> None:
        """Begin to register. `previous_epoch` is -1 unless the last process stopped cleanly."""
        self._request = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(
                    name=item.name,
                    host=item.host,
                    port=item.port,
                    security_protocol=item.security_protocol,
                )
                for item in endpoints
            ],
            features=[
                Feature(
                    name=METADATA_VERSION_FEATURE,
                    min_supported_version=METADATA_VERSION_MIN,
                    max_supported_version=METADATA_VERSION,
                )
            ],
            rack=self._rack,
            log_dirs=log_dirs,
            previous_broker_epoch=previous_epoch,
        )
        self._task = asyncio.get_running_loop().create_task(self._run(), name="broker lifecycle")

    def serve(self) -> None:
        """Ask to be unfenced: the listeners now accept clients."""
        self._may_serve = True
        self._starting_until = asyncio.get_running_loop().time() + _STARTING_SECONDS_MAX
        self._soon.set()

    def is_starting(self) -> bool:
        """Whether clients are served although the metadata do not show this process unfenced yet.

        False for good once the metadata show it, or two seconds after clients were let in.
        """
        if not self._starting_until:
            return False
        registered = self._loader.image.brokers.get(self._node_id)
        is_shown = (
            registered is not None
            and registered.incarnation_id == self._incarnation_id
            and not registered.fenced
        )
        if is_shown or asyncio.get_running_loop().time() > self._starting_until:
            self._starting_until = 0.0
        return bool(self._starting_until)

    def report_failed_directories(self, failed: list[UUID]) -> None:
        """Tell the controller at once which log directories have failed (KIP-858)."""
        self._failed_directories = failed
        self._request.log_dirs = [each for each in self._request.log_dirs if each not in failed]
        self._soon.set()

    async def shut_down(self) -> None:
        """Have the leaders moved away, within a time limit in case the cluster cannot move them."""
        self._is_stopping = True
        self.unfenced.clear()
        if not self.registered.is_set() or not self._has_others():
            return
        self._soon.set()
        try:
            async with asyncio.timeout(_SHUTDOWN_SECONDS_MAX):
                await self._may_stop.wait()
        except TimeoutError:
            log.warning("controlled shutdown took too long", seconds=_SHUTDOWN_SECONDS_MAX)

    def _has_others(self) -> bool:
        return any(
            broker.node_id != self._node_id for broker in self._loader.image.active_brokers()
        )

    async def close(self) -> None:
        """Stop heartbeats."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while not self._may_stop.is_set():
                if not self.registered.is_set():
                    await self._register()
                elif not await self._beat():
                    self.registered.clear()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.critical("the broker's membership fails", exc_info=error)
            self._on_failure(error)

    async def _register(self) -> None:
        try:
            response = await self._peers.to_controller(self._request, timeout_ms=self._request_ms)
        except PeerUnavailable as error:
            log.debug("not registered yet", cause=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
            return
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code)
            # The session of this id's former process is still open, or the controller changed.
            log.info("registration refused", error=code.name)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        epoch = BrokerEpoch(response.broker_epoch)
        await self._loader.wait_for(Offset(epoch))
        self.epoch = epoch
        self.registered.set()
        log.info("broker registered", node_id=self._node_id, broker_epoch=epoch)

    async def _beat(self) -> bool:
        """Send one heartbeat and wait until the next is due; return False to register again."""
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=max(self._loader.image.offset, 0),
            want_fence=not self._may_serve,
            want_shut_down=self._is_stopping,
            offline_log_dirs=self._failed_directories,
        )
        self._soon.clear()
        try:
            timeout_ms = _STOPPING_REQUEST_MS if self._is_stopping else self._request_ms
            response = await self._peers.to_controller(request, timeout_ms=timeout_ms)
        except PeerUnavailable as error:
            log.debug("heartbeat failed", cause=str(error))
            if self._is_stopping:
                # No controller can move leaders: the whole cluster may be stopping.
                self._may_stop.set()
            await asyncio.sleep(_RETRY_SECONDS)
            return True
        code = response.error_code
        if code not in _NOBODYS:
            self.heard_at = asyncio.get_running_loop().time()
        if code in {ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED}:
            return False
        is_settled = code == ErrorCode.NONE and self._take(response)
        # While a change is pending, ask again soon.
        delay = self._interval if is_settled else min(_RETRY_SECONDS, self._interval)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._soon.wait()
        return True

    def _take(self, response: BrokerHeartbeatResponse) -> bool:
        """Process an answer; return whether no change is pending."""
        if self._is_stopping:
            if response.should_shut_down:
                self._may_stop.set()
            return response.should_shut_down
        if response.is_fenced:
            self.unfenced.clear()
            return not self._may_serve
        self.unfenced.set()
        return True
