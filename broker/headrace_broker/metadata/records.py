"""The metadata records that this broker writes and replays, in one module.

Their formats are KRaft's (`metadata/src/main/resources/common/metadata` of Apache Kafka); the
versions are those of metadata version 4.2-IV1, so Kafka's own tools read the log.
"""

from collections.abc import Mapping
from typing import cast

from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.metadata import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace_broker.protocol.messages.records.register_broker_record import (
    BrokerEndpoint,
    BrokerFeature,
)
from headrace_broker.protocol.records import decode_metadata_record, encode_metadata_record
from headrace_broker.protocol.types import Buffer

MetadataRecord = (
    TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | UnregisterBrokerRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | NoOpRecord
)

# The version that each record is written in.
_VERSIONS: Mapping[type, int] = {
    TopicRecord: 0,
    RemoveTopicRecord: 0,
    PartitionRecord: 2,
    PartitionChangeRecord: 2,
    ConfigRecord: 0,
    RegisterBrokerRecord: 3,
    BrokerRegistrationChangeRecord: 2,
    FenceBrokerRecord: 0,
    UnfenceBrokerRecord: 0,
    UnregisterBrokerRecord: 0,
    FeatureLevelRecord: 0,
    ProducerIdsRecord: 0,
    NoOpRecord: 0,
}

__all__ = [
    "BrokerEndpoint",
    "BrokerFeature",
    "BrokerRegistrationChangeRecord",
    "ConfigRecord",
    "FeatureLevelRecord",
    "FenceBrokerRecord",
    "MetadataRecord",
    "NoOpRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "RegisterBrokerRecord",
    "RemoveTopicRecord",
    "TopicRecord",
    "UnfenceBrokerRecord",
    "UnregisterBrokerRecord",
    "decode_record",
    "encode_record",
]


def encode_record(record: MetadataRecord) -> bytes:
    """Return the value of a log record: the frame and the body."""
    return encode_metadata_record(record, _VERSIONS[type(record)])


def decode_record(value: Buffer) -> MetadataRecord:
    """Return the record in a log record's value; raises DecodeError."""
    record = decode_metadata_record(value)
    if type(record) not in _VERSIONS:
        raise DecodeError(f"{type(record).__name__} is a record that this broker does not know")
    return cast("MetadataRecord", record)
