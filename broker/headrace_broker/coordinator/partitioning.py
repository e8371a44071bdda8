"""Which partition of `__consumer_offsets` holds a group: `abs(hashCode(group)) % partitions`."""

from headrace_broker.protocol.types import PartitionIndex

_INT32_SIGN = 1 << 31
_INT32_MASK = (1 << 32) - 1


def java_string_hash(text: str) -> int:
    """`java.lang.String.hashCode`: over UTF-16 code units, in wrapping 32-bit arithmetic."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & _INT32_MASK
    return value - (1 << 32) if value & _INT32_SIGN else value


def partition_for_group(group_id: str, partition_count: int) -> PartitionIndex:
    """Return the partition. Like Kafka's `Utils.abs` it keeps the low 31 bits, also of -2**31."""
    return PartitionIndex((java_string_hash(group_id) & (_INT32_SIGN - 1)) % partition_count)
