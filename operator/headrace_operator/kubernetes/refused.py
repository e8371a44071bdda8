"""Topics and groups that brokers refused: each is retried after its own delay.

The delay doubles each time, independent of the Cluster's other passes. A changed spec is tried at
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.register import Version
    from headrace_operator.plan import Action, Key

__all__ = ["Refused"]

AGAIN_SECONDS_MIN = 2.0
AGAIN_SECONDS_MAX = 120.0
#: The longest delay for errors that may go away by themselves: a lost answer, a starting broker.
AGAIN_SECONDS_MAX_RETRIABLE = 8.0


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    failure: Failure
    version: Version | None
    at: float
    delay: float

    @property
    def until(self) -> float:
        return self.at + self.delay


class Refused:
    """What the brokers of one Cluster refused, by resource. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        """Nothing has been refused yet."""
        self._refusals: dict[Key, _Refusal] = {}

    def split(
        self, actions: Iterable[Action], versions: Mapping[Key, Version], now: float
    ) -> tuple[list[Action], list[Failure]]:
        """Return the actions to try now, and the last failures of those that are held back."""
        tried: list[Action] = []
        held: dict[Key, Failure] = {}
        for action in actions:
            refusal = self._refusals.get(action.resource)
            if (
                refusal is None
                or refusal.until <= now
                or refusal.version != versions.get(action.resource)
            ):
                tried.append(action)
            else:
                held[action.resource] = refusal.failure
        return tried, list(held.values())

    def note(
        self,
        tried: Sequence[Action],
        failures: Sequence[Failure],
        versions: Mapping[Key, Version],
        now: float,
    ) -> None:
        """Record the outcome of actions. A Cluster's own are not held: its whole pass waits."""
        failed = {
            failure.action.resource: failure
            for failure in failures
            if failure.action.resource[0] != "Cluster"
        }
        for key in {action.resource for action in tried} - failed.keys():
            self._refusals.pop(key, None)
        for key, failure in failed.items():
            before = self._refusals.get(key)
            version = versions.get(key)
            delay = AGAIN_SECONDS_MIN
            if before is not None and before.version == version:
                delay = 2 * before.delay
            most = AGAIN_SECONDS_MAX_RETRIABLE if failure.is_retriable else AGAIN_SECONDS_MAX
            self._refusals[key] = _Refusal(
                failure=failure, version=version, at=now, delay=min(delay, most)
            )

    def forget(self, key: Key) -> None:
        """Remove a deleted resource."""
        self._refusals.pop(key, None)

    def next_at(self) -> float | None:
        """Return when the next retry is due; None: nothing is held back."""
        return min((each.until for each in self._refusals.values()), default=None)
