"""Values with a schema, as other people's serializers write them."""

import base64
import contextlib
import io
import json
import socketserver
import threading
from datetime import UTC, datetime

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs import outages
from headrace_jobs.progress.listener import observations
from headrace_jobs.schemas.avro import AvroValues
from headrace_jobs.schemas.frames import Avro, Json, Protobuf, decode, set_aside, well_formed
from headrace_jobs.schemas.protobuf import ProtobufValues
from headrace_jobs.schemas.registry import Registry, RegistryError, SchemaFiles
from headrace_jobs.transforms import tagged
from support.processes import LOOPBACK, free_port
from support.schema_registry import serving_schemas

COLUMNS = "id BIGINT, name STRING, price DOUBLE, tags ARRAY<STRING>, at TIMESTAMP"
ROW = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
NOON = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
ORDER = {"id": 7, "name": "mill", "price": 1.5, "tags": ["a", "b"], "at": NOON}

FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "price", "type": "double"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
AVRO = {
    1: {"type": "record", "name": "Order", "fields": FIELDS},
    2: {"type": "record", "name": "Order", "fields": [*FIELDS[:1], {"name": "new", "type": "int"}]},
    3: {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]},
    4: "string",
}


def header(schema_id):
    return b"\0" + schema_id.to_bytes(4, "big")


def avro(schema_id, value):
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(AVRO[schema_id]), value)
    return header(schema_id) + body.getvalue()


def order_file():
    """`order.proto`: Order with a nested Line, an enum, a map and a Timestamp."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    file.enum_type.add(name="State").value.add(name="OPEN", number=0)
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = [("id", kinds.TYPE_INT64), ("name", kinds.TYPE_STRING), ("price", kinds.TYPE_DOUBLE)]
    for number, (name, kind) in enumerate(fields, start=1):
        order.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="tags", number=4, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    message, enum = kinds.TYPE_MESSAGE, kinds.TYPE_ENUM
    at = {"type": message, "type_name": ".google.protobuf.Timestamp", "label": kinds.LABEL_OPTIONAL}
    order.field.add(name="at", number=5, **at)
    state = {"type": enum, "type_name": ".shop.State", "label": kinds.LABEL_OPTIONAL}
    order.field.add(name="state", number=6, **state)
    order.nested_type.add(name="Line").field.add(
        name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL
    )
    return file


def protobuf(schema_id, indexes, message, **values):
    """A value as Confluent's serializer writes it: header, message indexes, message."""
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(order_file().SerializeToString())
    built = GetMessageClass(pool.FindMessageTypeByName(message))()
    for name, value in values.items():
        if name == "at":
            built.at.FromDatetime(value)
        elif name == "tags":
            built.tags.extend(value)
        else:
            setattr(built, name, value)
    return header(schema_id) + indexes + built.SerializeToString()


def loose_file():
    """A file of proto2, whose strings nobody checks."""
    file = descriptor_pb2.FileDescriptorProto(name="loose.proto", package="shop", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Loose").field.add(
        name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL
    )
    return file


def answer(path, query):
    """`GET /schemas/ids/{id}`."""
    schema_id = int(path.rpartition("/")[2])
    if schema_id in AVRO:
        return {"schema": json.dumps(AVRO[schema_id])}
    if schema_id == 10 and query == "format=serialized":
        serialized = base64.b64encode(order_file().SerializeToString()).decode()
        return {"schema": serialized, "schemaType": "PROTOBUF"}
    if schema_id == 11:
        return {"schema": base64.b64encode(b"no descriptor").decode()}
    if schema_id == 12:
        return {"schema": base64.b64encode(loose_file().SerializeToString()).decode()}
    return None


@pytest.fixture
def registry():
    with serving_schemas(answer) as found:
        yield found


def decoded(decoder, *values):
    found = decoder.decode(pa.array(values, pa.binary()), ROW)
    return [(row["decoded"], row["reason"]) for row in found.to_pylist()]


EMPTY = dict.fromkeys(ORDER)


def test_avro_is_decoded_by_the_schema_that_wrote_it(registry):
    url, asked = registry
    values = AvroValues(schemas=Registry(url))
    rows = decoded(values, avro(1, ORDER), avro(2, {"id": 8, "new": 1}), avro(1, ORDER))
    assert rows == [(ORDER, None), (EMPTY | {"id": 8}, None), (ORDER, None)]
    decoded(values, avro(1, ORDER))
    assert asked == ["/schemas/ids/1", "/schemas/ids/2"]  # each once


def test_what_cannot_be_decoded_has_a_reason_and_its_neighbours_are_decoded(registry):
    url, asked = registry
    broken = [
        (None, "it has no value"),
        (b"{}", "it has no header of a registry"),
        (b"\x01\0\0\0\x01ab", "it has no header of a registry"),
        (header(99) + b"x", "schema 99 is not in the registry"),
        (header(99) + b"y", "schema 99 is not in the registry"),
        (avro(1, ORDER)[:-3], "it is no Avro of schema 1"),
        (avro(1, ORDER) + b"more", "it is longer than a value of schema 1"),
        (avro(3, {"id": "seven"}), "it does not fit the columns"),
        (avro(4, "text"), "schema 4 is no record"),
    ]
    values = [value for value, _ in broken]
    rows = decoded(AvroValues(schemas=Registry(url)), avro(1, ORDER), *values, avro(1, ORDER))
    assert rows[0] == rows[-1] == (ORDER, None)
    for (row, reason), (_, expected) in zip(rows[1:-1], broken, strict=True):
        assert row is None
        assert reason.startswith(expected)
    assert asked.count("/schemas/ids/99") == 1


UUID = "37128ee4-3a48-48b9-b4d6-90b4331ffb40"


def decoded_by(schema, value, columns, tmp_path):
    """What Avro values of a schema become in columns, `decoded` and `reason`."""
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(schema))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    values = AvroValues(schemas=SchemaFiles({1: str(path)}))
    found = values.decode(pa.array([header(1) + body.getvalue()]), pa.struct(columns))
    return found.to_pylist()[0]


def test_a_uuid_of_avro_is_text_wherever_it_is(tmp_path):
    uuid = {"type": "string", "logicalType": "uuid"}
    fields = {
        "id": uuid,
        "maybe": ["null", uuid],
        "many": {"type": "array", "items": uuid},
        "in": {"type": "record", "name": "In", "fields": [{"name": "by", "type": uuid}]},
    }
    # Where a field says so itself it means nothing, and is often written.
    misplaced = {"name": "said", **uuid}
    schema = {
        "type": "record",
        "name": "Paid",
        "fields": [misplaced, *({"name": name, "type": kind} for name, kind in fields.items())],
    }
    value = {"said": UUID, "id": UUID, "maybe": UUID, "many": [UUID], "in": {"by": UUID}}
    text = pa.string()
    columns = [("said", text), ("id", text), ("maybe", text), ("many", pa.list_(text))]
    found = decoded_by(schema, value, [*columns, ("in", pa.struct([("by", text)]))], tmp_path)
    assert found == {"decoded": value, "reason": None}


TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "value", "column", "expected"),
    [
        ("double", 1.5, pa.int64(), "it does not fit the columns: x: 1.5 is no whole number"),
        ("double", -1.5, pa.int8(), "it does not fit the columns: x: -1.5 is no whole number"),
        ("double", 2.0, pa.int64(), 2),
        ("double", 1.5, pa.float64(), 1.5),
        # Of seconds, milliseconds, microseconds or nanoseconds?
        ("long", 1767225600000, TIME, "it does not fit the columns: x: 1767225600000 is no time"),
        ("long", 1767225600000, pa.int64(), 1767225600000),
        ({"type": "array", "items": "double"}, [1.0, 1.5], pa.list_(pa.int32()), "it does not fit"),
        ({"type": "array", "items": "double"}, [1.0, 2.0], pa.list_(pa.int32()), [1, 2]),
        (
            {"type": "map", "values": "long"},
            {"a": 1},
            pa.map_(pa.string(), TIME),
            "it does not fit the columns: x: 1 is no time",
        ),
        ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (["null", "double"], None, pa.int64(), None),
    ],
)
def test_a_number_that_a_column_would_change_is_set_aside(kind, value, column, expected, tmp_path):
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    found = decoded_by(schema, {"x": value}, [("x", column)], tmp_path)
    if isinstance(expected, str):
        assert found["decoded"] is None
        assert found["reason"].startswith(expected)
    else:
        assert found == {"decoded": {"x": expected}, "reason": None}


@contextlib.contextmanager
def answering(*answers, after_seconds=0.0):
    """Give these answers, one after the other, from some time on; yields the port."""
    left = iter(answers)

    class Once(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4096)
            self.request.sendall(next(left))

    with socketserver.TCPServer((LOOPBACK, 0), Once, bind_and_activate=False) as server:
        server.server_bind()

        def serve():
            server.server_activate()
            for _ in answers:
                server.handle_request()

        late = threading.Timer(after_seconds, serve)
        late.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_address[1]}"
        finally:
            late.join()


def http(status, body=b""):
    return b"HTTP/1.1 %d So\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_a_registry_that_is_away_for_a_moment_is_waited_for():
    found = json.dumps(answer("/schemas/ids/1", "")).encode()
    with answering(http(503), http(429), http(200, found), after_seconds=0.5) as url:
        assert decoded(AvroValues(schemas=Registry(url)), avro(1, ORDER)) == [(ORDER, None)]


def test_credentials_in_a_registrys_url_are_decoded_as_those_of_any_url(registry):
    url, _ = registry
    asked = Registry(url.replace("//", "//shop:p%40ss%2Fw%C3%B6rd%25@"))._request("/x")
    token = asked.get_header("Authorization").removeprefix("Basic ")
    assert base64.b64decode(token).decode() == "shop:p@ss/wörd%"
    assert asked.full_url == f"{url}/x"


def test_a_registry_that_refuses_is_not_asked_again():
    with answering(http(403)) as url, pytest.raises(RegistryError, match=r"refuses .*403"):
        decoded(AvroValues(schemas=Registry(url)), avro(1, ORDER))


def test_a_registry_that_does_not_answer_blames_no_record(monkeypatch):
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 1.0)
    nobody = Registry(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RegistryError, match="does not answer"):
        decoded(AvroValues(schemas=nobody), avro(1, ORDER))


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"schema":null}',
    ],
)
def test_a_registry_that_answers_rubbish_blames_no_record(answer, monkeypatch):
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 1.0)

    class Rubbish(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4096)
            self.request.sendall(answer)

    with socketserver.TCPServer((LOOPBACK, 0), Rubbish) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            rubbish = Registry(f"http://{LOOPBACK}:{server.server_address[1]}")
            with pytest.raises(RegistryError, match=r"does not answer|has no schema"):
                decoded(AvroValues(schemas=rubbish), avro(1, ORDER))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("source", ["registry", "file"])
def test_protobuf_is_decoded_by_its_descriptor(registry, tmp_path, source):
    schemas = Registry(registry[0])
    if source == "file":
        described = descriptor_pb2.FileDescriptorSet(file=[order_file()])
        (tmp_path / "order.binpb").write_bytes(described.SerializeToString())
        schemas = SchemaFiles({10: str(tmp_path / "order.binpb")})
    first = protobuf(10, b"\0", "shop.Order", **ORDER)
    nested = protobuf(10, b"\x04\0\0", "shop.Order.Line", id=3)
    rows = decoded(
        ProtobufValues(schemas=schemas),
        first,
        nested,
        first[:-2],
        header(10) + b"\x02\x08",
        header(10) + b"\xff",
        header(99) + b"\0",
    )
    assert rows[:2] == [(ORDER, None), (EMPTY | {"id": 3}, None)]
    reasons = [reason for _, reason in rows[2:]]
    assert reasons[0].startswith("it is no message of schema 10")
    assert reasons[1] == "schema 10 has no message (4,)"
    assert reasons[2] == "its message indexes are broken"
    assert reasons[3].startswith("schema 99 is not")


def test_what_is_no_message_has_a_reason_whatever_the_decoder_raises(registry):
    url, _ = registry
    order = header(10) + b"\0"
    broken = [
        # Seconds that no Timestamp may have, a message of other fields, and no UTF-8.
        order + b"\x2a\x0a\x08" + b"\xff" * 8 + b"\x7f",
        order + b"\xba\x3e\x02hi",
        header(12) + b"\0\x12\x01\xff",
        order + b"\x12\x01\xff",
        # Ids of schemas of another kind, and of nothing.
        header(1) + b"\0",
        header(11) + b"\0",
    ]
    good = protobuf(10, b"\0", "shop.Order", **ORDER)
    rows = decoded(ProtobufValues(schemas=Registry(url)), good, *broken, good)
    assert rows[0] == rows[-1] == (ORDER, None)
    assert [row for row, _ in rows[1:-1]] == [None] * len(broken)
    reasons = [reason.split(":")[0] for _, reason in rows[1:-1]]
    assert reasons == [
        "it is no message of schema 10",
        "it is no message of schema 10",
        "it does not fit the columns",
        "it is no message of schema 10",
        "schema 1 is no descriptor",
        "schema 11 is no descriptor",
    ]


def test_a_number_of_protobuf_in_a_column_of_times_is_set_aside(registry):
    values = ProtobufValues(schemas=Registry(registry[0]))
    order = protobuf(10, b"\0", "shop.Order", id=1767225600000)
    found = values.decode(pa.array([order]), pa.struct([("id", TIME), ("at", TIME)]))
    reason = "it does not fit the columns: id: 1767225600000 is no time"
    assert found.to_pylist() == [{"decoded": None, "reason": reason}]


def records(spark, *values):
    rows = [("in", 0, offset, b"k", value) for offset, value in enumerate(values)]
    schema = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY"
    return spark.createDataFrame(rows, schema)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["avro", "protobuf", "json", "json with header"])
def test_frames_are_split_into_decoded_records_and_rejected_ones(spark, registry, kind):
    url, _ = registry
    text = json.dumps(ORDER | {"at": NOON.isoformat()}).encode()
    codec, good = {
        "avro": (Avro(columns=COLUMNS, schemas=Registry(url)), avro(1, ORDER)),
        "protobuf": (
            Protobuf(columns=COLUMNS, schemas=Registry(url)),
            protobuf(10, b"\0", "shop.Order", **ORDER),
        ),
        "json": (Json(columns=COLUMNS), text),
        "json with header": (Json(columns=COLUMNS, has_header=True), header(5) + text),
    }[kind]
    frame = records(spark, good, b"broken", None, good)
    rows = well_formed(decode(frame, codec)).select("offset", "decoded.*").collect()
    at = NOON.replace(tzinfo=None)
    expected = (7, "mill", 1.5, ["a", "b"], at)
    assert [tuple(row) for row in rows] == [(0, *expected), (3, *expected)]
    both = set_aside(decode(frame, codec), F.col("decoded.id"), F.col("decoded.name"))
    assert [tuple(row) for row in tagged.results(both).collect()] == [(7, "mill")] * 2
    found = tagged.rejected(both).collect()
    assert [(row.offset, row.value and bytes(row.value)) for row in found] == [
        (1, b"broken"),
        (2, None),
    ]
    assert found[1].reason == "it has no value"
    (observed,) = both.agg(*observations(both)).collect()
    assert (observed.rows, observed.counted, observed.malformed) == (2, 2, 2)


NOON_US = 1_769_860_800_000_000
TIMES = {
    "2026-01-31T12:00:00Z": NOON_US,
    "2026-01-31T12:00:00.000001Z": NOON_US + 1,
    "2026-01-31T14:00:00.25+02:00": NOON_US + 250_000,
    "2026-01-31 10:00:00-0200": NOON_US,
    # Without an offset they are UTC, whatever the session's time zone.
    "2026-01-31T12:00:00.1234": NOON_US + 123_400,
    "2026-01-31T12:00": NOON_US,
    "2026-01-31T13:00+01:00": NOON_US,
    "2026-01-31": NOON_US - 12 * 3_600_000_000,
    "+12026-01-31T12:00:00Z": 317_339_380_800_000_000,
    # Numbers are seconds or, from 1973 on, milliseconds.
    1_769_860_800: NOON_US,
    1_769_860_800_007: NOON_US + 7_000,
    "1769860800007": NOON_US + 7_000,
    None: None,
}
NO_TIMES = [
    *("12:00", "2026", "2026-01", "20260131", "", "soon", "2026-13-31T12:00:00Z", 2026, 1.5, True),
    *("2026-01-31T12:00:00 Europe/Berlin", "2026-01-31T12:00:00Z and more", [1], {"at": 1}),
    *(1_769_860_800_000_000, "2026-01-31T12:00:00Z\n", "2026-01-31T25:00:00Z"),
]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_times_in_json_are_those_of_the_record_in_whatever_zone_it_is_read(spark, zone):
    """Spark took `12:00` for today's, and milliseconds for seconds of the year 58054."""
    columns = "at TIMESTAMP, more ARRAY<STRUCT<at: TIMESTAMP>>, named MAP<STRING, TIMESTAMP>"
    values = [
        json.dumps(value).encode()
        for time in [*TIMES, *NO_TIMES]
        for value in (
            {"at": time},
            {"more": [None, {"at": "2026-01-31T12:00:00Z"}, {"at": time}]},
            {"named": {"a": None, "b": time}},
        )
    ]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        micros = (
            F.unix_micros("decoded.at"),
            F.transform("decoded.more", lambda each: F.unix_micros(each["at"])),
            F.transform(F.map_values("decoded.named"), F.unix_micros),
        )
        frame = decode(records(spark, *values), Json(columns=columns))
        found = frame.select("offset", "reason", *micros).sort("offset").collect()
        assert frame.select("decoded").schema["decoded"].dataType.simpleString() == (
            "struct<at:timestamp,more:array<struct<at:timestamp>>,named:map<string,timestamp>>"
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    expected = []
    for micros in TIMES.values():
        expected += [
            (None, micros, None, None),
            (None, None, [None, NOON_US, micros], None),
            (None, None, None, [None, micros]),
        ]
    assert [tuple(row)[1:] for row in found[: len(expected)]] == expected
    for row, value in list(zip(found, values, strict=True))[len(expected) :]:
        assert tuple(row)[1:] == ("it is no JSON of these columns", None, None, None), value


@pytest.mark.spark
def test_a_date_in_json_is_a_whole_one(spark):
    """Spark took `20260131` for that many days since 1970, a day of the year 57440."""
    given = ["2026-01-31", "2026-01-31T23:59:59Z", None, "20260131", "2026", 20_484, "2026-02-30"]
    values = [json.dumps({"day": day}).encode() for day in given]
    frame = decode(records(spark, *values), Json(columns="day DATE")).sort("offset")
    found = [(str(row.decoded.day) if row.reason is None else None) for row in frame.collect()]
    assert found == ["2026-01-31", "2026-01-31", "None", None, None, None, None]


@pytest.mark.spark
def test_a_json_value_is_parsed_once_for_all_its_columns(spark):
    """Each column, and each look at the reason, had parsed the whole value again."""
    frame = decode(records(spark, b"{}"), Json(columns=COLUMNS))
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json(StructField(id,") == 1
