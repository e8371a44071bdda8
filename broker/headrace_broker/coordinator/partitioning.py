"""Which partition of `__consumer_offsets` holds a group: `(hashCode(group) & 0x7FFFFFFF) % count`.

Kafka has `Utils.abs(hashCode(group)) % count`, which differs for the half of all names whose hash
is negative. Clients ask FindCoordinator; only a log taken over from Kafka would not fit. Another
rule needs a way for clusters that have groups: brokers of both rules must never run together.
"""

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
    """Return the partition, by the low 31 bits of the name's hash."""
    return PartitionIndex((java_string_hash(group_id) & (_INT32_SIGN - 1)) % partition_count)
