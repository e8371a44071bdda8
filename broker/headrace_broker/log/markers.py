"""Transaction markers: the one record of a control batch that ends a transaction (KIP-98)."""

from struct import Struct, error
from typing import Final, NamedTuple

from headrace_broker.protocol.batch import (
    ControlType,
    build_end_txn_marker,
    iterate_records,
    parse_control_type,
)
from headrace_broker.protocol.errors import DecodeError

_VALUE: Final = Struct(">hi")
"""Version, coordinator epoch."""


class Marker(NamedTuple):
    """The end of a transaction, as it is written to a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool
    bumped_epoch: bool
    """Whether the marker has the epoch after the transaction's (transaction version 2)."""

    def batch(self, now_ms: int) -> bytearray:
        """Return the control batch to append."""
        return build_end_txn_marker(
            ControlType.COMMIT if self.commits else ControlType.ABORT,
            self.coordinator_epoch,
            now_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
        )


def read_marker(batch: bytes | memoryview) -> tuple[ControlType, int] | None:
    """Return (ABORT or COMMIT, coordinator epoch), or None for another kind of control batch."""
    try:
        record = next(iterate_records(batch))
        kind = parse_control_type(record.key)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        return ControlType(kind), _VALUE.unpack_from(record.value or b"")[1]
    except (DecodeError, error, StopIteration):
        return None
