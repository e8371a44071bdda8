"""Leader election by a coordination.k8s.io Lease, and the fence that it puts around writes.

Owns one Lease. The holder renews it well within its duration, and counts its own time from before
it sends the renewal. After that time `check` raises, so that a holder that may have been succeeded
sends nothing. Clocks of different machines are never compared: a candidate waits until it has seen
the same lease unchanged for a whole duration (as client-go does).
"""

from __future__ import annotations

import asyncio
import datetime as dt
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog

from headrace_operator.kubernetes.api.client import FencedError, KubernetesError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["Election"]

LEASE_SECONDS = 15.0
RENEW_SECONDS = 3.0
#: A renewal on a silent connection is given up early enough to try another.
REQUEST_SECONDS = 4.0
#: The holder stops this long before others may start: a checked request takes time, too.
MARGIN_SECONDS = 3.0

_log = structlog.get_logger("headrace.operator.lease")


class Election:
    """Holds one Lease, or tries to acquire it."""

    def __init__(
        self,
        client: KubernetesClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        metadata: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """`client` must be one without a fence; `clock` is monotonic, in seconds.

        `metadata`: labels and annotations that the Lease is to have.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._metadata = metadata
        self._held_until = float("-inf")
        self._seen: tuple[Any, ...] = ()
        self._seen_at = float("-inf")
        #: The state that was logged last: the lease may also expire between two rounds.
        self._logged = False
        self.changed = asyncio.Event()

    @property
    def is_leader(self) -> bool:
        """Whether the lease is certainly held now."""
        return self._clock() < self._held_until

    def check(self) -> None:
        """Raise FencedError if another process may hold the lease."""
        if not self.is_leader:
            raise FencedError("the lease is not held: another operator may be at work")

    async def run(self) -> None:
        """Try to acquire and keep the lease until cancelled; then release it."""
        try:
            while True:
                try:
                    await self._round()
                except KubernetesError as error:
                    _log.warning("lease not renewed", error=str(error), leader=self.is_leader)
                if self.is_leader != self._logged:
                    self._logged = self.is_leader
                    _log.info("leadership", leader=self._logged, identity=self._identity)
                    self.changed.set()
                await asyncio.sleep(RENEW_SECONDS)
        finally:
            await self._release()

    async def _round(self) -> None:
        now = self._clock()
        lease = await self._client.get(
            "coordination.k8s.io/v1", "Lease", self._namespace, self._name
        )
        if lease is None:
            lease = await self._write(None)
        else:
            spec = lease.get("spec") or {}
            if not self._may_take(spec, now):
                # Another one holds it by now: somebody deleted or overwrote ours.
                self._held_until = float("-inf")
                return
            lease = await self._write(lease)
        if lease is not None:
            self._held_until = now + LEASE_SECONDS - MARGIN_SECONDS

    def _may_take(self, spec: Object, now: float) -> bool:
        holder = spec.get("holderIdentity")
        if holder in (self._identity, "", None):
            return True
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        duration = spec.get("leaseDurationSeconds") or LEASE_SECONDS
        return now - self._seen_at > duration

    async def _write(self, lease: Object | None) -> Object | None:
        """Write this process as the holder; None: another one was faster."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (lease is not None)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "renewTime": now,
        }
        metadata: Object = {"name": self._name, "namespace": self._namespace, **self._metadata}
        body: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        try:
            if lease is None:
                return await self._client.create(body)
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
            return await self._client.replace(body)
        except KubernetesError as error:
            if error.is_conflict:
                return None
            raise

    async def _release(self) -> None:
        """Release the lease if it is held, so that the next holder can start at once."""
        if not self.is_leader:
            return
        self._held_until = float("-inf")
        try:
            lease = await self._client.get(
                "coordination.k8s.io/v1", "Lease", self._namespace, self._name
            )
            if lease is None or lease["spec"].get("holderIdentity") != self._identity:
                return
            lease["spec"]["holderIdentity"] = ""
            lease["metadata"].pop("managedFields", None)
            await self._client.replace(lease)
        except KubernetesError as error:
            _log.warning("lease not released", error=str(error))
