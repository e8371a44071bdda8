"""Kinds of other projects that come and go with their CRDs: they are listed now and then.

A watch ends for good with its CRD, and kopf's takes the process with it. So these kinds are looked
at instead: one that arrives is kept from then on, one that goes is forgotten.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.api.watches import OPTIONAL_OWNED_KINDS, selector_of
from headrace_operator.kubernetes.freshness import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.watches import Watched
    from headrace_operator.kubernetes.freshness import Version
    from headrace_operator.kubernetes.informer import Informer

__all__ = ["LOOK_SECONDS", "OptionalKinds"]

#: Nothing that brokers need depends on these objects.
LOOK_SECONDS = 10.0

_log = structlog.get_logger("headrace.operator.kinds")


class OptionalKinds:
    """Feeds the informer with objects of OPTIONAL_OWNED_KINDS, as far as these are served."""

    def __init__(
        self,
        client: KubernetesClient,
        store: Store,
        informer: Informer,
        namespaces: Sequence[str],
    ) -> None:
        """`namespaces` empty: all."""
        self._client = client
        self._store = store
        self._informer = informer
        self._namespaces = namespaces
        self._has_looked = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Compare what is known with what is there."""
        for watched in OPTIONAL_OWNED_KINDS:
            try:
                await self._look_at(watched)
            except KubernetesError as error:
                _log.warning("not looked at", kind=watched[1], error=str(error))
        self._has_looked = True

    async def _look_at(self, watched: Watched) -> None:
        api_version, kind = watched
        is_new = kind not in self._store.watched
        if is_new and not await self._client.serves(api_version, kind):
            return
        try:
            await self._compare(watched)
        except KubernetesError as error:
            if not error.is_not_found:
                raise
            self._drop(watched)
            return
        if is_new:
            self._store.watched |= {kind}
            _log.info("keeps objects of a kind that is served now", kind=kind)
            if self._has_looked:
                self._informer.mark_all()

    async def _compare(self, watched: Watched) -> None:
        api_version, kind = watched
        selector = selector_of(watched)
        for namespace in self._namespaces or (None,):
            listed = await self._client.list_versions(api_version, kind, namespace, selector)
            known: dict[tuple[str, str], Version] = {
                name: version
                for name, version in self._informer.versions(kind).items()
                if namespace in (None, name[0])
            }
            late, gone = compare(listed.versions, known, listed.resource_version)
            if late:
                for obj in await self._client.list(api_version, kind, namespace, selector):
                    self._informer.see(obj, is_gone=False)
            for name in gone:
                self._informer.take_for_gone(kind, name)

    def _drop(self, watched: Watched) -> None:
        """Forget a kind that is not served any more, and its objects."""
        api_version, kind = watched
        self._client.forget_type(api_version, kind)
        if kind not in self._store.watched:
            return
        _log.info("forgets a kind that is not served any more", kind=kind)
        self._store.watched -= {kind}
        for name in self._informer.versions(kind):
            self._informer.take_for_gone(kind, name)
