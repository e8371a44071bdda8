"""`Throttle`: limits how fast out-of-sync replicas are copied (KIP-73)."""

from collections.abc import Sequence

UNLIMITED = 2**63 - 1
EVERY_REPLICA = "*"


class Throttle:
    """A bucket of one second's bytes; one fetch may overdraw it, which delays later ones."""

    __slots__ = ("_left", "_rate", "_since_ms")

    def __init__(self) -> None:
        self._rate = UNLIMITED
        self._left = 0.0
        self._since_ms = 0

    @property
    def rate(self) -> int:
        """Bytes per second."""
        return self._rate

    def set_rate(self, bytes_per_second: int) -> None:
        """Apply a changed setting."""
        if bytes_per_second != self._rate:
            self._rate = bytes_per_second
            self._left = float(bytes_per_second)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether sending or fetching must pause now."""
        if self._rate == UNLIMITED:
            return False
        earned = (now_ms - self._since_ms) * self._rate / 1000
        self._left = min(float(self._rate), self._left + max(0.0, earned))
        self._since_ms = now_ms
        return self._left <= 0

    def record(self, size: int) -> None:
        """Count bytes that were sent or fetched."""
        self._left -= size


def names_replica(throttled: Sequence[str], index: int, node_id: int) -> bool:
    """Whether a topic's list of throttled replicas holds this one."""
    return EVERY_REPLICA in throttled or f"{index}:{node_id}" in throttled
