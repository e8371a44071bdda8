"""A topic that is deleted and made again under its name: no life of it sees another's records."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.batch_header import parse_batch_header
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    delete_records,
    delete_topics,
    fetch,
    metadata,
    produce,
)
from simulation.client import FAILURES, IDS_FROM, METADATA_IDS_FROM, Client
from simulation.retries import RETRIABLE
from simulation.workloads.offsets import GroupOffsets
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.scenario import Scenario

TOPIC = "churn"
GROUP = "churners"
COMMITS_SINCE = 1_000_000
_LIVES_MAX = 12
_OFFSETS_OF_A_LIFE = 1000


class Churn:
    """Creates the topic, writes and reads it by its id, trims and deletes it, and begins again."""

    def __init__(self, client: Client, replicas: int, *, commits: bool) -> None:
        self._client = client
        self._replicas = replicas
        self._offsets = GroupOffsets(client, GROUP) if commits else None
        """A group that reads the topic, too: it begins each life without an offset."""
        self._life = 0
        self._known: dict[int, bytes] = {}
        self._sent: set[bytes] = set()
        self._gone: set[UUID] = set()
        self._start = 0
        """Below this DeleteRecords may have taken what was there."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Live through several lives; the last is left as it is, and read once more."""
        client = self._client
        while not is_over() and self._life < _LIVES_MAX:
            self._life += 1
            self._known.clear()
            self._sent.clear()
            self._start = 0
            configs = {"min.insync.replicas": str(min(2, self._replicas))}
            await client.create_topic(TOPIC, 1, self._replicas, configs)
            topic_id = await client.until(self._topic_id)
            await self._look_for_offsets(topic_id)
            for _ in range(client.rng.randint(0, 6)):
                await self._write(topic_id)
                await client.pause()
            if self._known and client.rng.random() < 0.4:
                await self._trim(client.rng.choice(sorted(self._known)) + 1)
            await client.until(lambda topic_id=topic_id: self._read(topic_id))
            await client.until(lambda topic_id=topic_id: self._delete(topic_id))

    async def _look_for_offsets(self, topic_id: UUID) -> None:
        """Find nothing that was committed to a former life, and commit to this one."""
        if self._offsets is None:
            return
        client, first = self._client, self._life * _OFFSETS_OF_A_LIFE
        client.ids[TOPIC], client.names[topic_id] = topic_id, TOPIC
        for offset in (first, first + 1):
            found = await self._offsets.committed((TOPIC, 0), -1)
            if found not in (-1, first, first + 1):
                client.history.violate(
                    "another-lifes-offset", f"{TOPIC} life {self._life}: {GROUP} finds {found}"
                )
            await self._offsets.commit({(TOPIC, 0): offset})

    async def _topic_id(self) -> UUID | None:
        request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])
        response = await self._client.any_call(ApiKey.METADATA, request, version=12)
        topic = response.topics[0]
        if topic.error_code or topic.partitions[0].leader_id < 0:
            return None
        # A broker that lags behind still has the former life.
        return None if topic.topic_id in self._gone else topic.topic_id

    async def _write(self, topic_id: UUID) -> None:
        """Write one record once; only an acknowledgement makes it known."""
        value = f"{self._life}/{len(self._sent)}".encode()
        self._sent.add(value)
        now = self._client.history.now_ms()
        records = bytes(build_batch([NewRecord(value=value, timestamp=now)]))
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=1500,
            topic_data=[
                produce.TopicProduceData(
                    name="",
                    topic_id=topic_id,
                    partition_data=[produce.PartitionProduceData(index=0, records=records)],
                )
            ],
        )
        try:
            caller, _ = await self._client.leader(TOPIC, 0)
            response = await self._client.call(caller, ApiKey.PRODUCE, request, version=13)
        except FAILURES:
            self._client.forget(TOPIC, 0)
            return
        result = response.responses[0].partition_responses[0]
        if not result.error_code:
            self._place(result.base_offset, value, "acknowledged")
            return
        self._client.forget(TOPIC, 0)
        self._judge("produce", result.error_code)

    def _place(self, offset: int, value: bytes, how: str) -> None:
        before = self._known.setdefault(offset, value)
        if before != value:
            self._client.history.violate(
                "inconsistent-offsets",
                f"{TOPIC} offset {offset} was {before!r} and is {value!r} ({how})",
            )

    async def _trim(self, offset: int) -> None:
        """Delete the records below an offset, once; whether it was done may stay unknown."""
        self._start = offset
        self._client.history.may_trim((TOPIC, 0), offset)
        self._known = {known: self._known[known] for known in self._known if known >= offset}
        partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
        request = delete_records.DeleteRecordsRequest(
            topics=[delete_records.DeleteRecordsTopic(name=TOPIC, partitions=[partition])],
            timeout_ms=1500,
        )
        try:
            caller, _ = await self._client.leader(TOPIC, 0)
            response = await self._client.call(caller, ApiKey.DELETE_RECORDS, request)
        except FAILURES:
            self._client.forget(TOPIC, 0)
            return
        code = response.topics[0].partitions[0].error_code
        # A broker that lags behind may hold the former life, which was shorter.
        if code and code != ErrorCode.OFFSET_OUT_OF_RANGE:
            self._client.forget(TOPIC, 0)
            self._judge("delete records", code)

    async def _read(self, topic_id: UUID) -> bool | None:
        """Read all of it and compare; None where it has to be tried again."""
        request = fetch.FetchRequest(
            max_wait_ms=100,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                fetch.FetchTopic(
                    topic="",
                    topic_id=topic_id,
                    partitions=[
                        fetch.FetchPartition(
                            partition=0, fetch_offset=self._start, partition_max_bytes=1 << 20
                        )
                    ],
                )
            ],
        )
        try:
            caller, _ = await self._client.leader(TOPIC, 0)
            response = await self._client.call(caller, ApiKey.FETCH, request, version=13)
        except FAILURES:
            # A broker that lags behind may have named a leader epoch of the former life.
            self._client.forget(TOPIC, 0, is_new=True)
            raise
        result = response.responses[0].partitions[0] if response.responses else None
        if result is None or result.error_code:
            self._client.forget(TOPIC, 0)
            self._judge("fetch", result.error_code if result else response.error_code)
            return None
        found = dict(_records(memoryview(result.records or b"")))
        if self._known and result.high_watermark <= max(self._known):
            return None  # this leader does not know yet what is committed
        for offset, value in found.items():
            if value not in self._sent:
                self._client.history.violate(
                    "another-lifes-record", f"{TOPIC} life {self._life}: {offset} holds {value!r}"
                )
            self._place(offset, value, "read")
        lost = sorted(set(self._known) - set(found))
        if lost:
            self._client.history.violate("lost-write", f"{TOPIC} life {self._life} lost {lost}")
        return True

    async def _delete(self, topic_id: UUID) -> bool | None:
        request = delete_topics.DeleteTopicsRequest(
            topics=[delete_topics.DeleteTopicState(topic_id=topic_id)], timeout_ms=1500
        )
        response = await self._client.any_call(ApiKey.DELETE_TOPICS, request)
        code = ErrorCode(response.responses[0].error_code)
        if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
            self._client.forget(TOPIC, 0, is_new=True)
            self._gone.add(topic_id)
            return True
        self._judge("delete", code)
        return None

    def _judge(self, what: str, code: int) -> None:
        if code not in RETRIABLE:
            self._client.history.violate("churn", f"{what}: {ErrorCode(code).name}")


def _records(data: memoryview) -> list[tuple[int, bytes]]:
    found, start = [], 0
    while start < len(data):
        size = parse_batch_header(data, start).size_bytes
        batch = data[start : start + size]
        found += [(record.offset, bytes(record.value)) for record in iterate_records(batch)]
        start += size
    return found


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("churn")
    # Without topic ids a client never believes the lower leader epochs of a new life (KAFKA-12257).
    spoken = max(client.versions[ApiKey.METADATA], METADATA_IDS_FROM)
    client.versions[ApiKey.METADATA] = spoken
    commits = scenario.cluster.seed >= COMMITS_SINCE
    if commits:
        # By its name a coordinator that lags behind would answer for the former life.
        client.versions[ApiKey.OFFSET_FETCH] = IDS_FROM[ApiKey.OFFSET_FETCH]
    churn = Churn(client, scenario.profile.replicas, commits=commits)
    return [scenario.loop.start_task(process, churn.run(scenario.is_over))]


CHURN = Workload(name="churn", share=0.25, start=_start)
