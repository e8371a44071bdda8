"""Members of a share group (KIP-932): they fetch, accept, release, reject, renew, and fall silent.

Each keeps a share session with every leader, whose partitions change; some lose their connections
with records in flight and come back as others, some are slow, some sleep beyond their locks and
acknowledge late. In the end one more member accepts all that is left, and the group must come to
the log's end. What must hold is in `simulation.invariants.shares`.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_broker.coordinator.share_partition.states import AcknowledgeType
from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.batch_header import parse_batch_header
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    describe_share_group_offsets,
    incremental_alter_configs,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)
from simulation.client import FAILURES, METADATA_IDS_FROM, Caller, Client
from simulation.retries import RETRIABLE
from simulation.share_faults import LATE_MEMBERS_SINCE, ShareFaults
from simulation.workloads import state_epochs
from simulation.workloads.dead_letters import (
    GROUP_SETTINGS,
    DeadLetterTopic,
    draw_dead_letters,
    read_dead_letters,
)
from simulation.workloads.late_members import LateMember
from simulation.workloads.operators import Operator
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    import random

    from simulation.invariants.shares import Shares
    from simulation.profile import Profile
    from simulation.scenario import Scenario

TOPIC = "queue"
GROUP = "queue-readers"
PARTITIONS = 2
LOCK_SECONDS = 1.0
SINCE = 3000
_GROUP_RESOURCE = 32
_MOVED_SHARE = 0.5
_LEAVE, _JOIN = -1, 0
_FINAL = -1
_HEARTBEAT_SECONDS = 0.3
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
_MEMBER_ERRORS = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_RECORD_ERRORS = frozenset({ErrorCode.INVALID_RECORD_STATE})

_POISON_EVERY = 3
_OF_POISON = (AcknowledgeType.REJECT, AcknowledgeType.RELEASE)

Said = list[tuple[int, AcknowledgeType]]


@dataclass(slots=True, eq=False)
class Session:
    """A share session with one leader, and what this member has of its partitions."""

    caller: Caller
    epoch: int = 0
    partitions: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    """Those that the leader knows of."""
    held: dict[int, set[int]] = field(default_factory=dict)
    """Offsets by partition."""


class ShareMember:
    """One consumer of the group, through many lives."""

    def __init__(
        self,
        client: Client,
        shares: "Shares",
        *,
        accepts_all: bool = False,
        has_poison: bool = False,
    ) -> None:
        rng = client.rng
        self._has_poison = has_poison
        self._client = client
        self._shares = shares
        self._accepts_all = accepts_all
        self._think_seconds = rng.choice((0.005, 0.02, 0.2))
        self._records_max = rng.choice((1, 3, 20, 500))
        self._is_strict = rng.random() < 0.5
        self._piggybacks = rng.random() < 0.5
        self._id, self._epoch = "", _JOIN
        self._assigned: list[int] = []
        self._beat_at = 0.0
        self._sessions: dict[Caller, Session] = {}

    def take_much(self) -> None:
        """Take what there is at once, and lose no time: a whole log may be left."""
        self._records_max, self._think_seconds = 500, 0.005

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Join, work, and go; again and again until it is over."""
        while not is_over():
            self._begin_life()
            with contextlib.suppress(*FAILURES):
                await self._live(is_over)
            await self._end_life()
            await self._client.pause()

    def _begin_life(self) -> None:
        self._id = str(uuid.UUID(int=self._client.rng.getrandbits(128)))
        self._epoch, self._assigned, self._beat_at = _JOIN, [], 0.0
        self._sessions = {}

    async def _end_life(self) -> None:
        """Leave, or be gone without a word: the connections are lost, or stay open for nothing."""
        how = self._client.rng.random()
        with contextlib.suppress(*FAILURES):
            if self._accepts_all or how < 0.4:
                for session in list(self._sessions.values()):
                    await self._acknowledge(session, {}, epoch=_FINAL)
                if self._epoch != _JOIN:
                    await self._heartbeat(_LEAVE)
        if how < 0.6:
            for caller in self._sessions:
                caller.close()

    async def _live(self, is_over: Callable[[], bool]) -> None:
        rng, loop = self._client.rng, asyncio.get_running_loop()
        while not is_over() and (self._accepts_all or rng.random() > 0.01):
            if loop.time() >= self._beat_at and not await self._heartbeat(self._epoch):
                if self._epoch == _JOIN:
                    return
                await self._client.pause()
                continue
            sessions = await self._find_leaders()
            for session in sessions:
                await self._round(session)
            if not sessions:
                await self._client.pause()
            await asyncio.sleep(rng.expovariate(1 / self._think_seconds))

    # ---- the group

    async def _heartbeat(self, epoch: int) -> bool:
        """Keep the membership; false where it has to join again or nobody answers."""
        caller = await self._client.coordinator(GROUP)
        if caller is None:
            await self._client.pause()
            return False
        request = share_group_heartbeat.ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._id,
            member_epoch=epoch,
            subscribed_topic_names=[TOPIC] if epoch == _JOIN else None,
        )
        answer = await self._client.call(caller, ApiKey.SHARE_GROUP_HEARTBEAT, request)
        code = ErrorCode(answer.error_code)
        if code in _MEMBER_ERRORS:
            self._epoch = _JOIN
        if code:
            if code not in _MEMBER_ERRORS and code not in RETRIABLE:
                self._client.history.violate("share-group", f"heartbeat: {code.name}")
            return False
        self._epoch = answer.member_epoch
        self._beat_at = asyncio.get_running_loop().time() + _HEARTBEAT_SECONDS
        if answer.assignment is not None:
            self._assigned = [
                index for topic in answer.assignment.topic_partitions for index in topic.partitions
            ]
        return True

    async def _find_leaders(self) -> list[Session]:
        """Return a session for each leader; each has the partitions that it leads as we know."""
        wanted: dict[Caller, set[int]] = {}
        for index in self._assigned:
            if self._client.rng.random() < 0.05:
                self._client.forget(TOPIC, index)  # metadata.max.age.ms
            try:
                await self._client.topic_id(TOPIC)
                caller, _ = await self._client.leader(TOPIC, index)
            except FAILURES:
                self._client.forget(TOPIC, index)
                continue
            wanted.setdefault(caller, set()).add(index)
        for caller in [each for each in self._sessions if each.is_closed]:
            del self._sessions[caller]
        for caller, partitions in wanted.items():
            session = self._sessions.setdefault(caller, Session(caller))
            session.partitions = partitions
        return [self._sessions[caller] for caller in wanted]

    # ---- records

    async def _round(self, session: Session) -> None:
        """Fetch from one leader, and say what becomes of the records, or do not."""
        rng = self._client.rng
        asked = set(session.partitions)
        if len(asked) > 1 and not self._accepts_all and rng.random() < 0.1:
            asked.remove(rng.choice(sorted(asked)))
        said: dict[int, Said] = {}
        if self._piggybacks and session.epoch:
            said = self._decide(session)
        await self._fetch(session, asked, said)
        if session.held and not self._accepts_all and rng.random() < 0.08:
            await self._renew(session)
        if session.held and not self._accepts_all and rng.random() < 0.05:
            await asyncio.sleep(LOCK_SECONDS * rng.choice((0.5, 0.95, 1.05, 1.5)))
        if not self._piggybacks and session.held and rng.random() < 0.9:
            await self._acknowledge(session, self._decide(session))

    def _decide(self, session: Session) -> dict[int, Said]:
        """Take what is held out, and say something of most of it."""
        rng, found = self._client.rng, {}
        for index, offsets in session.held.items():
            if self._accepts_all:
                found[index] = [(offset, self._final(offset)) for offset in sorted(offsets)]
                continue
            kinds = rng.choice(
                (
                    (AcknowledgeType.ACCEPT,),
                    (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE),
                    (AcknowledgeType.RELEASE,),
                    tuple(AcknowledgeType)[1:4],
                )
            )
            # What is left out is forgotten: its lock runs out.
            kept = [offset for offset in sorted(offsets) if rng.random() < 0.95]
            if kept:
                found[index] = [
                    (offset, rng.choice(_OF_POISON if self._is_poison(offset) else kinds))
                    for offset in kept
                ]
        session.held = {}
        return found

    def _is_poison(self, offset: int) -> bool:
        """Whether nobody can process a record: it is a dead letter in the end."""
        return self._has_poison and offset % _POISON_EVERY == 0

    def _final(self, offset: int) -> AcknowledgeType:
        return AcknowledgeType.REJECT if self._is_poison(offset) else AcknowledgeType.ACCEPT

    async def _fetch(self, session: Session, asked: set[int], said: dict[int, Said]) -> None:
        rng, messages = self._client.rng, share_fetch
        gone, added = sorted(session.asked - asked), asked - session.asked
        request = messages.ShareFetchRequest(
            group_id=GROUP,
            member_id=self._id,
            share_session_epoch=session.epoch,
            max_wait_ms=rng.choice((0, 50, 200)),
            min_bytes=rng.choice((0, 1, 1, 300)),
            max_bytes=rng.choice((100, 1_000_000)),
            max_records=self._records_max,
            batch_size=self._records_max,
            share_acquire_mode=int(self._is_strict),
            topics=self._topics(messages, added, said),
            forgotten_topics_data=[
                messages.ForgottenTopic(topic_id=self._topic_id(), partitions=gone)
            ]
            if gone
            else [],
        )
        self._say(said)
        answer = await self._send(session, ApiKey.SHARE_FETCH, request)
        if answer is None:
            return
        session.epoch += 1
        session.asked = asked
        failed: set[int] = set()
        for topic in answer.responses:
            for data in topic.partitions:
                if data.acknowledge_error_code:
                    failed.add(data.partition_index)
                    self._refused(data.partition_index, ErrorCode(data.acknowledge_error_code))
                if data.error_code:
                    self._refused(data.partition_index, ErrorCode(data.error_code))
                elif data.acquired_records:
                    self._take(session, data)
        for index in said.keys() - failed:
            self._shares.answered(index, said[index])

    def _take(self, session: Session, data: Any) -> None:
        """Take what was delivered: all that is acquired must be there."""
        records = bytes(data.records or b"")
        found: dict[int, bytes] = {}
        position = 0
        while position < len(records):
            header = parse_batch_header(records, position)
            for record in iterate_records(records, position):
                found[record.offset] = bytes(record.value or b"")
            position += header.size_bytes
        index = data.partition_index
        for item in data.acquired_records:
            for offset in range(item.first_offset, item.last_offset + 1):
                if offset not in found:
                    self._client.history.violate(
                        "share-record", f"{index}/{offset} is acquired, and not in the answer"
                    )
                    continue
                self._shares.received(index, offset, found[offset])
                session.held.setdefault(index, set()).add(offset)

    async def _renew(self, session: Session) -> None:
        """Renew every lock, work on beyond their first end, and come back to them."""
        rng = self._client.rng
        await asyncio.sleep(LOCK_SECONDS * rng.choice((0.3, 0.7)))
        held = {index: sorted(offsets) for index, offsets in session.held.items()}
        said = {
            index: [(offset, AcknowledgeType.RENEW) for offset in offsets]
            for index, offsets in held.items()
        }
        await self._acknowledge(session, said, renews=True)
        await asyncio.sleep(LOCK_SECONDS * rng.choice((0.3, 0.6, 0.9)))

    async def _acknowledge(
        self,
        session: Session,
        said: dict[int, Said],
        *,
        epoch: int | None = None,
        renews: bool = False,
    ) -> None:
        messages = share_acknowledge
        if not session.epoch or (not said and epoch is None):
            return
        request = messages.ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self._id,
            share_session_epoch=session.epoch if epoch is None else epoch,
            is_renew_ack=renews,
            topics=self._topics(messages, set(), said),
        )
        self._say(said)
        answer = await self._send(session, ApiKey.SHARE_ACKNOWLEDGE, request)
        if answer is None:
            return
        session.epoch += 1
        for topic in answer.responses:
            for data in topic.partitions:
                code = ErrorCode(data.error_code)
                if code:
                    self._refused(data.partition_index, code)
                elif data.partition_index in said:
                    self._shares.answered(data.partition_index, said[data.partition_index])

    # ---- requests

    def _topic_id(self) -> uuid.UUID:
        return self._client.ids[TOPIC]

    def _say(self, said: dict[int, Said]) -> None:
        for index, items in said.items():
            self._shares.saying(index, items)

    def _topics(self, messages: Any, named: set[int], said: dict[int, Said]) -> list[Any]:
        is_fetch = messages is share_fetch
        partition = messages.FetchPartition if is_fetch else messages.AcknowledgePartition
        topic = messages.FetchTopic if is_fetch else messages.AcknowledgeTopic
        partitions = [
            partition(
                partition_index=index,
                acknowledgement_batches=self._batches(messages, said.get(index, [])),
            )
            for index in sorted(named | said.keys())
        ]
        return [topic(topic_id=self._topic_id(), partitions=partitions)] if partitions else []

    def _batches(self, messages: Any, said: Said) -> list[Any]:
        """Return ranges without holes, with one type for all where they agree."""
        ranges: list[list[tuple[int, AcknowledgeType]]] = []
        for offset, kind in said:
            if ranges and ranges[-1][-1][0] + 1 == offset:
                ranges[-1].append((offset, kind))
            else:
                ranges.append([(offset, kind)])
        made = []
        for items in ranges:
            kinds = [int(kind) for _, kind in items]
            made.append(
                messages.AcknowledgementBatch(
                    first_offset=items[0][0],
                    last_offset=items[-1][0],
                    acknowledge_types=kinds[:1] if len(set(kinds)) == 1 else kinds,
                )
            )
        return made

    async def _send(self, session: Session, key: ApiKey, request: Any) -> Any | None:
        """Return the answer; without one the session is over, and what it held with it."""
        try:
            answer = await self._client.call(session.caller, key, request)
        except FAILURES:
            self._drop(session)
            for index in session.partitions:
                self._client.forget(TOPIC, index)
            return None
        code = ErrorCode(answer.error_code)
        if not code:
            return answer
        if code not in _SESSION_ERRORS and code not in RETRIABLE:
            self._client.history.violate("share-session", f"{key.name}: {code.name}")
        self._drop(session)
        return None

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session.caller, None)
        session.epoch, session.held = 0, {}

    def _refused(self, index: int, code: ErrorCode) -> None:
        self._client.heard(TOPIC, index, code)
        if code is ErrorCode.INVALID_REQUEST and self._id in self._shares.strangers:
            return
        if code not in RETRIABLE and code not in _RECORD_ERRORS:
            self._client.history.violate("share-group", f"partition {index}: {code.name}")


class QueueProducer:
    """Fills the queue, one batch at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sent = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Write until it is over; what becomes of a batch is not looked at."""
        rng = self._client.rng
        while not is_over():
            index = rng.randrange(PARTITIONS)
            try:
                await self._client.topic_id(TOPIC)
                caller, _ = await self._client.leader(TOPIC, index)
                answer = await self._client.call(caller, ApiKey.PRODUCE, self._request(index))
                code = answer.responses[0].partition_responses[0].error_code
                self._client.heard(TOPIC, index, code)
            except FAILURES:
                self._client.forget(TOPIC, index)
            await asyncio.sleep(rng.expovariate(12))

    def _request(self, index: int) -> Any:
        values = []
        for _ in range(self._client.rng.choice((1, 2, 5, 12))):
            self._sent += 1
            values.append(f"{self._client.name}:{index}:{self._sent};".encode())
        now_ms = self._client.history.now_ms()
        batch = build_batch([NewRecord(key=None, value=it, timestamp=now_ms) for it in values])
        by_id = self._client.speaks_ids(ApiKey.PRODUCE)
        return produce.ProduceRequest(
            acks=-1,
            timeout_ms=1500,
            topic_data=[
                produce.TopicProduceData(
                    name="" if by_id else TOPIC,
                    **({"topic_id": self._client.ids[TOPIC]} if by_id else {}),
                    partition_data=[
                        produce.PartitionProduceData(index=index, records=bytes(batch))
                    ],
                )
            ],
        )


class Closing:
    """When all others are done: accept what is left, and come to the log's end."""

    def __init__(
        self,
        client: Client,
        shares: "Shares",
        dead: DeadLetterTopic | None,
        *,
        is_fast: bool = False,
    ) -> None:
        self._client = client
        self._shares = shares
        self._dead = dead
        self._member = ShareMember(client, shares, accepts_all=True, has_poison=dead is not None)
        if is_fast:
            self._member.take_much()
        self._is_done = False

    async def run(self, others: Sequence[Any]) -> None:
        """Wait for the others; then nothing may be left over."""
        await asyncio.wait(others)
        watching = asyncio.ensure_future(self._watch())
        while not watching.done():
            await self._member.run(watching.done)
        watching.result()
        if self._dead is not None:
            partitions = self._dead.partitions
            found = await read_dead_letters(self._client, partitions)
            self._shares.dead_letters = found, partitions

    async def _watch(self) -> None:
        """Return once the group is at the log's end, as its coordinator says."""
        messages = describe_share_group_offsets
        topic = messages.DescribeShareGroupOffsetsRequestTopic(
            topic_name=TOPIC, partitions=list(range(PARTITIONS))
        )
        group = messages.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=[topic])
        request = messages.DescribeShareGroupOffsetsRequest(groups=[group])

        async def attempt() -> bool | None:
            await asyncio.sleep(0.2)
            caller = await self._client.coordinator(GROUP)
            if caller is None:
                return None
            answer = await self._client.call(caller, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, request)
            lags = [
                partition.lag
                for found in answer.groups
                for each in found.topics
                for partition in each.partitions
                if not partition.error_code
            ]
            return True if lags == [0] * PARTITIONS else None

        await self._client.until(attempt)


async def _set_up(client: Client, profile: "Profile", dead: DeadLetterTopic | None) -> None:
    kept = ("segment.ms", "index.interval.bytes", "min.insync.replicas")
    settings = {key: profile.topic[key] for key in kept}
    await client.create_topic(TOPIC, PARTITIONS, profile.replicas, settings)
    if dead is not None:
        await dead.create(client, profile, settings)
    messages = incremental_alter_configs
    of_group = {"share.auto.offset.reset": "earliest"} | (GROUP_SETTINGS if dead else {})
    configs = [messages.AlterableConfig(name=key, value=value) for key, value in of_group.items()]
    request = messages.IncrementalAlterConfigsRequest(
        resources=[
            messages.AlterConfigsResource(
                resource_type=_GROUP_RESOURCE, resource_name=GROUP, configs=configs
            )
        ]
    )

    async def attempt() -> bool | None:
        answer = await client.any_call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
        code = ErrorCode(answer.responses[0].error_code)
        if code and code not in RETRIABLE:
            client.history.violate("share-group", f"its settings: {code.name}")
        return None if code else True

    await client.until(attempt)


def _client(scenario: "Scenario", name: str) -> tuple[Client, Any]:
    """A client of share groups is one that knows topics by their ids."""
    client, process = scenario.client(name)
    version = client.versions[ApiKey.METADATA]
    client.versions[ApiKey.METADATA] = max(version, METADATA_IDS_FROM)
    return client, process


def _start(scenario: "Scenario") -> list[Any]:
    loop, shares = scenario.loop, scenario.history.shares
    faults = ShareFaults(scenario.cluster, scenario.history, scenario.is_over)
    shares.moment, shares.end_faults = faults.happened, faults.end
    admin, admins = scenario.client("sa")
    dead = draw_dead_letters(scenario.cluster)
    created = loop.start_task(admins, _set_up(admin, scenario.profile, dead))
    tasks: list[Any] = []

    def start(name: str, make: Callable[[Client], Any]) -> None:
        client, process = _client(scenario, name)
        worker = make(client)

        async def work() -> None:
            await asyncio.wait([created])
            await worker.run(scenario.is_over)

        tasks.append(loop.start_task(process, work()))

    start("sp", QueueProducer)
    for number in range(admin.rng.choice((2, 3))):
        start(
            f"sm{number}", lambda client: ShareMember(client, shares, has_poison=dead is not None)
        )
    if scenario.cluster.seed >= LATE_MEMBERS_SINCE and len(scenario.profile.brokers) > 1:
        start("sl", lambda client: LateMember(client, shares, GROUP, TOPIC))
    closing, process = _client(scenario, "sc")
    is_fast = scenario.cluster.seed >= LATE_MEMBERS_SINCE
    last = Closing(closing, shares, dead, is_fast=is_fast)
    tasks.append(loop.start_task(process, last.run(tasks[:])))
    if scenario.cluster.seed >= state_epochs.SINCE:
        start("se", _zombie)
        if len(scenario.profile.brokers) > 1 and admin.rng.random() < _MOVED_SHARE:
            places = [(TOPIC, index) for index in range(PARTITIONS)]
            places += dead.places if dead is not None else []
            start("sv", lambda client: QueueMoves(client, scenario.profile, places))
    return [created, *tasks]


def _zombie(client: Client) -> state_epochs.StateEpochs:
    newest = API_TABLE[ApiKey.FIND_COORDINATOR].max_version
    client.versions[ApiKey.FIND_COORDINATOR] = newest
    return state_epochs.StateEpochs(client, TOPIC)


class QueueMoves:
    """Moves the queue's replicas and leaders while members have records of it."""

    def __init__(self, client: Client, profile: "Profile", places: list[tuple[str, int]]) -> None:
        self._operator = Operator(client, profile, places)
        self._history = client.history

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Move until it is over; every move must come to its end."""
        self._history.reach("share partitions are moved")
        await self._operator.reassign(is_over)


def _settings(rng: "random.Random", profile: "Profile") -> dict[str, str]:
    return {
        "group.share.record.lock.duration.ms": str(int(LOCK_SECONDS * 1000)),
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.delivery.count.limit": str(rng.choice((2, 3, 5, 10))),
        "group.share.partition.max.record.locks": str(rng.choice((100, 2000))),
        "group.share.session.timeout.ms": "1500",
        "group.share.min.session.timeout.ms": "1000",
        "group.share.heartbeat.interval.ms": "300",
        "group.share.min.heartbeat.interval.ms": "100",
        "share.coordinator.state.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": str(profile.replicas),
        "share.coordinator.state.topic.min.isr": str(min(2, profile.replicas)),
        "share.coordinator.snapshot.update.records.per.snapshot": str(rng.choice((1, 5, 500))),
        "share.coordinator.state.topic.prune.interval.ms": "500",
        "share.coordinator.cold.partition.snapshot.interval.ms": str(rng.choice((700, 300000))),
        "share.coordinator.write.timeout.ms": str(rng.choice((300, 1000, 5000))),
    }


def _keeps_its_promises(profile: "Profile") -> bool:
    """Without fsyncs one machine may lose power, and no other end meanwhile: ours do."""
    return profile.has_fsyncs or not profile.loses_power


SHARE = Workload(
    name="share",
    share=0.3,
    since=SINCE,
    needs=_keeps_its_promises,
    start=_start,
    settings=_settings,
)
