"""Transaction markers: the one record of a control batch that ends a transaction (KIP-98)."""

from struct import Struct, error
from typing import Final

from headrace_broker.protocol.batch import ControlType, iterate_records, parse_control_type
from headrace_broker.protocol.errors import DecodeError

_VALUE: Final = Struct(">hi")
"""Version, coordinator epoch."""


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
