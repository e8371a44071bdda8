"""Producers of numbered records: several partitions and topics a request, acks 0, 1 and all.

An idempotent one keeps up to five requests in flight, sends what failed again in its order, and
begins a new producer epoch after a delivery that timed out, as Java's does (KIP-360). What would
make librdkafka lose or double a record is a violation: it takes a success for that of all earlier
requests, and after a gap sends what was not acknowledged again in a new epoch. One that is not
sends each batch once, or again and again where its client has retries, which may write twice.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import init_producer_id, produce
from simulation.client import FAILURES, Caller, Client
from simulation.history import Status, Write
from simulation.retries import NOT_APPLIED, RETRIABLE
from simulation.workloads.workload import Workload, is_aimed

if TYPE_CHECKING:
    from simulation.scenario import Scenario

ACKS_ALL = -1
PIPELINED_SINCE = 7_000_000
"""Seeds from here on have several first requests of a producer in flight, as real clients have."""
_NEVER = 1e9
_BATCHES_KEPT = 5
"""A partition knows a retry among so many of its producer's last batches, as in Kafka."""


@dataclass(eq=False)
class Batch:
    """Records that travel together, and since when they try to."""

    writes: list[Write]
    since: float
    number: int
    """In its lane."""
    records: bytes = b""
    may_be_written: bool = False
    """Whether a request with it ended with nobody knowing what became of it."""


@dataclass(eq=False)
class Lane:
    """What one producer sends to one partition."""

    topic: str
    partition: int
    name: str
    epoch: int = 0
    first_sequence: int = 0
    """The number of the record that has sequence 0 in this producer epoch."""
    sent: int = 0
    batches: int = 0
    window: list[Batch] = field(default_factory=list)
    is_known: bool = False
    """Whether a broker knows its sequences. One that does not begins with any, as Kafka's do.

    Before `PIPELINED_SINCE` it has one batch in flight until then.
    """


class Producer:
    """Writes to its partitions until it is over, and then until each has taken something new."""

    def __init__(
        self, client: Client, partitions: Sequence[tuple[str, int]], *, replicas: int
    ) -> None:
        rng = client.rng
        self.client = client
        self.is_idempotent = rng.random() < 0.65
        self.acks = ACKS_ALL if self.is_idempotent else rng.choice((ACKS_ALL, 1, 1, 0))
        self.retries = self.is_idempotent or rng.random() < 0.4
        self.in_flight_max = rng.choice((1, 2, 5)) if self.is_idempotent else 1
        self.pause_seconds = rng.choice((0.02, 0.06, 0.2))
        self.timeout_ms = rng.choice((300, 1500, 1500, 8000))
        self.delivery_seconds = rng.choice((1.0, 4.0, _NEVER, _NEVER))
        self.is_pipelined = False
        self.renews: Callable[[], bool] = lambda: False
        """Whether it goes on as a new producer, with an id that no partition knows."""
        self.linger: Callable[[], float] | None = None
        """How long after one request the next one follows, where they do not go out together."""
        # With one replica, acks=1 and acks=all say the same.
        self.is_promised = self.acks == ACKS_ALL or (self.acks == 1 and replicas == 1)
        self._id = (-1, -1)
        self._silent: set[Caller] = set()
        """Connections on which an answer of this round did not come."""
        self._lanes = [
            Lane(topic, partition, f"{client.name}/{topic}-{partition}")
            for topic, partition in partitions
        ]

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Write until `is_over`; everything sent has an outcome when this returns."""
        if self.is_idempotent:
            await self._begin()
        while not is_over() or any(lane.window for lane in self._lanes):
            if not is_over():
                if not any(lane.window for lane in self._lanes) and self.renews():
                    await self._begin()
                for lane in self._lanes:
                    self._fill(lane)
            await self._round()
            await self._think()
        if self.acks:
            for lane in self._lanes:
                await self._write_once_more(lane)

    async def _begin(self) -> None:
        self._id = await self.client.until(self._init)
        for lane in self._lanes:
            self._begin_epoch(lane)

    async def _write_once_more(self, lane: Lane) -> None:
        """A healed cluster takes something new."""
        batch: Batch | None = None
        while batch is None or batch.writes[0].offset < 0:
            if not lane.window:
                batch = self._next_batch(lane)
                lane.window = [batch]
            await self._round()
            await self._think()

    async def _think(self) -> None:
        await asyncio.sleep(self.client.rng.expovariate(1 / self.pause_seconds))

    async def _init(self) -> tuple[int, int] | None:
        request = init_producer_id.InitProducerIdRequest(transactional_id=None)
        response = await self.client.any_call(ApiKey.INIT_PRODUCER_ID, request)
        if response.error_code:
            return None
        self.client.history.gave_producer_id(response.producer_id, self.client.name)
        return response.producer_id, response.producer_epoch

    # ---- batches

    def _fill(self, lane: Lane) -> None:
        in_flight_max = self.in_flight_max if lane.is_known or self.is_pipelined else 1
        if len(self._lanes) > 1 and self.client.rng.random() < 0.4:
            return  # not every request has something for each partition
        while len(lane.window) < in_flight_max and (
            # Beyond these the oldest one's retry might be refused while what follows is taken.
            not lane.window or lane.batches < lane.window[0].number + _BATCHES_KEPT
        ):
            lane.window.append(self._next_batch(lane))

    def _next_batch(self, lane: Lane) -> Batch:
        rng, history = self.client.rng, self.client.history
        if self.is_idempotent and not lane.window and lane.epoch != self._id[1]:
            self._begin_epoch(lane)
        batch = Batch([], asyncio.get_running_loop().time(), lane.batches)
        lane.batches += 1
        for _ in range(rng.choice((1, 1, 2, 5))):
            write = Write(
                producer=lane.name,
                number=lane.sent,
                topic=lane.topic,
                partition=lane.partition,
                idempotent=self.is_idempotent,
            )
            lane.sent += 1
            batch.writes.append(write)
            history.sent(write)
        self._seal(lane, batch)
        return batch

    def _seal(self, lane: Lane, batch: Batch) -> None:
        options: dict[str, int] = {}
        if self.is_idempotent:
            options = {
                "producer_id": self._id[0],
                "producer_epoch": lane.epoch,
                "base_sequence": batch.writes[0].number - lane.first_sequence,
            }
        now = self.client.history.now_ms()
        padding = b"." * self.client.rng.choice((0, 0, 20, 900))
        records = [
            NewRecord(key=write.key, value=write.value + padding, timestamp=now)
            for write in batch.writes
        ]
        batch.records = bytes(build_batch(records, **options))

    def _begin_epoch(self, lane: Lane) -> None:
        lane.epoch = self._id[1]
        lane.first_sequence = lane.sent
        lane.is_known = False

    # ---- requests

    async def _round(self) -> None:
        """Send all windows, those of one leader in common requests, and take all answers."""
        leaders: dict[Caller, list[Lane]] = {}
        for lane in self._lanes:
            self._expire(lane)
            if not lane.window:
                continue
            try:
                caller, _ = await self.client.leader(lane.topic, lane.partition)
            except FAILURES:
                self._failed(lane, lane.window, [], Status.FAILED)
                continue
            leaders.setdefault(caller, []).append(lane)
        sent = []
        for caller, lanes in leaders.items():
            for asked in _requests(lanes):
                if self.linger is not None and sent:
                    await asyncio.sleep(self.linger())
                sent.append((caller, asked, self._send(caller, asked)))
        again: dict[Lane, list[Batch]] = {}
        self._silent.clear()
        for caller, asked, answer in sent:
            await self._take(caller, asked, answer, again)
        for lane in {lane: None for _, asked, _ in sent for lane, _ in asked}:
            lane.window = again.get(lane, [])
        if again:
            await self.client.pause()

    def _send(self, caller: Caller, asked: list[tuple[Lane, Batch]]) -> "asyncio.Future[Any]":
        topics: dict[str, produce.TopicProduceData] = {}
        for lane, batch in asked:
            topic = topics.get(lane.topic)
            if topic is None:
                topic = topics[lane.topic] = produce.TopicProduceData(
                    name=lane.topic, partition_data=[]
                )
                if self.client.speaks_ids(ApiKey.PRODUCE):
                    topic.topic_id = self.client.ids[lane.topic]
            topic.partition_data.append(
                produce.PartitionProduceData(index=lane.partition, records=batch.records)
            )
            for write in batch.writes:
                write.attempts += 1
        request = produce.ProduceRequest(
            acks=self.acks, timeout_ms=self.timeout_ms, topic_data=list(topics.values())
        )
        return caller.send(ApiKey.PRODUCE, request, is_answered=self.acks != 0)

    async def _take(
        self,
        caller: Caller,
        asked: list[tuple[Lane, Batch]],
        answer: "asyncio.Future[Any]",
        again: dict[Lane, list[Batch]],
    ) -> None:
        client = self.client
        try:
            if caller in self._silent and not answer.done():
                raise TimeoutError
            response = await client.wait(caller, answer)
        except FAILURES:
            if self.is_pipelined:
                self._silent.add(caller)  # its time is over for all that was sent with this one
            for lane, batch in asked:
                client.forget(lane.topic, lane.partition)
                self._failed(lane, [batch], again.setdefault(lane, []), Status.UNKNOWN)
            return
        if response is None:
            return  # acks=0: nobody says anything
        results = {
            (client.names.get(topic.topic_id, topic.name), result.index): result
            for topic in response.responses
            for result in topic.partition_responses
        }
        for lane, batch in asked:
            result = results.get((lane.topic, lane.partition))
            if result is None:
                client.history.violate(
                    "produce", f"{lane.name}: the answer lacks a partition of the request"
                )
                continue
            self._judge(lane, batch, result, again.setdefault(lane, []))

    def _judge(self, lane: Lane, batch: Batch, result: Any, again: list[Batch]) -> None:
        code = ErrorCode(result.error_code)
        history = self.client.history
        if code is ErrorCode.NONE:
            if self.is_idempotent and any(not before.may_be_written for before in again):
                history.violate("produce", f"{lane.name}: taken, and what it follows was refused")
            lane.is_known = True
            for place, write in enumerate(batch.writes):
                history.acknowledged(
                    write, result.base_offset + place, is_promised=self.is_promised
                )
            return
        self.client.heard(lane.topic, lane.partition, code)
        is_gap = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if self.is_idempotent and is_gap and again:
            if self.is_pipelined and any(before.may_be_written for before in again):
                history.violate(
                    "produce", f"{lane.name} hears of a gap and would write twice what came before"
                )
            again.append(batch)  # the one before it comes again first
            return
        if is_gap and self._is_gone(lane, batch):
            self._give_up(lane, batch, Status.UNKNOWN)
            return
        if code not in RETRIABLE:
            number = batch.writes[0].number
            history.violate("produce", f"{lane.name} sends {number} and hears {code.name}")
            self._give_up(lane, batch, Status.UNKNOWN)
            return
        status = Status.FAILED if code in NOT_APPLIED else Status.UNKNOWN
        self._failed(lane, [batch], again, status)

    def _is_gone(self, lane: Lane, batch: Batch) -> bool:
        """Whether retention has deleted the batch: who leads now may never have had it.

        It knows of what follows the batch alone, so a retry has a gap before it (as in Kafka).
        """
        if not self.is_idempotent:
            return False
        sequence = batch.writes[0].number - lane.first_sequence
        place = (f"{lane.topic}-{lane.partition}", self._id[0], lane.epoch, sequence)
        begins = self.client.history.begins.get((lane.topic, lane.partition), 0)
        return self.client.history.written_at.get(place, begins) < begins

    def _failed(self, lane: Lane, batches: list[Batch], again: list[Batch], status: Status) -> None:
        """Keep what is sent again; the rest is over."""
        for batch in list(batches):
            batch.may_be_written |= status is not Status.FAILED
            if self.retries:
                again.append(batch)
            else:
                self._give_up(lane, batch, status)

    def _expire(self, lane: Lane) -> None:
        """Give up what was not delivered in time, and what follows it (delivery.timeout.ms).

        What was on its way may still arrive: an idempotent producer begins a new epoch.
        """
        since = lane.window[0].since if lane.window else _NEVER
        if since + self.delivery_seconds > asyncio.get_running_loop().time():
            return
        for batch in list(lane.window):
            self._give_up(lane, batch, Status.UNKNOWN)
        if self.is_idempotent:
            self._id = (self._id[0], self._id[1] + 1)
            self.client.history.reach("a delivery times out and a new producer epoch begins")

    def _give_up(self, lane: Lane, batch: Batch, status: Status) -> None:
        for write in batch.writes:
            write.status = status if write.attempts <= 1 else Status.UNKNOWN
        if batch in lane.window:
            lane.window.remove(batch)


def _requests(lanes: Sequence[Lane]) -> list[list[tuple[Lane, Batch]]]:
    """Return what goes into each request: one batch of a partition, in the order of its window."""
    depth = max(len(lane.window) for lane in lanes)
    return [
        [(lane, lane.window[place]) for lane in lanes if place < len(lane.window)]
        for place in range(depth)
    ]


def _start(scenario: "Scenario") -> list[Any]:
    """One or two producers of each partition, and one of all partitions."""
    tasks = []
    places = scenario.profile.places

    def start(name: str, assigned: Sequence[tuple[str, int]]) -> None:
        client, process = scenario.client(name)
        producer = Producer(client, assigned, replicas=scenario.profile.replicas)
        if scenario.cluster.seed >= PIPELINED_SINCE and producer.is_idempotent:
            _pipeline(producer, scenario.cluster.fork(f"pipeline-{name}"))
        if is_aimed(scenario.cluster.seed):
            rng = scenario.cluster.fork(f"linger-{name}")
            means = (0.005, 0.03, 0.1) if producer.is_pipelined else (0.0, 0.005, 0.03)
            producer.linger = _draw_linger(rng, means)
        tasks.append(scenario.loop.start_task(process, producer.run(scenario.is_over)))

    for place in places:
        for number in range(scenario.rng.choice((1, 2))):
            start(f"p{place[0][0]}{place[1]}.{number}", [place])
    if len(places) > 1:
        start("pa", places)
    return tasks


def _pipeline(producer: Producer, rng: random.Random) -> None:
    """Have several first requests in flight, of a producer that is a new one now and then."""
    producer.is_pipelined = True
    producer.in_flight_max = rng.choice((2, 5))
    producer.timeout_ms = rng.choice((300, 300, 1500))
    share = rng.choice((0.0, 0.1, 0.3))
    producer.renews = lambda: rng.random() < share


def _draw_linger(rng: random.Random, means: Sequence[float]) -> Callable[[], float] | None:
    """Let the leader of a partition change between two requests that are in flight together."""
    mean = rng.choice(means)
    return (lambda: rng.expovariate(1 / mean)) if mean else None


PRODUCERS = Workload(name="produce", share=1, start=_start)
