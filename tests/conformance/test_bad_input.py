"""Bad input: a typed error or a closed connection, bounded memory, everyone else unaffected.

A healthy client writes and reads throughout each test; the broker's memory is looked at after it.
"""

import socket
import struct
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest
from kio.index import load_response_schema
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v4.request import MetadataRequest
from kio.serial import entity_reader

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
)
from headrace_broker.server.api.left_out import REFUSALS
from support.api_page import left_out
from support.batches import BatchFields, NewRecord, build_batch, varint
from support.headrace_broker import HeadraceBroker
from support.hostile import fetch_request, produce_error, unharmed
from support.wire import RawConnection, encode_request, split_address

_CONNECTIONS_MAX = 300
#: What a request for these names: one thing, which is refused by itself in this part of the answer.
_NAMING_ONE = {
    ApiKey.CREATE_ACLS: {"creations": [create_acls.AclCreation()]},
    ApiKey.DELETE_ACLS: {"filters": [delete_acls.DeleteAclsFilter()]},
    ApiKey.ALTER_CLIENT_QUOTAS: {
        "entries": [alter_client_quotas.AlterClientQuotasRequestEntryData()]
    },
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
        "deletions": [alter_user_scram_credentials.ScramCredentialDeletion(name="ann")]
    },
    ApiKey.STREAMS_GROUP_DESCRIBE: {"group_ids": ["app"]},
}
_PARTS = {
    ApiKey.CREATE_ACLS: "results",
    ApiKey.DELETE_ACLS: "filter_results",
    ApiKey.ALTER_CLIENT_QUOTAS: "entries",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "results",
    ApiKey.STREAMS_GROUP_DESCRIBE: "groups",
}
_HEADER_V1 = struct.Struct(">hhih")  # api key, version, correlation id, client id's length


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A broker of this module's own: what it suffers must not show elsewhere."""
    limits = {"max.connections": str(_CONNECTIONS_MAX)}
    with HeadraceBroker(tmp_path_factory.mktemp("bad-input"), limits) as broker:
        yield broker


@pytest.fixture(autouse=True)
def others_are_unaffected(peer, new_topic):
    with unharmed(peer, new_topic()):
        yield


def _header(api_key, version):
    return _HEADER_V1.pack(api_key, version, 1, -1)


def _is_refused(bootstrap, data, *, end=False, seconds=10):
    """Whether the broker closes a connection on which exactly `data` was sent."""
    with RawConnection(bootstrap) as connection:
        with suppress(ConnectionError):
            connection.send_bytes(data)
            if end:
                connection.socket.shutdown(socket.SHUT_WR)
        return connection.is_closed_by_peer(seconds)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 1, 7, 2**31 - 1, 200_000_000])
def test_a_frame_of_impossible_length_ends_its_connection(bootstrap, length):
    assert _is_refused(bootstrap, struct.pack(">i", length) + bytes(64))


def test_a_frame_that_never_comes_whole_takes_no_memory_and_ends_with_its_connection(bootstrap):
    """50 connections that each announce 90 MB and send a little."""
    connections = [RawConnection(bootstrap) for _ in range(50)]
    for connection in connections:
        connection.send_bytes(struct.pack(">i", 90_000_000) + _header(0, 9) + bytes(1000))
    time.sleep(0.5)
    for connection in connections[::2]:
        connection.close()
    for connection in connections[1::2]:
        connection.reset()


@pytest.mark.parametrize(
    "greeting",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        bytes(range(255, -1, -1)) * 40,
    ],
    ids=["tls", "http", "ssh", "noise"],
)
def test_another_protocols_greeting_ends_its_connection(bootstrap, greeting):
    assert _is_refused(bootstrap, greeting)


@pytest.mark.parametrize("api_key", [999, -1, 32767, 4, 7])
def test_an_unknown_api_ends_its_connection(bootstrap, api_key):
    body = _header(api_key, 0) + bytes(20)
    assert _is_refused(bootstrap, struct.pack(">i", len(body)) + body)


@pytest.mark.parametrize("key", left_out(), ids=lambda key: key.name)
def test_what_is_left_out_is_not_advertised_and_refused_with_an_error_of_its_own(bootstrap, key):
    """As `docs/apis.md` says of each; the connection goes on."""
    known = API_TABLE[key]
    with RawConnection(bootstrap) as connection:
        advertised = connection.call(ApiVersionsRequest()).api_keys
        assert int(key) not in {int(each.api_key) for each in advertised}
        for version in range(known.min_version, known.max_version + 1):
            request = known.request(**_NAMING_ONE.get(key, {}))
            body = b"".join(encoder(known.request, version)(request))
            tags = bytes(known.is_flexible(version))
            connection.send_frame(_header(int(key), version) + tags + body)
            response = load_response_schema(int(key), version)
            frame = connection.receive_frame()
            _, size = entity_reader(response.__header_schema__)(frame, 0)
            answer, _ = entity_reader(response)(frame, size)
            [part] = getattr(answer, _PARTS.get(key, ""), (answer,))
            assert part.error_code == REFUSALS[key][0]
            if hasattr(part, "error_message"):
                assert part.error_message == REFUSALS[key][1]
        assert connection.call(ApiVersionsRequest()).api_keys == advertised


@pytest.mark.parametrize(("api_key", "version"), [(0, 99), (0, -1), (1, 3), (3, 500), (0, 2)])
def test_an_unknown_version_ends_its_connection(bootstrap, api_key, version):
    body = _header(api_key, version) + bytes(20)
    assert _is_refused(bootstrap, struct.pack(">i", len(body)) + body)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(bootstrap):
    """KIP-511: error 35 in a body of version 0, with the range that would be right."""
    with RawConnection(bootstrap) as connection:
        connection.send_frame(_header(18, 99) + b"\x00" + bytes(10))
        response = connection.receive(ApiVersionsRequest())
        assert response.error_code is ErrorCode.unsupported_version
        assert 18 in [key.api_key for key in response.api_keys]
        assert connection.call(ApiVersionsRequest()).error_code is ErrorCode.none


def _bodies():
    """Bodies that lie about a count, a length or a varint, by name."""
    huge = 2**31 - 1
    string = struct.pack(">h", 1) + b"t"
    flexible = b"\x00"  # the header's tagged fields
    return {
        "metadata: topics": _header(3, 4) + struct.pack(">i", huge),
        "metadata: negative topics": _header(3, 4) + struct.pack(">i", -2),
        "metadata: name": _header(3, 4) + struct.pack(">ih", 1, 32767),
        "produce: topics": _header(0, 3) + struct.pack(">hhii", -1, 1, 1000, huge),
        "produce: partitions": _header(0, 3)
        + struct.pack(">hhii", -1, 1, 1000, 1)
        + string
        + struct.pack(">i", huge),
        "produce: records": _header(0, 3)
        + struct.pack(">hhii", -1, 1, 1000, 1)
        + string
        + struct.pack(">iii", 1, 0, huge),
        "fetch: topics": _header(1, 4) + struct.pack(">iiiibi", -1, 0, 0, 0, 0, huge),
        "join group: protocols": _header(11, 2)
        + string
        + struct.pack(">ii", 6000, 6000)
        + string
        + string
        + struct.pack(">i", huge),
        "compact array": _header(3, 9) + flexible + b"\xff\xff\xff\xff\x0f",
        "overlong varint": _header(3, 9) + flexible + b"\xff" * 30,
        "varint that never ends": _header(3, 9) + flexible + b"\x80" * 30,
        "tagged fields": _header(3, 9) + b"\xff\xff\xff\xff\x0f",
        "tagged field's size": _header(3, 9) + b"\x01\x00\xff\xff\xff\xff\x07",
        "bad UTF-8": _header(3, 4) + struct.pack(">ih", 1, 4) + b"\xff\xfe\xfd\xfc\x01",
        "client id": struct.pack(">hhih", 3, 4, 1, 32000),
        "nothing after the header": _header(0, 9),
    }


@pytest.mark.parametrize("name", _bodies())
def test_a_body_that_lies_ends_its_connection_without_allocating(bootstrap, name):
    body = _bodies()[name]
    assert _is_refused(bootstrap, struct.pack(">i", len(body)) + body)


def test_every_truncation_of_a_request_is_refused_or_answered(bootstrap):
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    whole = encode_request(request, 1)
    for length in range(8, len(whole)):
        assert _is_refused(bootstrap, struct.pack(">i", length) + whole[:length]), length


@pytest.mark.parametrize("reset", [False, True], ids=["half-close", "reset"])
def test_a_connection_that_ends_inside_a_frame_leaves_nothing(bootstrap, reset):
    whole = struct.pack(">i", 5000) + _header(0, 9) + bytes(100)
    for cut in (1, 3, 4, 9, len(whole)):
        with RawConnection(bootstrap) as connection:
            connection.send_bytes(whole[:cut])
            if reset:
                connection.reset()
            else:
                connection.socket.shutdown(socket.SHUT_WR)
                assert connection.is_closed_by_peer()


def test_a_half_closed_connection_still_gets_its_answer(bootstrap):
    """The client said all it had to say; what it asked is answered, or its connection closed."""
    with RawConnection(bootstrap) as connection:
        connection.send(ApiVersionsRequest())
        connection.socket.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            assert connection.receive(ApiVersionsRequest()).error_code is ErrorCode.none
        assert connection.is_closed_by_peer()


_ONE = [NewRecord(value=b"v", key=b"k")]
_BAD_BATCHES = {
    "wrong CRC": build_batch(_ONE, BatchFields(crc=12345)),
    "negative length": build_batch(_ONE, BatchFields(batch_length=-5)),
    "length 0": build_batch(_ONE, BatchFields(batch_length=0)),
    "length beyond the request": build_batch(_ONE, BatchFields(batch_length=1_000_000)),
    "length short of the batch": build_batch(_ONE, BatchFields(batch_length=52)),
    "more records counted": build_batch(_ONE, BatchFields(record_count=7)),
    "fewer records counted": build_batch(_ONE * 3, BatchFields(record_count=1)),
    "no records counted": build_batch(_ONE, BatchFields(record_count=0)),
    "negative count": build_batch(_ONE, BatchFields(record_count=-1, last_offset_delta=-2)),
    "negative last delta": build_batch(_ONE, BatchFields(last_offset_delta=-1)),
    "huge last delta": build_batch(_ONE, BatchFields(last_offset_delta=2**31 - 1)),
    "control batch": build_batch(_ONE, BatchFields(attributes=0x20)),
    "magic 0": build_batch(_ONE, BatchFields(magic=0)),
    "magic 1": build_batch(_ONE, BatchFields(magic=1)),
    "magic 3": build_batch(_ONE, BatchFields(magic=3)),
    "unknown codec": build_batch(_ONE, BatchFields(attributes=7)),
    "transactional without a producer": build_batch(_ONE, BatchFields(attributes=0x10)),
    "sequence without a producer epoch": build_batch(
        _ONE, BatchFields(producer_id=5, producer_epoch=-1, base_sequence=0)
    ),
    "only a part of a header": build_batch(_ONE)[:30],
    "an empty batch": b"",
    "noise": bytes(range(256)),
    "two batches of one producer": build_batch(
        _ONE, BatchFields(producer_id=5, producer_epoch=0, base_sequence=0)
    )
    * 2,
}


@pytest.mark.parametrize("name", _BAD_BATCHES)
def test_a_bad_batch_is_refused_by_name_and_nothing_of_it_is_kept(bootstrap, new_topic, name):
    topic = new_topic()
    error = produce_error(bootstrap, topic, _BAD_BATCHES[name])
    assert error not in ("none", "unknown_server_error"), error
    assert produce_error(bootstrap, topic, build_batch(_ONE)) == "none"
    with RawConnection(bootstrap) as connection:
        partition = connection.call(fetch_request(topic)).responses[0].partitions[0]
    assert partition.high_watermark == 1


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(bootstrap, new_topic):
    topic = new_topic(cleanup_policy="compact")
    assert produce_error(bootstrap, topic, build_batch([NewRecord(value=b"v")])) in (
        "invalid_record",
        "corrupt_message",
    )
    assert produce_error(bootstrap, topic, build_batch(_ONE)) == "none"


def test_a_record_that_claims_more_than_its_batch_holds_does_no_harm_to_the_broker(
    bootstrap, new_topic
):
    """Apache Kafka looks into a batch only where it must; either answer is right."""
    payload = varint(1_000_000) + b"\x00\x00\x00\x01v"
    batch = build_batch(_ONE, payload=payload)
    assert produce_error(bootstrap, new_topic(), batch) != "unknown_server_error"
    compacted = new_topic(cleanup_policy="compact")
    assert produce_error(bootstrap, compacted, batch) not in ("none", "unknown_server_error")


def test_negative_waits_and_limits_are_answered(bootstrap, new_topic):
    topic = new_topic()
    for changes in (
        {"max_wait": timedelta(milliseconds=-5), "min_bytes": 1},
        {"max_bytes": -1},
        {"max_bytes": -(2**31)},
        {"min_bytes": -7},
    ):
        with RawConnection(bootstrap) as connection, suppress(ConnectionError):
            connection.call(fetch_request(topic, **changes))


def test_a_flood_of_fetch_sessions_is_bounded(bootstrap, new_topic):
    topic = new_topic()
    with RawConnection(bootstrap) as connection:
        for _ in range(4000):
            assert (
                connection.call(fetch_request(topic, session_epoch=0)).error_code is ErrorCode.none
            )


def test_a_flood_of_pipelined_requests_is_answered_in_order(bootstrap):
    request = ApiVersionsRequest()
    with RawConnection(bootstrap) as connection:
        body = encode_request(request, 7)
        frames = (struct.pack(">i", len(body)) + body) * 20_000
        sender = threading.Thread(target=lambda: _send_quietly(connection, frames))
        sender.start()
        answers = 0
        with suppress(ConnectionError):
            for _ in range(20_000):
                connection.receive(request)
                answers += 1
        sender.join()
    assert answers > 0


def _send_quietly(connection, data):
    with suppress(OSError):
        connection.send_bytes(data)


def test_readers_that_never_read_take_no_memory(bootstrap, new_topic):
    """40 connections ask for 1 MB a hundred times each and read nothing."""
    topic = new_topic()
    batch = build_batch([NewRecord(value=bytes(900_000))])
    assert produce_error(bootstrap, topic, batch) == "none"
    body = encode_request(fetch_request(topic), 1)
    frames = (struct.pack(">i", len(body)) + body) * 100
    connections = []
    for _ in range(40):
        connection = RawConnection(bootstrap)
        connection.socket.settimeout(2)
        _send_quietly(connection, frames)
        connections.append(connection)
    time.sleep(2)
    for connection in connections:
        connection.reset()


def test_connections_above_the_limit_are_closed_and_others_go_on(peer):
    """The limit is `max.connections`; whoever was there keeps working, freed room is used."""
    address = split_address(peer.bootstrap)
    opened = [socket.create_connection(address, 10) for _ in range(_CONNECTIONS_MAX + 100)]
    try:
        time.sleep(0.5)
        refused = sum(_is_closed(found) for found in opened)
        assert 100 <= refused < 200
    finally:
        for found in opened:
            found.close()
    time.sleep(0.5)
    with RawConnection(peer.bootstrap) as connection:
        assert connection.call(ApiVersionsRequest()).error_code is ErrorCode.none


def _is_closed(found):
    found.settimeout(0)
    try:
        return found.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
