"""One connection to the brokers of each Cluster, made on demand and fenced.

Owns the `BrokerAdmin`s. Without leadership no request that changes brokers is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.admin import BrokerAdmin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.register import ClusterKey
    from headrace_operator.plan import Action

__all__ = ["Admins"]


class Admins:
    """Admin connections by Cluster."""

    def __init__(self, fence: Callable[[], None]) -> None:
        """`fence` raises FencedError while nothing may be changed."""
        self._fence = fence
        self._admins: dict[ClusterKey, BrokerAdmin] = {}

    async def of(self, key: ClusterKey, bootstrap_servers: str) -> BrokerAdmin:
        """Return the connection; a new one if the addresses have changed."""
        admin = self._admins.get(key)
        if admin is None or admin.bootstrap_servers != bootstrap_servers:
            await self.forget(key)
            admin = self._admins[key] = BrokerAdmin(bootstrap_servers)
        return admin

    async def apply(self, admin: BrokerAdmin, actions: Sequence[Action]) -> tuple[Failure, ...]:
        """Carry out actions. Raises FencedError, after which nothing more is sent.

        A batch takes seconds in a thread, so leadership is checked before each of its requests.
        """
        self._fence()
        return await admin.apply(actions, self._fence)

    async def forget(self, key: ClusterKey) -> None:
        """Close a Cluster's connection."""
        admin = self._admins.pop(key, None)
        if admin is not None:
            await admin.close()

    async def close(self) -> None:
        """Close all."""
        for key in list(self._admins):
            await self.forget(key)
