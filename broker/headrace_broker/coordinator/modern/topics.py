"""The topics that a coordinator uses to assign partitions, and the hash that detects changes.

A group keeps the hash of its topics in its epoch record (KIP-1101; KIP-848 at first kept the
partition counts). A new coordinator that computes another hash knows that the topics changed in the
meantime, and assigns again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final
from uuid import UUID

_HASH_BYTES: Final = 8
_HASH_MEMO_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic: `racks` has the racks of each partition's replicas, or is empty without racks."""

    topic_id: UUID
    name: str
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()

    def digest(self) -> bytes:
        """Return a digest that changes whenever an assignor could decide otherwise."""
        hasher = blake2b(self.topic_id.bytes, digest_size=_HASH_BYTES)
        hasher.update(f"{self.name}\0{self.partition_count}".encode())
        for racks in self.racks:
            hasher.update(b"\1" + b"\0".join(rack.encode() for rack in sorted(racks)))
        return hasher.digest()


@dataclass(slots=True, kw_only=True)
class TopicsView:
    """The topics of one metadata image. Replaced, never changed: hashes are remembered."""

    version: int = 0
    """Grows with every image; a regular expression is resolved for one version."""
    by_name: Mapping[str, TopicView] = field(default_factory=dict)
    by_id: Mapping[UUID, TopicView] = field(default_factory=dict)
    _hashes: dict[frozenset[str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, topics: Iterable[TopicView], version: int = 0) -> "TopicsView":
        """Return the view of these topics."""
        listed = list(topics)
        return cls(
            version=version,
            by_name={topic.name: topic for topic in listed},
            by_id={topic.topic_id: topic for topic in listed},
        )

    def ids_of(self, names: Iterable[str]) -> frozenset[UUID]:
        """Return the ids of those topics that exist."""
        found = (self.by_name.get(name) for name in names)
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def metadata_hash(self, names: frozenset[str]) -> int:
        """Return the signed 64-bit hash of these topics; 0 when none of them exists."""
        known = self._hashes.get(names)
        if known is not None:
            return known
        digests = [
            topic.digest()
            for name in sorted(names)
            if (topic := self.by_name.get(name)) is not None
        ]
        value = 0
        if digests:
            digest = blake2b(b"".join(digests), digest_size=_HASH_BYTES).digest()
            value = int.from_bytes(digest, "big", signed=True)
        if len(self._hashes) < _HASH_MEMO_MAX:
            self._hashes[names] = value
        return value
