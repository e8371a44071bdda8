"""The records of `__consumer_offsets` and where groups live, against Kafka's own values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.coordinator.partitioning import java_string_hash, partition_for_group
from headrace_broker.coordinator.records import GroupRecord, OffsetRecord, read_record, write_record
from headrace_broker.coordinator.states import (
    TRANSITIONS,
    GroupState,
    IllegalTransitionError,
    check_transition,
)
from headrace_broker.coordinator.subscription import subscribed_topics
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.coordinator import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


@pytest.mark.parametrize(
    ("text", "value"),
    # Printed by jshell: "…".hashCode()
    [
        ("", 0),
        ("console-consumer-1", 35_782_224),
        ("héadrace-𝄞", -814_918_142),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_groups_hash_as_java_strings(text, value):
    assert java_string_hash(text) == value


def test_the_smallest_hash_has_a_partition_too():
    assert partition_for_group("polygenelubricants", 50) == 0


def test_an_offset_record_is_kafkas_byte_for_byte():
    key, value = write_record(
        OffsetRecord(
            key=OffsetCommitKey(group="g", topic="t", partition=1),
            value=OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9),
        )
    )
    assert key.hex() == "000100016700017400000001"
    # Version 4: offset, leader epoch, compact string, commit timestamp, no tagged fields.
    assert value is not None
    assert value.hex() == "0004000000000000000500000002026d000000000000000900"


def test_an_explicit_expiry_is_written_in_version_1():
    _, value = write_record(
        OffsetRecord(
            key=OffsetCommitKey(group="g", topic="t", partition=1),
            value=OffsetCommitValue(offset=5, expire_timestamp=77),
        )
    )
    assert value is not None
    assert value[:2].hex() == "0001"


def test_a_record_of_another_kind_of_group_is_left_alone():
    streams_group_metadata = b"\x00\x11\x00\x01g"
    assert read_record(streams_group_metadata, b"") is None


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x01\x7f", b"\x00\x02\xff\xff"])
def test_a_record_that_is_not_what_it_says_is_a_decode_error(key):
    with pytest.raises(DecodeError):
        read_record(key, None)


@given(st.text(max_size=20), st.integers(0, 2**31 - 1), st.booleans())
def test_records_survive_the_round_trip(group, generation, is_tombstone):
    value = (
        None
        if is_tombstone
        else GroupMetadataValue(protocol_type="consumer", generation=generation)
    )
    record = GroupRecord(key=GroupMetadataKey(group=group), value=value)
    assert read_record(*write_record(record)) == record


@given(st.binary(max_size=200))
def test_any_bytes_may_stand_where_a_subscription_should(metadata):
    subscribed_topics(metadata)


def test_illegal_moves_raise():
    for before in GroupState:
        for after in set(GroupState) - TRANSITIONS[before]:
            with pytest.raises(IllegalTransitionError):
                check_transition(before, after)
