"""What batches around an offset say of their producers and leaders: for who has to explain it."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

from kio.schema.fetch.v11.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.metadata.v4.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from headrace_broker.log.batches import iterate_headers
from support.wire import RawConnection

_BYTES_MAX = 1 << 20


def describe_batches(bootstrap: str, topic: str, partition: int, first: int, last: int) -> str:
    """Return a line of each batch from offset `first` to `last`; empty where nobody answers."""
    for address in _leaders(bootstrap, topic, partition):
        with suppress(OSError, ValueError), RawConnection(address) as connection:
            return "\n".join(_lines(connection, topic, partition, first, last))
    return ""


def _leaders(bootstrap: str, topic: str, partition: int) -> Iterator[str]:
    """Yield the leader's address, as each broker of `bootstrap` says."""
    wanted = (MetadataRequestTopic(name=TopicName(topic)),)
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    for address in bootstrap.split(","):
        with suppress(OSError, ValueError), RawConnection(address) as connection:
            answered = connection.call(request)
            brokers = {broker.node_id: broker for broker in answered.brokers}
            for each in answered.topics[0].partitions:
                if each.partition_index == partition and each.leader_id in brokers:
                    leader = brokers[each.leader_id]
                    yield f"{leader.host}:{leader.port}"


def _lines(
    connection: RawConnection, topic: str, partition: int, first: int, last: int
) -> Iterator[str]:
    at = first
    while at <= last:
        before = at
        for _, header in iterate_headers(_fetch(connection, topic, partition, at)):
            end = header.base_offset + header.last_offset_delta
            if at <= end and header.base_offset <= last:
                yield (
                    f"offsets {header.base_offset} to {end}: leader epoch"
                    f" {header.partition_leader_epoch}, producer {header.producer_id} epoch"
                    f" {header.producer_epoch}, sequence {header.base_sequence}"
                )
            at = max(at, end + 1)
        if at == before:
            return


def _fetch(connection: RawConnection, topic: str, partition: int, offset: int) -> bytes:
    place = FetchPartition(
        partition=i32(partition), fetch_offset=i64(offset), partition_max_bytes=i32(_BYTES_MAX)
    )
    request = FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(0)),
        min_bytes=i32(0),
        max_bytes=i32(_BYTES_MAX),
        session_epoch=i32(-1),
        topics=(FetchTopic(topic=TopicName(topic), partitions=(place,)),),
        forgotten_topics_data=(),
    )
    (answered,) = connection.call(request).responses
    return bytes(answered.partitions[0].records or b"")
