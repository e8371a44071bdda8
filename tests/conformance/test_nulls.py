"""Every version of every request that is served, with null in every field that may be null.

Each is answered: what the protocol allows never closes a connection, and is never a bug.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

from headrace_broker.protocol.apis import API_TABLE, ApiKey, ApiMessages
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.headers import RequestHeader
from headrace_broker.protocol.schema import Array, Bool, Field, String, Struct, Uuid
from support.batches import NewRecord, build_batch
from support.headrace_broker import HeadraceBroker
from support.hostile import fetch_request
from support.messages import default_of, fields_in
from support.processes import LOOPBACK
from support.wire import RawConnection

_BATCH = build_batch([NewRecord(value=b"v", key=b"k")])
_NOBODY = 77  # a node that no cluster here has
# Without these a request is refused before it is looked into.
_VALUES = {
    "acks": 1,
    "timeout_ms": 1000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "num_partitions": 1,
    "count": 2,
    "replication_factor": 1,
    "broker_id": _NOBODY,
    "node_id": _NOBODY,
    "voter_id": _NOBODY,
    "candidate_id": _NOBODY,
    "resource_type": 2,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "protocol_type": "consumer",
    "records": _BATCH,
}
Path = tuple[str, ...]


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    with HeadraceBroker(tmp_path_factory.mktemp("nulls")) as broker:
        yield broker


def _nullable(cls: type[Struct], version: int, before: Path = ()) -> Iterator[Path]:
    for field in fields_in(cls, version):
        path = (*before, field.name)
        if field.nullable.holds(version):
            yield path
        if field.nested is not None:
            yield from _nullable(field.nested, version, path)


def _filled(cls: type[Struct], version: int, nulls: set[Path], topic: tuple[str, Any]) -> Any:
    """Return a message with something in every field and one element in every array."""

    def value(field: Field) -> Any:
        if (field.name,) in nulls:
            return None
        if field.nested is not None:
            inner = {path[1:] for path in nulls if path[0] == field.name}
            made = _filled(field.nested, version, inner, topic)
        elif field.name == "transactional_id" and field.nullable.holds(version):
            # Named, all else would be refused with the transaction that nobody began.
            made = None
        elif field.name in _VALUES:
            made = _VALUES[field.name]
        elif field.element in (String, Uuid):
            made = topic[0] if field.element is String else topic[1]
        elif field.wire is Array:
            made = False if field.element is Bool else 0
        else:
            made = b"bytes" if field.default is None else default_of(field)
        return [made] if field.wire is Array else made

    return cls(**{field.name: value(field) for field in fields_in(cls, version)})


def _cases(api: ApiMessages, versions: range) -> Iterator[tuple[int, set[Path]]]:
    """Yield a version and what is null in it: nothing, each field alone, all of them."""
    for version in versions:
        paths = set(_nullable(api.request, version))
        yield version, set()
        for path in sorted(paths):
            yield version, {path}
        if len(paths) > 1:
            yield version, paths


def _frame(api: ApiMessages, version: int, request: Any) -> bytes:
    key = int(api.request.info.api_key)
    header_version = 1 if api.flexible_from is None or version < api.flexible_from else 2
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=1, client_id="nulls"
    )
    parts = [*encoder(RequestHeader, header_version)(header)]
    return b"".join([*parts, *encoder(api.request, version)(request)])


def _served(address: str) -> Iterator[tuple[ApiMessages, range]]:
    with RawConnection(address) as connection:
        keys = connection.call(ApiVersionsRequest()).api_keys
    for key in keys:
        api = API_TABLE[ApiKey(key.api_key)]
        yield api, range(max(key.min_version, api.min_version), key.max_version + 1)


@pytest.mark.parametrize("listener", ["broker", "controller"])
def test_null_in_every_field_that_may_be_null_is_answered(peer, admin, new_topic, listener):
    address = {"broker": peer.port, "controller": peer.controller_port}[listener]
    address = f"{LOOPBACK}:{address}"
    closed, asked = [], 0
    for api, versions in _served(address):
        name = new_topic()
        topic_id = _topic_id(admin, name)
        for version, nulls in _cases(api, versions):
            request = _filled(api.request, version, nulls, (name, topic_id))
            asked += 1
            with RawConnection(address) as connection:
                connection.send_frame(_frame(api, version, request))
                try:
                    connection.receive_frame()
                except ConnectionError:
                    closed.append(f"{api.request.__name__} v{version} {nulls}")
    assert asked > 10
    assert not closed, f"{len(closed)} of {asked} requests: " + "\n".join(closed)
    assert "request failed" not in (peer.directory / "broker.log").read_text()


def _topic_id(admin, name):
    described = admin.describe_topics(TopicCollection([name]))[name].result(30)
    high, low = (
        half % (1 << 64)
        for half in (
            described.topic_id.get_most_significant_bits(),
            described.topic_id.get_least_significant_bits(),
        )
    )
    return UUID(int=high << 64 | low)


def test_null_records_are_refused_and_what_is_beside_them_is_appended(bootstrap, new_topic):
    topic = new_topic(partitions=3)
    data = tuple(
        PartitionProduceData(index=index, records=None if index == 1 else _BATCH)
        for index in range(3)
    )
    request = ProduceRequest(
        acks=-1,
        timeout=timedelta(seconds=10),
        topic_data=(TopicProduceData(name=topic, partition_data=data),),
    )
    with RawConnection(bootstrap) as connection:
        answers = connection.call(request).responses[0].partition_responses
        assert [answer.error_code.name for answer in answers] == ["none", "invalid_record", "none"]
        written = connection.call(fetch_request(topic)).responses[0].partitions[0]
    assert written.high_watermark == 1
