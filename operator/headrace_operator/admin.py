"""The operator's connection to a cluster's brokers: kafka-python's admin client in one thread.

Owns the client, its thread and nothing else. The client blocks, so every call goes to the thread,
one after the other. A client that failed to reach the brokers is closed and replaced, because
brokers may return at other addresses.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace_operator.advertised import observe_advertised
from headrace_operator.apply import Failure, apply_actions
from headrace_operator.observe import observe_brokers
from headrace_operator.observe_some import observe_health, observe_some
from headrace_operator.plan import Observed, ObservedCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from headrace_operator.plan import Action, Desired

CLIENT_ID = "headrace-operator"
#: If brokers do not answer within this time, the next reconciliation tries again.
REQUEST_TIMEOUT_MS = 10_000
BOOTSTRAP_TIMEOUT_MS = 5_000

_T = TypeVar("_T")


class BrokerAdmin:
    """Asynchronous observe and apply. Close it, or use it with `async with`."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS,
    ) -> None:
        """No connection is made before the first call."""
        self.bootstrap_servers = bootstrap_servers
        self._request_timeout_ms = request_timeout_ms
        self._bootstrap_timeout_ms = bootstrap_timeout_ms
        self._client: Any = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-admin")

    async def __aenter__(self) -> Self:
        """See close."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See close."""
        await self.close()

    async def observe(self, desired: Desired, *, now_ms: int) -> Observed:
        """Return the brokers' state; without an answer, a cluster that is not reachable."""
        return await self._observe(lambda admin: observe_brokers(admin, desired, now_ms=now_ms))

    async def observe_some(self, desired: Desired, known: Observed, *, now_ms: int) -> Observed:
        """Query only the topics and groups of `desired` again; the rest comes from `known`."""
        return await self._observe(lambda admin: observe_some(admin, desired, known, now_ms=now_ms))

    async def observe_health(self, known: Observed) -> Observed:
        """Query again who is alive and in sync; settings and groups come from `known`."""
        return await self._observe(lambda admin: observe_health(admin, known))

    async def advertised(self, node_ids: Sequence[int]) -> dict[int, dict[str, str]]:
        """Ask brokers for their advertised addresses; see `observe_advertised`."""
        from kafka.errors import KafkaError

        try:
            return await self._call(lambda admin: observe_advertised(admin, node_ids))
        except KafkaError:
            return {}

    async def _observe(self, function: Callable[[Any], Observed]) -> Observed:
        from kafka.errors import KafkaError

        was_connected = self._client is not None
        try:
            try:
                return await self._call(function)
            except KafkaError:
                # One connection may hang, for example to a deleted pod: try other brokers before
                # concluding that no broker answers.
                if not was_connected:
                    raise
                return await self._call(function)
        except KafkaError as error:
            message = str(error)
            cluster = ObservedCluster(
                bootstrap_servers=self.bootstrap_servers, is_reachable=False, error=message
            )
            return Observed(cluster=cluster)

    async def apply(
        self, actions: Sequence[Action], check: Callable[[], None] = lambda: None
    ) -> tuple[Failure, ...]:
        """Carry out the actions on topics and groups; return the failures.

        `check` is called in a thread before each kind of request; its exception stops the rest.
        """
        from kafka.errors import KafkaError

        def run(admin: Any) -> tuple[Failure, ...]:
            failures = apply_actions(admin, actions, check)
            if any(failure.is_retriable for failure in failures):
                # The client may go on asking a former coordinator.
                self._disconnect()
            return failures

        try:
            return await self._call(run)
        except KafkaError as error:
            message = f"outcome unknown: {error}"
            return tuple(
                Failure(action=action, message=message, is_retriable=True) for action in actions
            )

    async def close(self) -> None:
        """Close the client and end its thread."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[[Any], _T]) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, function)

    def _run(self, function: Callable[[Any], _T]) -> _T:
        try:
            return function(self._connected())
        except Exception:
            # Whatever the error was, a client in an unknown state is not used again.
            self._disconnect()
            raise

    def _connected(self) -> Any:
        if self._client is None:
            from kafka import KafkaAdminClient

            # Its warnings about connections repeat the conditions.
            logging.getLogger("kafka").setLevel(logging.CRITICAL)
            self._client = KafkaAdminClient(
                bootstrap_servers=self.bootstrap_servers.split(","),
                client_id=CLIENT_ID,
                request_timeout_ms=self._request_timeout_ms,
                bootstrap_timeout_ms=self._bootstrap_timeout_ms,
            )
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
