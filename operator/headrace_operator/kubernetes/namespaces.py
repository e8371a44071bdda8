"""Which namespaces a Cluster's `allowedTopics` selects by their labels.

Namespaces are listed, not watched: each full pass asks for them, about every half minute. If the
operator may not list them (one for a single namespace), none is selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.resources import Cluster

__all__ = ["Namespaces"]

FRESH_SECONDS = 10.0
_log = structlog.get_logger("headrace.operator.namespaces")


class Namespaces:
    """Selections, each listed at most once in FRESH_SECONDS."""

    def __init__(self, client: KubernetesClient, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._client = client
        self._clock = clock
        self._found: dict[str, tuple[float, frozenset[str]]] = {}

    async def selected(self, cluster: Cluster) -> frozenset[str]:
        """Return the names; an empty selector selects all, as always in Kubernetes."""
        allowed = cluster.spec.allowed_topics.namespaces
        if allowed.from_ != "Selector":
            return frozenset()
        labels = sorted(allowed.selector.match_labels.items())
        selector = ",".join(f"{key}={value}" for key, value in labels)
        at, names = self._found.get(selector, (float("-inf"), frozenset[str]()))
        if self._clock() - at >= FRESH_SECONDS:
            names = await self._list(selector)
            self._found[selector] = (self._clock(), names)
        return names

    async def _list(self, selector: str) -> frozenset[str]:
        try:
            found = await self._client.list("v1", "Namespace", None, selector or None)
        except KubernetesError as error:
            if not error.is_refusal:
                raise
            # Without the right to, or by what is no label: `spec_check` says so.
            _log.warning("namespaces cannot be listed: none is selected", error=str(error))
            return frozenset()
        return frozenset(each["metadata"]["name"] for each in found)
