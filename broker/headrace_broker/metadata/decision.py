"""The result of a decision: records to commit, and the response once they are committed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace_broker.metadata.records import MetadataRecord

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDecision(Generic[R_co]):
    """`records` become one batch of the metadata log: all of them are committed, or none is.

    Only their replay changes the image. `response` is valid from then on.
    """

    records: Sequence[MetadataRecord]
    response: R_co


class RandomSource(Protocol):
    """Randomness that the caller passes in, such as `random.Random`."""

    def getrandbits(self, k: int, /) -> int:
        """Return `k` random bits."""
        ...

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...
