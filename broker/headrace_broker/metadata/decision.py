"""What deciding yields: records to commit and what to answer once they are committed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace_broker.metadata.records import MetadataRecord

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDecision(Generic[R_co]):
    """`records` become one batch of the metadata log: all of them are committed, or none is.

    Only replaying them changes the image. `response` holds from then on.
    """

    records: Sequence[MetadataRecord]
    response: R_co


class RandomSource(Protocol):
    """Randomness as the caller hands it in; `random.Random` fits."""

    def getrandbits(self, k: int, /) -> int:
        """Return `k` random bits."""
        ...

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...
