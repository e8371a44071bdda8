"""Consumers of assigned partitions, with fetch sessions or without, that commit and come back.

They reset only when a broker says that their position is out of range, name the leader epoch that
they know, and ask a new leader whether its log still has what they read (KIP-320).
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.batch import iterate_records
from headrace_broker.protocol.batch_header import parse_batch_header
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import fetch, list_offsets, offset_for_leader_epoch
from simulation.client import FAILURES, METADATA_EPOCHS_FROM, Caller, Client
from simulation.retries import RETRIABLE
from simulation.workloads.offsets import GroupOffsets
from simulation.workloads.workload import COMMITTERS_SINCE, Workload

if TYPE_CHECKING:
    from simulation.scenario import Scenario

Key = tuple[str, int]

EARLIEST = -2
LATEST = -1
SESSIONS_FROM = 7
EPOCHS_FROM = 9
_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


@dataclass
class Session:
    """An incremental fetch session with one broker, as `FetchSessionHandler` keeps it (KIP-227)."""

    identity: int = 0
    epoch: int = 0
    asked: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """What the broker knows that we ask: offset and leader epoch."""

    def restart(self) -> None:
        """The next request asks for everything again, and ends the session that was."""
        self.epoch = 0
        self.asked = {}


class Consumer:
    """Reads its partitions from their positions on, as `assign` does."""

    def __init__(self, client: Client, name: str, partitions: Sequence[Key]) -> None:
        rng = client.rng
        self.client = client
        self.name = name
        self.positions: dict[Key, int] = dict.fromkeys(partitions, 0)
        self.began_at: dict[Key, int] = dict.fromkeys(partitions, 0)
        """Where the log began when it was last asked for."""
        self._epochs: dict[Key, int] = {}
        """The leader epoch of the last record read."""
        self._validated: dict[Key, int] = {}
        self._sessions: dict[tuple[str, int], Session] = {}
        version = client.versions[ApiKey.FETCH]
        self._knows_epochs = (
            version >= EPOCHS_FROM and client.versions[ApiKey.METADATA] >= METADATA_EPOCHS_FROM
        )
        self._has_sessions = version >= SESSIONS_FROM and rng.random() < 0.5
        self._validates = self._knows_epochs and rng.random() < 0.7
        self._isolation = rng.choice((0, 0, 1))
        self.leaves_out: Callable[[], bool] = lambda: False
        """Whether a partition is not asked for this time, so that its session forgets it."""

    async def poll(self, max_wait_ms: int | None = None) -> int:
        """Fetch once from one leader; return how many records came, -1 after an error."""
        client = self.client
        found = await self._choose_leader()
        if found is None:
            await client.pause()
            return -1
        caller, wanted = found
        if max_wait_ms is None:
            max_wait_ms = client.rng.choice((0, 100, 100, 800))
        session = self._session(caller)
        request = self._request(wanted, session, max_wait_ms)
        try:
            response = await client.call(caller, ApiKey.FETCH, request)
        except FAILURES:
            if session is not None:
                session.restart()
            for key in wanted:
                client.forget(*key)
            await client.pause()
            return -1
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE:
            await self._refused(code, session)
            return -1
        if session is not None:
            session.identity = response.session_id
            session.epoch = session.epoch + 1 if response.session_id else 0
            if not response.session_id:
                session.asked = {}
        return await self._take_all(response, wanted)

    async def _choose_leader(self) -> tuple[Caller, dict[Key, int]] | None:
        leaders: dict[Caller, dict[Key, int]] = {}
        for key in self.positions:
            try:
                caller, epoch = await self.client.leader(*key)
                if self._validates and not await self._is_validated(key, caller, epoch):
                    continue
            except FAILURES:
                self.client.forget(*key)
                continue
            leaders.setdefault(caller, {})[key] = epoch
        if not leaders:
            return None
        caller = self.client.rng.choice(list(leaders))
        wanted = leaders[caller]
        if len(wanted) > 1 and self.leaves_out():
            wanted.popitem()
        return caller, wanted

    # ---- requests

    def _session(self, caller: Caller) -> Session | None:
        if not self._has_sessions or caller.peer is None:
            return None
        return self._sessions.setdefault(caller.peer, Session())

    def _request(
        self, wanted: dict[Key, int], session: Session | None, max_wait_ms: int
    ) -> fetch.FetchRequest:
        rng = self.client.rng
        by_id = self.client.speaks_ids(ApiKey.FETCH)
        topics: dict[str, fetch.FetchTopic] = {}
        is_new = session is None or session.epoch == 0
        for key, epoch in wanted.items():
            asked = (self.positions[key], epoch)
            if session is not None:
                if not is_new and session.asked.get(key) == asked:
                    continue
                session.asked[key] = asked
            topic = topics.setdefault(key[0], fetch.FetchTopic(topic=key[0], partitions=[]))
            if by_id:
                topic.topic_id = self.client.ids[key[0]]
            topic.partitions.append(
                fetch.FetchPartition(
                    partition=key[1],
                    current_leader_epoch=epoch,
                    fetch_offset=self.positions[key],
                    partition_max_bytes=rng.choice((1, 500, 65536)),
                )
            )
        forgotten = []
        if session is not None and not is_new:
            for key in [key for key in session.asked if key not in wanted]:
                del session.asked[key]
                gone = fetch.ForgottenTopic(topic=key[0], partitions=[key[1]])
                if by_id:
                    gone.topic_id = self.client.ids[key[0]]
                forgotten.append(gone)
                self.client.history.reach("a fetch session is to forget a partition")
        return fetch.FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=self._isolation,
            session_id=0 if session is None else session.identity,
            session_epoch=-1 if session is None else session.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=forgotten,
        )

    # ---- answers

    async def _refused(self, code: ErrorCode, session: Session | None) -> None:
        if session is not None:
            if code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                session.identity = 0
            session.restart()
        if code not in _SESSION_ERRORS and code not in RETRIABLE:
            self.client.history.violate("fetch", f"{self.name} hears {code.name}")
        await self.client.pause()

    async def _take_all(self, response: Any, wanted: dict[Key, int]) -> int:
        client, count, has_failed = self.client, 0, False
        for topic in response.responses:
            name = client.names.get(topic.topic_id, topic.topic)
            for result in topic.partitions:
                key = (name, result.partition_index)
                if key not in wanted:
                    client.history.violate("fetch", f"{self.name} hears of {key}, not asked for")
                    continue
                if result.error_code:
                    has_failed = True
                    await self._failed(key, ErrorCode(result.error_code))
                else:
                    count += self._take(key, result)
        if has_failed:
            await client.pause()
            return count or -1
        return count

    async def _failed(self, key: Key, code: ErrorCode) -> None:
        client = self.client
        is_outside = code is ErrorCode.OFFSET_OUT_OF_RANGE
        if is_outside and client.history.may_begin_later:
            await self._skip_what_is_gone(key)
        elif is_outside and self._may_be_a_former_leader(key):
            pass  # only a newer epoch would have shown it
        elif code not in RETRIABLE:
            client.history.violate(
                "fetch", f"{self.name} at {self.positions[key]} of {key} hears {code.name}"
            )
        client.heard(*key, code)
        if is_outside:
            client.forget(*key)

    def _may_be_a_former_leader(self, key: Key) -> bool:
        """Whether we know of no epoch, or of a former one, as who answered may, too."""
        newest = self.client.history.newest_epoch(key)
        return not self._knows_epochs or self.client.known_epoch(*key) < newest

    async def _skip_what_is_gone(self, key: Key) -> None:
        """Go on at the log's start, which alone may be above us, as `auto.offset.reset` says."""
        found = await self.list_offset(key, EARLIEST)
        if found is None:
            return
        offset = found.offset
        if offset < self.positions[key]:
            # Its former leader had deleted, as was asked of it, what this one still has.
            is_asked_to_go = self.positions[key] < self.client.history.trims.get(key, 0)
            if not is_asked_to_go and not self._may_be_a_former_leader(key):
                self.client.history.violate(
                    "nonmonotonic-poll",
                    f"{self.name} at {self.positions[key]} of {key} is out of range, the log "
                    f"begins at {offset}",
                )
            return
        self.positions[key] = self.began_at[key] = offset
        self._epochs.pop(key, None)

    def _take(self, key: Key, result: Any) -> int:
        history = self.client.history
        data = memoryview(result.records or b"")
        start, count = 0, 0
        position = self.positions[key]
        while start < len(data):
            header = parse_batch_header(data, start)
            for record in iterate_records(data[start : start + header.size_bytes]):
                if record.offset < position:
                    continue
                history.read(self.name, key, position, record)
                position = record.offset + 1
                count += 1
            if history.may_have_holes:
                # The last records of a batch may have been compacted away.
                end = header.base_offset + header.last_offset_delta + 1
                position = max(position, end)
            self._epochs[key] = int(header.partition_leader_epoch)
            start += header.size_bytes
        self.positions[key] = position
        if count and position > result.high_watermark:
            history.violate(
                "above-high-watermark",
                f"{self.name} read up to {position} of {key}, "
                f"the high watermark is {result.high_watermark}",
            )
        return count

    # ---- offsets

    async def list_offset(self, key: Key, timestamp: int, isolation: int = 0) -> Any:
        """Ask a leader once; None where it did not answer."""
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=key[0],
                    partitions=[
                        list_offsets.ListOffsetsPartition(
                            partition_index=key[1], timestamp=timestamp
                        )
                    ],
                )
            ],
        )
        try:
            caller, _ = await self.client.leader(*key)
            response = await self.client.call(caller, ApiKey.LIST_OFFSETS, request)
        except FAILURES:
            self.client.forget(*key)
            return None
        result = response.topics[0].partitions[0]
        if result.error_code:
            if result.error_code not in RETRIABLE:
                code = ErrorCode(result.error_code)
                self.client.history.violate("list-offsets", f"{self.name} hears {code.name}")
            self.client.heard(*key, result.error_code)
            return None
        return result

    async def look_up_a_time(self) -> None:
        """Ask where a time begins that some record has; no earlier record may be as young."""
        client = self.client
        key = client.rng.choice(list(self.positions))
        times = client.history.times.get(key)
        if not times:
            return
        asked = client.rng.choice(list(times.values()))
        found = await self.list_offset(key, asked)
        if found is None or found.offset < 0:
            return
        if found.timestamp < asked:
            client.history.violate(
                "time-lookup", f"{key}: {asked} is found at {found.timestamp}, {found.offset}"
            )
        if client.history.may_begin_later or client.history.may_have_holes:
            return
        earlier = [at for at, time in times.items() if at < found.offset and time >= asked]
        if earlier:
            client.history.violate(
                "time-lookup", f"{key}: {asked} begins at {min(earlier)}, not at {found.offset}"
            )

    async def _is_validated(self, key: Key, caller: Caller, epoch: int) -> bool:
        """Ask a leader of a newer epoch where the epoch ended that was read last (KIP-320)."""
        read = self._epochs.get(key, -1)
        if read < 0 or epoch <= self._validated.get(key, -1):
            return True
        messages = offset_for_leader_epoch
        position = self.positions[key]
        request = messages.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                messages.OffsetForLeaderTopic(
                    topic=key[0],
                    partitions=[
                        messages.OffsetForLeaderPartition(
                            partition=key[1], current_leader_epoch=epoch, leader_epoch=read
                        )
                    ],
                )
            ],
        )
        response = await self.client.call(caller, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        result = response.topics[0].partitions[0]
        code = ErrorCode(result.error_code)
        if code is not ErrorCode.NONE:
            if code not in RETRIABLE:
                self.client.history.violate("validate", f"{self.name} hears {code.name}")
            self.client.heard(*key, code)
            return False
        history = self.client.history
        is_known = result.end_offset >= 0 and result.leader_epoch >= 0
        if (is_known and result.end_offset < position) or not (
            is_known or history.may_begin_later or history.may_have_holes
        ):
            history.violate(
                "log-truncation",
                f"{self.name} has read up to {position} of {key} in epoch {read}; the leader of "
                f"epoch {epoch} ends {result.leader_epoch} at {result.end_offset}",
            )
        history.reach("a consumer validates its position against a new leader")
        self._validated[key] = epoch
        return True


class CommittingConsumer:
    """One that commits where it is now and then, and sometimes begins where its group stands."""

    def __init__(self, client: Client, partitions: Sequence[Key]) -> None:
        self._client = client
        self._consumer = Consumer(client, client.name, partitions)
        self._offsets = GroupOffsets(client, f"group-{client.name}")
        self._committed: dict[Key, int] = dict.fromkeys(partitions, -1)
        self._attempted: dict[Key, int] = dict.fromkeys(partitions, -1)

    def leave_out(self, leaves_out: Callable[[], bool]) -> None:
        """Have it asked each time whether a partition is left out."""
        self._consumer.leaves_out = leaves_out

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Poll, commit, look up times and come back, until it is over."""
        rng = self._client.rng
        while not is_over():
            await self._consumer.poll()
            await asyncio.sleep(rng.expovariate(20))
            draw = rng.random()
            if draw < 0.1:
                await self._commit()
            elif draw < 0.12:
                await self._restart()
            elif draw < 0.15:
                await self._consumer.look_up_a_time()

    async def _commit(self) -> None:
        places = {key: at for key, at in self._consumer.positions.items() if at}
        for key, position in places.items():
            self._attempted[key] = max(self._attempted[key], position)
        codes = await self._offsets.commit(places) if places else {}
        for key, code in codes.items():
            if code is ErrorCode.NONE:
                self._committed[key] = max(self._committed[key], places[key])
            elif code is not None and code not in RETRIABLE:
                self._client.history.violate("commit", f"{self._offsets.group}: {code.name}")

    async def _restart(self) -> None:
        """Begin where the group stands; what was acknowledged must be there."""
        for key, known in self._committed.items():
            found = await self._offsets.committed(key, known)
            if found < known or found > self._attempted[key]:
                self._client.history.violate(
                    "lost-commit",
                    f"{self._offsets.group} finds {found} of {key}; {known} was acknowledged, "
                    f"{self._attempted[key]} was sent last",
                )
            self._consumer.positions[key] = max(found, 0)


def _draw(rng: random.Random) -> bool:
    return rng.random() < 0.2


def _start(scenario: "Scenario") -> list[Any]:
    """A consumer of each partition, and one of all of them."""
    tasks = []
    places = scenario.profile.places
    for number, assigned in enumerate([*([place] for place in places), places]):
        client, process = scenario.client(f"c{number}")
        consumer = CommittingConsumer(client, assigned)
        if scenario.cluster.seed >= COMMITTERS_SINCE:
            rng = scenario.cluster.fork(f"left-out-{number}")
            consumer.leave_out(partial(_draw, rng))
        tasks.append(scenario.loop.start_task(process, consumer.run(scenario.is_over)))
    return tasks


CONSUMERS = Workload(name="consume", share=1, start=_start)
