"""The tables of APIs and errors, and the headers, against the messages and against kio."""

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.errors import ApiError, ErrorCode, Outcome
from headrace_broker.protocol.headers import (
    RequestHeader,
    ResponseHeader,
    decode_request_header,
    frame_response,
    request_header_version,
    response_header_version,
)
from headrace_broker.protocol.messages.api_versions import ApiVersionsResponse
from headrace_broker.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from headrace_broker.protocol.messages.records.coordinator import (
    GROUP_RECORDS,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.messages.records.metadata import METADATA_RECORDS, TopicRecord
from headrace_broker.protocol.records import (
    decode_metadata_record,
    decode_record_key,
    decode_record_value,
    encode_metadata_record,
    encode_record_key,
    encode_record_value,
)
from headrace_broker.protocol.types import Part


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_the_api_table_says_what_the_messages_say(key: ApiKey) -> None:
    api = API_TABLE[key]
    request, response = api.request.info, api.response.info
    assert request.api_key == response.api_key == key
    # Kafka does not advertise a version that may still change.
    newest = request.versions.high - request.is_latest_unstable
    assert (api.min_version, api.max_version) == (request.versions.low, newest)
    assert response.versions == request.versions
    for version in range(api.min_version, api.max_version + 1):
        assert api.is_flexible(version) == request.flexible.holds(version)
        assert api.is_flexible(version) == response.flexible.holds(version)


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_header_versions_are_those_of_kio(key: ApiKey) -> None:
    api = API_TABLE[key]
    for version in range(api.min_version, api.max_version + 1):
        request = load_request_schema(key, version).__header_schema__.__version__
        response = load_response_schema(key, version).__header_schema__.__version__
        assert request_header_version(key, version) == request
        assert response_header_version(key, version) == response


def test_every_error_code_has_kafkas_name_and_retriability() -> None:
    theirs = {int(code): (code.name.upper(), code.retriable) for code in KioErrorCode}
    assert {int(code): (code.name, code.is_retriable) for code in ErrorCode} == theirs


def test_errors_tell_whether_the_request_was_applied() -> None:
    assert ErrorCode.NONE.outcome is Outcome.APPLIED
    assert ErrorCode.INVALID_REQUEST.outcome is Outcome.NOT_APPLIED
    for code in (
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ):
        assert code.outcome is Outcome.UNKNOWN
    error = ApiError(ErrorCode.FENCED_LEADER_EPOCH)
    assert (error.code, error.message) == (74, "fenced leader epoch")
    assert str(ApiError(ErrorCode.INVALID_CONFIG, "no x")) == "INVALID_CONFIG (40): no x"


def test_a_request_header_is_read_in_the_version_that_its_api_needs() -> None:
    for key, version in ((ApiKey.METADATA, 1), (ApiKey.METADATA, 12), (ApiKey.API_VERSIONS, 99)):
        header = RequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=5, client_id=None
        )
        data = encode_bytes(header, request_header_version(key, version))
        assert decode_request_header(b"xx" + data + b"body", 2) == (header, len(data) + 2)


def test_a_response_frame_has_its_size_and_its_records_uncopied() -> None:
    records = memoryview(b"r" * 9000)
    partition = PartitionData(partition_index=1, records=records)
    topic = FetchableTopicResponse(topic="t", partitions=[partition])
    response = FetchResponse(responses=[topic])
    for version in (11, 12):
        parts = frame_response(ApiKey.FETCH, version, 77, response)
        assert any(part is records for part in parts)
        _assert_frame(parts, response_header_version(ApiKey.FETCH, version), response, version)
    answer = ApiVersionsResponse()
    _assert_frame(frame_response(ApiKey.API_VERSIONS, 3, 77, answer), 0, answer, 3)


def _assert_frame(
    parts: list[Part],
    header_version: int,
    response: FetchResponse | ApiVersionsResponse,
    version: int,
) -> None:
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, position = decode(ResponseHeader, frame, header_version, 4)
    assert header.correlation_id == 77
    assert decode(type(response), frame, version, position) == (response, len(frame))


def test_coordinator_records_start_with_their_type_and_version() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    value = OffsetCommitValue(offset=9, metadata="m", commit_timestamp=1)
    assert encode_record_key(key) == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
    assert decode_record_key(encode_record_key(key), GROUP_RECORDS) == key
    assert decode_record_key(b"\x7f\0abc", GROUP_RECORDS) is None
    for version in (0, 3, 4):
        data = encode_record_value(value, version)
        assert data[:2] == bytes([0, version])
        assert decode_record_value(OffsetCommitValue, data) == value


def test_every_metadata_record_is_found_by_the_type_in_its_frame() -> None:
    for kind, cls in METADATA_RECORDS.items():
        data = encode_metadata_record(cls(), cls.info.versions.high)
        assert data[:3] == bytes([1, kind, cls.info.versions.high])
        assert decode_metadata_record(memoryview(data)) == cls()
    assert METADATA_RECORDS[2] is TopicRecord
