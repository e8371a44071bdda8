"""Every message, in all its versions, byte for byte against codecs that we did not write."""

import pytest
from hypothesis import HealthCheck, given, settings

from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.messages.records.coordinator import (
    GROUP_RECORDS,
    SHARE_STATE_RECORDS,
    TRANSACTION_RECORDS,
)
from headrace_broker.protocol.messages.records.metadata import METADATA_RECORDS
from headrace_broker.protocol.schema import Message
from support.messages import all_message_classes, messages, restricted, versions_of
from support.oracles import KafkaPython, Kio

KIO = Kio()
KAFKA_PYTHON = KafkaPython()

# kio and kafka-python are clients: neither reads what brokers write to their own logs and disks.
# test_java_oracle checks these against Apache Kafka's own classes.
LOG_RECORDS = {
    *METADATA_RECORDS.values(),
    *(cls for pair in GROUP_RECORDS.values() for cls in pair),
    *(cls for pair in TRANSACTION_RECORDS.values() for cls in pair),
    *(cls for pair in SHARE_STATE_RECORDS.values() for cls in pair),
}
UNKNOWN_TO_BOTH = {cls.__name__: "a broker's own log" for cls in LOG_RECORDS} | {
    "ProducerSnapshot": "a file beside a partition's log",
    "QuorumStateData": "a voter's file, which Kafka writes as JSON",
}
# Version 0 of the header went with ControlledShutdown before either was written.
UNKNOWN_VERSIONS = {("RequestHeader", 0)}


@pytest.mark.parametrize(
    "cls",
    [cls for cls in all_message_classes() if cls.__name__ not in UNKNOWN_TO_BOTH],
    ids=lambda cls: cls.__name__,
)
def test_both_oracles_read_what_we_write_and_write_what_we_read(cls: type[Message]) -> None:
    checks = [
        (oracle, version)
        for version in versions_of(cls)
        for oracle in (KIO, KAFKA_PYTHON)
        if oracle.has(cls, version)
    ]
    assert checks

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages(cls, KIO.narrowing(cls)))
    def agree(drawn: Message) -> None:
        for oracle, version in checks:
            message = restricted(drawn, version)
            ours = encode_bytes(message, version)
            entity = oracle.decode(cls, version, ours)
            assert oracle.to_ours(cls, version, entity) == message, (oracle.name, version)
            theirs = oracle.encode(cls, version, entity)
            assert theirs == ours, (oracle.name, version)
            assert decode(cls, theirs, version) == (message, len(theirs))

    agree()


def test_kio_knows_every_version_of_every_message_that_is_not_listed_as_unknown() -> None:
    unknown = {
        (cls.__name__, version)
        for cls in all_message_classes()
        for version in versions_of(cls)
        if not KIO.has(cls, version) and cls.__name__ not in UNKNOWN_TO_BOTH
    }
    assert unknown == UNKNOWN_VERSIONS


@pytest.mark.parametrize("cls", all_message_classes(), ids=lambda cls: cls.__name__)
def test_what_we_write_we_read_in_every_version(cls: type[Message]) -> None:
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages(cls))
    def round_trips(drawn: Message) -> None:
        for version in versions_of(cls):
            message = restricted(drawn, version)
            data = encode_bytes(message, version)
            assert decode(cls, b"\0\0" + data, version, 2) == (message, len(data) + 2)

    round_trips()
