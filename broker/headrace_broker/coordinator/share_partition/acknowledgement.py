"""A member's acknowledgements as a request contains them: checked, and split into runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_broker.coordinator.share_partition.states import AcknowledgeType
from headrace_broker.protocol.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Offsets `first` to `last`, and one type for all of them or one for each."""

    first: int
    last: int
    types: Sequence[int]


def pieces(
    acknowledgements: Iterable[Acknowledgement], start_offset: int
) -> Iterable[tuple[int, int, AcknowledgeType]]:
    """Yield runs of offsets with one type.

    Offsets below the start offset are finished: they are skipped (as in Kafka). Raises
    INVALID_REQUEST for invalid batches.
    """
    position = -1
    for item in acknowledgements:
        size = item.last - item.first + 1
        if item.first <= position or size <= 0 or len(item.types) not in {1, size}:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The acknowledgement of {item.first} to {item.last} with {len(item.types)} types "
                "is not valid: ranges must follow each other, with one type or one for each.",
            )
        position = item.last
        kinds = [_kind(kind) for kind in item.types]
        if item.last < start_offset:
            continue
        if len(kinds) == 1:
            yield max(item.first, start_offset), item.last, kinds[0]
            continue
        first = item.first
        for place, kind in enumerate(kinds):
            offset = item.first + place
            if place + 1 < size and kinds[place + 1] is kind:
                continue
            if offset >= start_offset:
                yield max(first, start_offset), offset, kind
            first = offset + 1


def _kind(kind: int) -> AcknowledgeType:
    try:
        return AcknowledgeType(kind)
    except ValueError as error:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{kind} is no type of acknowledgement"
        ) from error
