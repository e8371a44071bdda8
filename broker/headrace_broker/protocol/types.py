"""Names for the integers and identifiers of Kafka's protocol, and the buffers the codec reads.

Owns names only: no value is checked here.
"""

import uuid
from typing import Final, NewType, TypeAlias

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
NodeId = NewType("NodeId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
TopicId = NewType("TopicId", uuid.UUID)
PartitionIndex = NewType("PartitionIndex", int)
BrokerEpoch = NewType("BrokerEpoch", int)
TimestampMs = NewType("TimestampMs", int)
Generation = NewType("Generation", int)

NO_OFFSET: Final = Offset(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_NODE: Final = NodeId(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = Sequence(-1)
NO_TIMESTAMP: Final = TimestampMs(-1)

#: KIP-858's DirectoryId: not reported yet (0), to be chosen by the broker (1), lost (2).
MIGRATING_DIRECTORY: Final = uuid.UUID(int=0)
UNASSIGNED_DIRECTORY: Final = uuid.UUID(int=1)
LOST_DIRECTORY: Final = uuid.UUID(int=2)

# What can be decoded in place: a received frame, a slice of one, or a file's page.
Buffer: TypeAlias = bytes | bytearray | memoryview
# One part of an encoded message; record batches stay the memoryview they came as.
Part: TypeAlias = bytes | memoryview
