"""Kubernetes' controllers that wait after failures, for up to 1,000 s.

They look again when an object changes; an annotation is a change that nothing else follows from.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_operator.kubernetes.api.client import KubernetesError

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["NEVER", "WAKE_SECONDS_MAX", "WAKE_SECONDS_MIN", "WOKEN", "Wakes", "wake"]

#: On a StatefulSet or Service: when its controller was last made to look at it.
WOKEN = "headrace.dev/woken-at"
#: From the first of these on, at growing intervals.
WAKE_SECONDS_MIN, WAKE_SECONDS_MAX = 10.0, 300.0
NEVER = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclass(kw_only=True)
class Wakes:
    """When a controller was last made to look at one object."""

    at: dt.datetime = NEVER
    seconds: float = WAKE_SECONDS_MIN
    seconds_max: float = WAKE_SECONDS_MAX

    def is_due(self, now: dt.datetime) -> bool:
        """Whether it may be made to look again."""
        return (now - self.at).total_seconds() >= self.seconds

    def note(self, now: dt.datetime) -> None:
        """Note that it is made to look now; the next time is later."""
        if self.at != NEVER:
            self.seconds = min(2 * self.seconds, self.seconds_max)
        self.at = now


async def wake(client: KubernetesClient, obj: Object, now: dt.datetime) -> None:
    """Have an object's controller look at it again. Raises KubernetesError."""
    annotations = {WOKEN: f"{now:%Y-%m-%dT%H:%M:%SZ}"}
    try:
        await client.patch(obj, {"metadata": {"annotations": annotations}})
    except KubernetesError as error:
        # Who refuses that refuses the object itself too, which says so.
        if not error.is_about_object:
            raise
