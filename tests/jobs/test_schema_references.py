"""Schemas that refer to others in the registry, and messages that import other files."""

import base64
import io
import json

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headrace_jobs.schemas.avro import AvroValues
from headrace_jobs.schemas.protobuf import ProtobufValues
from headrace_jobs.schemas.registry import Registry
from support.schema_registry import serving_schemas

CURRENCY = {"type": "enum", "name": "Currency", "namespace": "shop", "symbols": ["EUR", "CHF"]}
MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [{"name": "amount", "type": "long"}, {"name": "in", "type": "shop.Currency"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "price", "type": "shop.Money"},
        {"name": "paid_in", "type": "shop.Currency"},
    ],
}


def file_of(name, **fields):
    """A file of one message, whose fields are a number or of another file's message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3")
    message = file.message_type.add(name=name.rpartition("/")[2].removesuffix(".proto").title())
    for number, (field, kind) in enumerate(fields.items(), start=1):
        added = message.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
        added.type = kinds.TYPE_INT64 if kind is None else kinds.TYPE_MESSAGE
        if kind is not None:
            added.type_name = kind[1]
            file.dependency.append(kind[0])
    return file


CENTS_PROTO = file_of("shop/cents.proto", cents=None)
MONEY_PROTO = file_of("shop/money.proto", amount=("shop/cents.proto", ".shop.Cents"))
ORDER_PROTO = file_of(
    "order.proto",
    price=("shop/money.proto", ".shop.Money"),
    takes=("google/protobuf/duration.proto", ".google.protobuf.Duration"),
)


def refers(*names):
    """References by name; each one's subject has its name."""
    return [{"name": name, "subject": f"s/{name}", "version": 3} for name in names]


def renamed(file):
    """As a registry may give it: under another name than the one it is imported by."""
    other = descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString())
    other.name = "default"
    return other


AVRO = {
    1: (CURRENCY, []),
    2: (MONEY, refers("shop.Currency")),
    3: (ORDER, refers("shop.Money", "shop.Currency")),
    4: (ORDER, refers("shop.Gone")),
}
PROTOBUF = {
    11: (renamed(CENTS_PROTO), []),
    12: (renamed(MONEY_PROTO), refers("shop/cents.proto")),
    13: (ORDER_PROTO, refers("shop/money.proto")),
}
SUBJECTS = {
    "shop.Currency": 1,
    "shop.Money": 2,
    "shop%2Fcents.proto": 11,
    "shop%2Fmoney.proto": 12,
}


def answer(path, query):
    """Schemas by id, and the ids of subjects' versions."""
    parts = path.split("/")
    if parts[1] == "subjects":
        schema_id = SUBJECTS.get(parts[2].removeprefix("s%2F"))
        return None if schema_id is None else {"id": schema_id, "version": int(parts[4])}
    if query == "format=serialized":
        file, references = PROTOBUF[int(parts[3])]
        text = base64.b64encode(file.SerializeToString()).decode()
        return {"schema": text, "references": references}
    schema, references = AVRO[int(parts[3])]
    return {"schema": json.dumps(schema), "references": references}


@pytest.fixture
def registry():
    with serving_schemas(answer) as found:
        yield found


def header(schema_id):
    return b"\0" + schema_id.to_bytes(4, "big")


def decoded(decoder, row_type, *values):
    found = decoder.decode(pa.array(values, pa.binary()), row_type)
    return [(row["decoded"], row["reason"]) for row in found.to_pylist()]


MONEY_ROW = pa.struct([("amount", pa.int64()), ("in", pa.string())])
ORDER_ROW = pa.struct([("price", MONEY_ROW), ("paid_in", pa.string())])


def test_avro_that_refers_to_other_schemas_is_decoded(registry):
    url, asked = registry
    row = {"price": {"amount": 12, "in": "CHF"}, "paid_in": "EUR"}
    whole = {}
    for schema in (CURRENCY, MONEY):
        fastavro.parse_schema(schema, whole)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(ORDER, whole), row)
    values = AvroValues(schemas=Registry(url))
    assert decoded(values, ORDER_ROW, *[header(3) + body.getvalue()] * 2) == [(row, None)] * 2
    assert len(asked) == len(set(asked)) == 5  # each once: three schemas, two subjects


def test_a_reference_that_is_not_there_is_named_and_not_asked_for_with_each_record(registry):
    url, asked = registry
    values = AvroValues(schemas=Registry(url))
    reasons = {reason for _, reason in decoded(values, ORDER_ROW, *[header(4) + b"\0"] * 5)}
    assert "schema 4 refers to s/shop.Gone, version 3, which is not in the registry" in reasons
    assert len(asked) == 2


def test_protobuf_that_imports_other_files_is_decoded(registry):
    url, _ = registry
    pool = DescriptorPool()
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    for file in (CENTS_PROTO, MONEY_PROTO, ORDER_PROTO):
        pool.AddSerializedFile(file.SerializeToString())
    message = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()
    message.price.amount.cents = 12
    message.takes.seconds = 5
    cents = pa.struct([("amount", pa.struct([("cents", pa.int64())]))])
    row_type = pa.struct([("price", cents), ("takes", pa.struct([("seconds", pa.int64())]))])
    values = ProtobufValues(schemas=Registry(url))
    assert decoded(values, row_type, header(13) + b"\0" + message.SerializeToString()) == [
        ({"price": {"amount": {"cents": 12}}, "takes": {"seconds": 5}}, None)
    ]
