"""The dead-letter topic of the queue's group (KIP-1191), in two of three seeds from `SINCE` on.

Small batches, so that the letters of one write go out in several, and other partitions than the
queue has. What must be in it is in `simulation.invariants.dead_letters`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.batch import Record, iterate_records
from headrace_broker.protocol.batch_header import parse_batch_header
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import fetch
from simulation.client import Client
from simulation.retries import RETRIABLE

if TYPE_CHECKING:
    import random

    from simulation.cluster import Cluster
    from simulation.profile import Profile

TOPIC = "dlq.queue"
SINCE = 7000
_SHARE = 2 / 3
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DeadLetterTopic:
    """How this seed's is made."""

    partitions: int
    message_bytes_max: int

    @property
    def places(self) -> list[tuple[str, int]]:
        """Its partitions."""
        return [(TOPIC, index) for index in range(self.partitions)]

    async def create(self, client: Client, profile: "Profile", settings: dict[str, str]) -> None:
        """Make it, with what the queue has been given."""
        more = {
            "errors.deadletterqueue.group.enable": "true",
            "max.message.bytes": str(self.message_bytes_max),
        }
        await client.create_topic(TOPIC, self.partitions, profile.replicas, settings | more)


GROUP_SETTINGS = {
    "errors.deadletterqueue.topic.name": TOPIC,
    "errors.deadletterqueue.copy.record.enable": "true",
}


def draw_dead_letters(cluster: "Cluster") -> DeadLetterTopic | None:
    """Return the topic, None in seeds without."""
    rng: random.Random = cluster.fork("dead-letters")
    if cluster.seed < SINCE or rng.random() >= _SHARE:
        return None
    return DeadLetterTopic(
        partitions=rng.choice((1, 2, 3)), message_bytes_max=rng.choice((700, 1500, 1_000_000))
    )


async def read_dead_letters(client: Client, partitions: int) -> list[tuple[int, Record]]:
    """Read all of it, whatever it takes: partitions and records."""
    found: list[tuple[int, Record]] = []
    for index in range(partitions):
        position, end = 0, 1
        while position < end:
            position, end = await client.until(_Read(client, index, position, found).attempt)
    return found


@dataclass(slots=True)
class _Read:
    """One fetch, until it is answered."""

    client: Client
    index: int
    position: int
    found: list[tuple[int, Record]]

    async def attempt(self) -> tuple[int, int] | None:
        """Return where to go on, and the high watermark; None to ask again."""
        client = self.client
        topic_id = await client.topic_id(TOPIC)
        caller, epoch = await client.leader(TOPIC, self.index)
        asked = fetch.FetchTopic(
            topic=TOPIC,
            partitions=[
                fetch.FetchPartition(
                    partition=self.index,
                    current_leader_epoch=epoch,
                    fetch_offset=self.position,
                    partition_max_bytes=_READ_BYTES,
                )
            ],
        )
        if client.speaks_ids(ApiKey.FETCH):
            asked.topic_id = topic_id
        request = fetch.FetchRequest(
            max_wait_ms=100, min_bytes=1, max_bytes=_READ_BYTES, session_epoch=-1, topics=[asked]
        )
        answer = await client.call(caller, ApiKey.FETCH, request)
        result = None if answer.error_code else answer.responses[0].partitions[0]
        code = ErrorCode(answer.error_code if result is None else result.error_code)
        if code or result is None:
            client.forget(TOPIC, self.index)
            if code not in RETRIABLE:
                client.history.violate("dead-letters", f"a fetch of {TOPIC} hears {code.name}")
            return None
        return self._take(bytes(result.records or b"")), result.high_watermark

    def _take(self, data: bytes) -> int:
        start, position = 0, self.position
        while start < len(data):
            for record in iterate_records(data, start):
                if record.offset >= position:
                    self.found.append((self.index, record))
                    position = record.offset + 1
            start += parse_batch_header(data, start).size_bytes
        return position
