"""Every message and record against the classes of Apache Kafka 4.2 itself."""

import base64
import json
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from headrace_broker.protocol.batch import Compression, NewRecord, build_batch
from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.headers import RequestHeader
from headrace_broker.protocol.schema import Array, Field, Message, Records, Struct
from support.kafka_peer import jar_directory
from support.messages import all_message_classes, default_of, fields_in, messages, restricted
from support.messages import versions_of as all_versions_of

SOURCES = Path(__file__).parent / "java"
EXAMPLES = 4


def _versions(cls: type[Message]) -> list[int]:
    # Kafka 4 no longer has version 0 of the header, which ControlledShutdown's version 0 had.
    return [v for v in all_versions_of(cls) if cls is not RequestHeader or v > 0]


def _examples(cls: type[Message]) -> list[Message]:
    found: list[Message] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages(cls))
    def collect(drawn: Message) -> None:
        found.append(drawn)

    collect()
    return found


def _json_of(message: Struct, version: int, java: dict[str, Any]) -> dict[str, Any]:
    """Write a message as Kafka's JsonConverter does; tagged fields appear if not the default."""
    out = {}
    for field in fields_in(type(message), version):
        name = next((n for n in java if _alike(n, field.name)), field.name)
        value = getattr(message, field.name)
        if name not in java and field.tag is not None and value == default_of(field):
            continue
        if field.wire is Records and value is not None:
            out[f"{name}SizeInBytes"] = len(value)
            continue
        out[name] = _json_value(field, value, version, java.get(name))
    return out


def _alike(theirs: str, ours: str) -> bool:
    return theirs.lower() == ours.replace("_", "").lower()


def _json_value(field: Field, value: Any, version: int, java: Any) -> Any:
    if isinstance(value, list) and field.wire is Array:
        shapes = java if isinstance(java, list) and len(java) == len(value) else [{}] * len(value)
        return [
            _json_value(field, inner, version, shape)
            for inner, shape in zip(value, shapes, strict=True)
        ]
    if isinstance(value, Struct):
        return _json_of(value, version, java if isinstance(java, dict) else {})
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _ask(oracle: str, lines: list[str]) -> list[str]:
    if shutil.which("javac") is None:
        pytest.skip("the oracle is compiled as it starts, which needs a JDK")
    done = subprocess.run(
        ["java", "-cp", f"{jar_directory()}/*", str(SOURCES / f"{oracle}.java")],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines), done.stderr
    return answers


@pytest.mark.java
def test_kafkas_own_classes_read_what_we_write_and_write_it_back() -> None:
    cases = [
        (cls, version, restricted(drawn, version))
        for cls in all_message_classes()
        for drawn in _examples(cls)
        for version in _versions(cls)
    ]
    encoded = [encode_bytes(message, version).hex() for _, version, message in cases]
    answers = _ask(
        "MessageOracle",
        [
            f"{cls.__name__} {version} {data}"
            for (cls, version, _), data in zip(cases, encoded, strict=True)
        ],
    )
    for (cls, version, message), data, answer in zip(cases, encoded, answers, strict=True):
        written, _, values = answer.partition(" ")
        assert written == data, f"{cls.__name__} v{version}: {answer}"
        java = json.loads(values)
        assert _json_of(message, version, java) == java, f"{cls.__name__} v{version}"


@pytest.mark.java
def test_kafka_reads_our_batches_in_every_compression() -> None:
    # More than one block of snappy's and of lz4's framing.
    records = [
        NewRecord(key=None if n % 3 else b"k%d" % n, value=bytes([n % 251]) * 997, timestamp=n * n)
        for n in range(200)
    ]
    wanted = " ".join(
        f"{7 + n}:{r.timestamp}:{'null' if r.key is None else r.key.hex()}:{(r.value or b'').hex()}"
        for n, r in enumerate(records)
    )
    batches = [build_batch(records, base_offset=7, compression=kind) for kind in Compression]
    assert _ask("BatchOracle", [batch.hex() for batch in batches]) == [wanted] * len(batches)
