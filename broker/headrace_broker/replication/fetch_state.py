"""`FetchState`: the follower's side of one incremental fetch session (KIP-227).

Owns the partitions of a session and which of them are dirty (to be included in the next request),
so that a request names only those. The fetcher sends requests and applies the answers to logs.
"""

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_EPOCH = 0
_EPOCH_MAX = 2**31 - 1


class Position(NamedTuple):
    """A partition's fields in a fetch."""

    fetch_offset: int
    last_fetched_epoch: int
    leader_epoch: int
    log_start_offset: int


class Round(NamedTuple):
    """One request of a session. `number` orders the requests in flight."""

    number: int
    session_id: int
    epoch: int
    dirty: list[tuple[Any, Position]]
    forgotten: list[Any]


class FetchState(Generic[Key]):
    """One session: partitions by key, their positions as last sent, and the dirty ones.

    A request may be sent while the previous one still waits for data. An answer therefore counts
    for a partition only if no later request, and no change, has included that partition since.
    """

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = FIRST_EPOCH
        self._number = 0
        self._sent: dict[Key, tuple[Position, int]] = {}
        self._dirty: dict[Key, Position] = {}
        self._forgotten: list[Key] = []
        self._held: set[Key] = set()

    def __len__(self) -> int:
        return len(self._sent.keys() | self._dirty.keys())

    def __contains__(self, key: Key) -> bool:
        return key in self._sent or key in self._dirty

    @property
    def is_dirty(self) -> bool:
        """Whether the next request must name any partition."""
        return bool(self._dirty.keys() - self._held if self._held else self._dirty)

    def set(self, key: Key, position: Position) -> None:
        """Fetch a partition from `position` on, starting with the next request."""
        sent = self._sent.get(key)
        if sent is not None and sent[0] == position:
            self._dirty.pop(key, None)
        else:
            self._dirty[key] = position

    def hold(self, key: Key) -> None:
        """Leave a partition out until `release`: its position is not on this disk yet."""
        self._held.add(key)

    def release(self, key: Key) -> None:
        """Include the partition's position in the next request again."""
        self._held.discard(key)

    def remove(self, key: Key) -> None:
        """Stop fetching a partition."""
        self._held.discard(key)
        self._dirty.pop(key, None)
        if self._sent.pop(key, None) is not None and self.epoch != FIRST_EPOCH:
            self._forgotten.append(key)

    def answered(self, key: Key, number: int) -> Position | None:
        """Return the partition's position in request `number`; None if that is out of date."""
        sent = self._sent.get(key)
        if sent is None or sent[1] > number or key in self._dirty:
            return None
        return sent[0]

    def take(self) -> Round:
        """Return the next request, and count it as sent."""
        self._number += 1
        number, epoch = self._number, self.epoch
        held: dict[Key, Position] = {}
        if self._held:
            # In the order of the dirty ones: that of a set is another in each process.
            held = {key: self._dirty[key] for key in self._dirty if key in self._held}
            for key in held:
                del self._dirty[key]
        dirty = list(self._dirty.items())
        forgotten = [key for key in self._forgotten if key not in self._dirty]
        for key, position in dirty:
            self._sent[key] = position, number
        self._dirty = held
        self._forgotten = [key for key in self._forgotten if key in held]
        self.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return Round(number, self.session_id, epoch, dirty, forgotten)

    def restart(self) -> None:
        """Restart: the next request opens a new session with every partition."""
        sent = {key: position for key, (position, _) in self._sent.items()}
        self._dirty = sent | self._dirty
        self._sent = {}
        self._forgotten = []
        self.session_id = 0
        self.epoch = FIRST_EPOCH

    def keys(self) -> list[Key]:
        """Every fetched partition."""
        return list(self._sent | self._dirty)
