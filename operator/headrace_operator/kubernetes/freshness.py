"""Compares watches with lists: a dead watch looks like a quiet cluster.

Owns this comparison and its results. If a list shows a change that the watch does not deliver
within `stale_seconds`, the watch is stale, and `/healthz` reports it. A deletion during an
interruption, which a watch never delivers, is corrected here. If the API server does not answer, no
watch becomes stale: another process would see no more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.api.watches import selector_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.watches import Watched
    from headrace_operator.kubernetes.metrics import OperatorMetrics

__all__ = ["PROBE_SECONDS", "STALE_PROBES", "Freshness", "Version", "Watching", "compare"]

PROBE_SECONDS = 30.0
#: A watch may be late by this many probes.
STALE_PROBES = 2
#: Lists of thousands of objects are expensive: they take at most this share of the time, as long as
#: the next one comes within this many probes.
PROBING_SHARE = 0.01
PAUSE_PROBES_MAX = 10

#: Namespace and name.
_Name: TypeAlias = tuple[str, str]
#: An object's uid and resourceVersion.
Version: TypeAlias = tuple[str, int]

_log = structlog.get_logger("headrace.operator.freshness")


def compare(
    listed: Mapping[_Name, Version], known: Mapping[_Name, Version], listed_at: int
) -> tuple[dict[_Name, Version], set[_Name]]:
    """Return the changes that the watch has not delivered yet, and unnoticed deletions. Pure.

    `listed_at` is the list's resourceVersion: an object that is newer than that was not deleted.
    """
    late = {
        name: version
        for name, version in listed.items()
        if name not in known or known[name][1] < version[1]
    }
    gone = {
        name for name, (_, version) in known.items() if name not in listed and version <= listed_at
    }
    return late, gone


@dataclass(kw_only=True)
class _Watch:
    """The state of one kind's watch."""

    #: Since when (monotonic) it lacks an object, and of what version.
    late: dict[_Name, tuple[float, Version]] = field(default_factory=dict)
    gone: set[_Name] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is watched, and how to use the results."""

    client: KubernetesClient
    kinds: Sequence[Watched]
    namespaces: Sequence[str]
    metrics: OperatorMetrics
    #: What the watch of a kind has delivered.
    known: Callable[[str], Mapping[_Name, Version]]
    #: Treats an object of a kind as deleted.
    repair: Callable[[str, _Name], None]


class Freshness:
    """Probes every watched kind periodically."""

    def __init__(
        self, watching: Watching, clock: Callable[[], float], probe_seconds: float = PROBE_SECONDS
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._watching = watching
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._watches = {kind: _Watch() for _, kind in watching.kinds}

    @property
    def problem(self) -> str:
        """The stale watch; '' if there is none."""
        limit = self._probe_seconds * STALE_PROBES
        for kind, watch in self._watches.items():
            age = self._age(watch)
            if age > limit:
                namespace, name = next(iter(watch.late))
                return f"the watch of {kind} has not delivered {namespace}/{name} for {age:.0f} s"
        return ""

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await asyncio.sleep(self._probe_seconds)
            for api_version, kind in self._watching.kinds:
                began = self._clock()
                try:
                    await self.probe(api_version, kind)
                except KubernetesError as error:
                    # Time lost on a silent connection is not a cost of the list.
                    _log.warning("watch not probed", kind=kind, error=str(error))
                    continue
                # After a long list the next kind's probe comes later.
                pause = (self._clock() - began) / PROBING_SHARE
                await asyncio.sleep(min(pause, self._probe_seconds * PAUSE_PROBES_MAX))

    async def probe(self, api_version: str, kind: str) -> None:
        """Compare one kind. Raises KubernetesError."""
        selector = selector_of((api_version, kind))
        listed: dict[_Name, Version] = {}
        listed_at = 0
        for namespace in self._watching.namespaces or (None,):
            found = await self._watching.client.list_versions(
                api_version, kind, namespace, selector
            )
            listed |= found.versions
            listed_at = max(listed_at, found.resource_version)
        now = self._clock()
        known = self._watching.known(kind)
        late, gone = compare(listed, known, listed_at)
        watch = self._watches[kind]
        # A change that was late and has arrived is no longer late, even if the object changed
        # again.
        watch.late = {
            name: (
                watch.late[name]
                if name in watch.late and _is_older(known.get(name), watch.late[name][1])
                else (now, version)
            )
            for name, version in late.items()
        }
        for name in gone & watch.gone:
            _log.warning("a watch missed a deletion", kind=kind, resource=name)
            self._watching.metrics.watch_repairs.labels(kind).inc()
            self._watching.repair(kind, name)
        watch.gone = gone - watch.gone
        self._watching.metrics.watch_age.labels(kind).set(self._age(watch))

    def _age(self, watch: _Watch) -> float:
        return max((self._clock() - at for at, _ in watch.late.values()), default=0.0)


def _is_older(known: Version | None, version: Version) -> bool:
    return known is None or known[1] < version[1]
