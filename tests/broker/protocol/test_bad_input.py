"""Bytes that lie: DecodeError, nothing else, and no memory for what is not there."""

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_broker.protocol.codec import decode, encode, encode_bytes
from headrace_broker.protocol.errors import DecodeError, EncodeError
from headrace_broker.protocol.headers import RequestHeader, decode_request_header
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace_broker.protocol.records import decode_metadata_record
from headrace_broker.protocol.schema import Message
from headrace_broker.protocol.wire import TAGGED_FIELDS_MAX, varuint
from support.messages import (
    all_message_classes,
    messages,
    request_and_response_classes,
    restricted,
    versions_of,
)

SEED = 20_26  # fixed, so that a failure repeats
ROUNDS = 10


@pytest.mark.parametrize("cls", request_and_response_classes(), ids=lambda cls: cls.__name__)
def test_a_message_cut_at_any_byte_is_a_decode_error(cls: type[Message]) -> None:
    @settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages(cls, elements_max=1))
    def refused(drawn: Message) -> None:
        for version in {cls.info.versions.low, cls.info.versions.high}:
            data = encode_bytes(restricted(drawn, version), version)
            for end in range(len(data)):
                with pytest.raises(DecodeError):
                    decode(cls, data[:end], version)

    refused()


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(all_message_classes()), st.binary(max_size=60), st.data())
def test_random_bytes_are_read_or_refused(
    cls: type[Message], data: bytes, choice: st.DataObject
) -> None:
    version = choice.draw(st.sampled_from(versions_of(cls)))
    try:
        _, end = decode(cls, data, version)
    except DecodeError:
        return
    assert end <= len(data)


def test_flipped_bits_are_read_or_refused() -> None:
    rng = random.Random(SEED)
    for cls in request_and_response_classes():
        for version in versions_of(cls):
            data = bytearray(encode_bytes(cls(), version) + bytes(8))
            for _ in range(ROUNDS):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                try:
                    decode(cls, memoryview(data), version)
                except DecodeError:
                    continue


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 1, b"\x7f\xff\xff\xff" + bytes(64)),
        (MetadataRequest, 12, b"\xff\xff\xff\xff\x07" + bytes(64)),
        (ProduceRequest, 3, b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff" + bytes(64)),
        (MetadataResponse, 0, b"\x7f\xff\xff\xff" + bytes(64)),
        (ListGroupsRequest, 4, b"\xff\xff\xff\xff\x0f" + bytes(64)),
    ],
)
def test_a_huge_count_allocates_nothing(cls: type[Message], version: int, data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(cls, data, version)  # compiles
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(cls, data, version)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000


def test_a_negative_length_where_null_is_not_allowed_is_refused() -> None:
    with pytest.raises(DecodeError, match="topics"):
        decode(MetadataRequest, b"\xff\xff\xff\xff", 0)
    assert decode(MetadataRequest, b"\xff\xff\xff\xff", 1)[0].topics is None
    with pytest.raises(DecodeError, match="name"):
        decode(MetadataRequest, b"\0\0\0\1\xff\xff", 0)


def test_a_varint_of_more_than_five_bytes_is_refused() -> None:
    with pytest.raises(DecodeError, match="five bytes"):
        decode(MetadataRequest, b"\x80\x80\x80\x80\x80\x01" + bytes(10), 12)
    with pytest.raises(DecodeError, match="32 bits"):
        decode(MetadataRequest, b"\x81\x80\x80\x80\x7f" + bytes(10), 12)


def test_bad_utf8_is_refused() -> None:
    with pytest.raises(DecodeError, match="utf-8"):
        decode(MetadataRequest, b"\0\0\0\1\0\2\xff\xfe", 0)


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = encode_bytes(ApiVersionsRequest(client_software_name="x"), 3)
    tagged = plain[:-1] + b"\x02" + b"\x05\x03abc" + b"\x07\x00"
    assert decode(ApiVersionsRequest, tagged, 3) == (
        ApiVersionsRequest(client_software_name="x"),
        len(tagged),
    )


def test_a_repeated_tag_is_refused_where_tags_are_known_and_where_not() -> None:
    unknown = encode_bytes(ApiVersionsRequest(), 3)[:-1] + b"\x02" + b"\x05\x00" * 2
    with pytest.raises(DecodeError, match="repeated"):
        decode(ApiVersionsRequest, unknown, 3)
    known = encode_bytes(FetchRequest(), 12)[:-1] + b"\x02" + b"\x00\x02\x02a" * 2
    with pytest.raises(DecodeError, match="repeated"):
        decode(FetchRequest, known, 12)


def test_a_known_tag_whose_size_does_not_fit_its_field_is_refused() -> None:
    data = encode_bytes(FetchRequest(), 12)[:-1] + b"\x01" + b"\x00\x04\x02a??"
    with pytest.raises(DecodeError, match="tag 0 ends"):
        decode(FetchRequest, data, 12)


def test_too_many_tagged_fields_are_refused() -> None:
    count = TAGGED_FIELDS_MAX + 1
    fields = b"".join(varuint(tag) + b"\0" for tag in range(count))
    data = encode_bytes(ApiVersionsRequest(), 3)[:-1] + varuint(count) + fields
    with pytest.raises(DecodeError, match="tagged fields"):
        decode(ApiVersionsRequest, data, 3)


@given(st.binary(max_size=24))
def test_random_headers_and_metadata_records_are_read_or_refused(data: bytes) -> None:
    for read in (decode_request_header, decode_metadata_record):
        try:
            read(data)
        except DecodeError:
            continue


def test_a_request_of_an_api_that_kafka_lacks_is_refused() -> None:
    header = RequestHeader(request_api_key=999, client_id="x")
    with pytest.raises(DecodeError, match="999"):
        decode_request_header(encode_bytes(header, 1))


def test_a_version_that_a_message_lacks_is_a_typed_error() -> None:
    with pytest.raises(DecodeError, match="no version 99"):
        decode(MetadataRequest, b"", 99)
    with pytest.raises(EncodeError, match="no version 99"):
        encode_bytes(MetadataRequest(), 99)


def test_a_value_that_the_version_cannot_carry_is_an_encode_error_unless_ignorable() -> None:
    with pytest.raises(EncodeError, match="allow_auto_topic_creation"):
        encode_bytes(MetadataRequest(allow_auto_topic_creation=False), 1)
    with pytest.raises(EncodeError):
        encode_bytes(MetadataRequest(topics=None), 0)
    with pytest.raises(EncodeError):
        encode_bytes(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 40_000)]), 0)
    assert encode_bytes(MetadataResponse(cluster_id="ignorable"), 0) == bytes(8)


def test_records_are_never_copied() -> None:
    records = memoryview(b"records" * 100)
    partition = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="t", partition_data=[partition])
    message = ProduceRequest(topic_data=[topic])
    assert any(part is records for part in encode(message, 9))
    data = encode_bytes(message, 9)
    decoded, _ = decode(ProduceRequest, data, 9)
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is data
