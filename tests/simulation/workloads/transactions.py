"""Transactions: writers, consume-transform-produce loops, and readers of both isolation levels.

Writers fill `orders`; processors copy what is committed there to `ledger` and move their group in
the same transaction, with a transactional id for each partition that several processes fight for,
or one each and a group that assigns partitions (KIP-447). Any of them may pause in the middle of a
transaction for longer than its timeout, its group's session, or its successor's start, and then go
on: a zombie. Some never end what they began. When all is over every partition must come to rest,
and the output be what one reading of the input gives.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.batch import ControlType, iterate_records, parse_control_type
from headrace_broker.protocol.batch_header import parse_batch_header
from simulation.atomicity import Atomicity, Consumed, Key, Transaction
from simulation.client import Client
from simulation.workloads.consumers import Consumer
from simulation.workloads.features import Administrator, KnownLevel, changes_levels
from simulation.workloads.members import GroupChecks, Member
from simulation.workloads.offsets import GroupOffsets
from simulation.workloads.repeaters import BetweenCommits, LateEnder
from simulation.workloads.transactional import (
    LEDGER,
    ORDERS,
    AbortableError,
    FencedError,
    TransactionalProducer,
    Worker,
)
from simulation.workloads.workload import FORGETTING_SINCE, REPEATERS_SINCE, Workload
from simulation.workloads.zombies import (
    OVERTAKEN_SINCE,
    FormerCoordinator,
    HastyWriter,
    Overtaken,
    has_zombies,
)

if TYPE_CHECKING:
    from simulation.profile import Profile
    from simulation.scenario import Scenario

GROUP = "processors"
# Above the longest timeout of a transaction, the interval of the search for such, and a clock that
# is 5 s behind.
REST_SECONDS = 25.0
_SKEW_MS = 10_000
_COMMITTED_ONLY = 1
_STEP_SECONDS = 0.3


class TransactionReader(Consumer):
    """Reads partitions as Kafka's consumers do, whose part aborted records are to leave out."""

    def __init__(
        self,
        client: Client,
        name: str,
        partitions: Sequence[Key],
        checks: Atomicity,
        *,
        is_committed: bool,
    ) -> None:
        super().__init__(client, name, partitions)
        self._isolation = int(is_committed)
        self._checks = checks
        self.records: dict[Key, dict[int, bytes]] = {key: {} for key in partitions}
        self.ends: dict[Key, int] = {}
        """The high watermark of the last answer."""

    def _take(self, key: Key, result: Any) -> int:
        data = memoryview(result.records or b"")
        start, count = 0, 0
        position = self.positions[key]
        is_committed = self._isolation == _COMMITTED_ONLY
        aborted = sorted(
            (item.first_offset, item.producer_id) for item in result.aborted_transactions or ()
        )
        skipped: set[int] = set()
        while start < len(data):
            header = parse_batch_header(data, start)
            end = header.base_offset + header.last_offset_delta
            while is_committed and aborted and aborted[0][0] <= end:
                skipped.add(aborted.pop(0)[1])
            for record in iterate_records(data[start : start + header.size_bytes]):
                if header.is_control:
                    if parse_control_type(record.key) == ControlType.ABORT:
                        skipped.discard(header.producer_id)
                elif record.offset >= position and not (
                    header.is_transactional and header.producer_id in skipped
                ):
                    value = bytes(record.value)
                    self.records[key][record.offset] = value
                    self._checks.read(
                        self.name, key, record.offset, value, is_committed=is_committed
                    )
                    count += 1
            position = max(position, end + 1)
            self._epochs[key] = int(header.partition_leader_epoch)
            start += header.size_bytes
        if is_committed:
            moved = position if position > self.positions[key] else 0
            self._checks.fetched(
                self.name, key, moved, result.last_stable_offset, result.high_watermark
            )
        self.positions[key] = position
        self.ends[key] = result.high_watermark
        return count


class Writer(Worker):
    """Writes transactions to several partitions; two of an id fence each other."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Write until it is over, then until one more transaction is committed."""
        rng = self.client.rng
        while not is_over():
            producer = await self.new_producer()
            may_go_on = True
            while may_go_on and not is_over():
                may_go_on = await self._transact(producer)
                await asyncio.sleep(rng.expovariate(5))
            await asyncio.sleep(rng.choice((0.05, 0.5, 2.0)))
        is_done = False
        while not is_done:
            await asyncio.sleep(rng.uniform(0.1, 2.0))
            is_done = await self._transact(await self.new_producer(), is_last=True)
        if rng.random() < 0.3:
            await self._leave_open()

    async def _transact(self, producer: TransactionalProducer, *, is_last: bool = False) -> bool:
        """Return whether the producer may go on; of the last one, whether it is committed."""
        rng = self.client.rng
        transaction = producer.begin()
        try:
            for step in range(1 if is_last else rng.choice((1, 1, 2, 4))):
                await producer.write(transaction, self._records(transaction, step))
                if not is_last:
                    await self.think()
            draw = 1.0 if is_last else rng.random()
            if draw < 0.05:
                self.client.history.reach("a producer leaves its transaction open")
                return False
            await producer.end(transaction, commits=draw > 0.25)
        except FencedError:
            return False
        except AbortableError:
            return await self.give_up(producer, transaction) and not is_last
        return True

    def _records(self, transaction: Transaction, step: int) -> dict[Key, list[bytes]]:
        rng = self.client.rng
        name = f"{transaction.life[0]}.{transaction.life[1]}#{transaction.number}"
        keys = rng.sample(ORDERS, rng.choice((1, len(ORDERS), len(ORDERS))))
        return {
            key: [f"{name}/{key[1]}/{step}/{place}".encode() for place in range(rng.choice((1, 3)))]
            for key in keys
        }

    async def _leave_open(self) -> None:
        producer = await self.new_producer()
        transaction = producer.begin()
        try:
            await producer.write(transaction, self._records(transaction, 0))
        except (FencedError, AbortableError):
            return
        self.client.history.reach("a producer leaves its transaction open")


class Processing(Worker):
    """One step of consume-transform-produce."""

    def __init__(self, client: Client, checks: Atomicity, transactional_id: str) -> None:
        super().__init__(client, checks, transactional_id)
        self.readers = 0

    async def reader(
        self, assigned: Sequence[Key], offsets: GroupOffsets
    ) -> tuple[TransactionReader, dict[Key, int]]:
        """Return a reader at the group's offsets, and these."""
        self.readers += 1
        name = f"{self.client.name}.{self.readers}"
        reader = TransactionReader(self.client, name, assigned, self.checks, is_committed=True)
        for key in assigned:
            reader.positions[key] = max(0, await offsets.committed(key, -1))
        self.checks.begins_at(name, reader.positions)
        return reader, dict(reader.positions)

    async def transact(
        self,
        producer: TransactionalProducer,
        reader: TransactionReader,
        starts: dict[Key, int],
        group: tuple[int, str],
    ) -> bool:
        """Copy what was read since `starts`, and move the group; False where it was aborted.

        Raises FencedError.
        """
        client = self.client
        transaction = producer.begin()
        name = f"{transaction.life[0]}.{transaction.life[1]}#{transaction.number}"
        outputs: dict[Key, list[bytes]] = {}
        for key, records in reader.records.items():
            if records:
                transaction.consumed[key] = Consumed(
                    start=starts[key], end=reader.positions[key], offsets=sorted(records)
                )
            for offset in sorted(records):
                to = client.rng.choice(LEDGER)
                outputs.setdefault(to, []).append(f"{name}/{to[1]}/{key}/{offset}".encode())
        places = {key: taken.end for key, taken in transaction.consumed.items()}
        try:
            is_first = client.rng.random() < 0.5
            if is_first:
                await producer.write(transaction, outputs)
            await self.think()
            generation, member = group
            await producer.commit_offsets(GROUP, places, generation=generation, member=member)
            await self.think()
            if not is_first:
                await producer.write(transaction, outputs)
            await producer.end(transaction, commits=True)
        except AbortableError:
            if not await self.give_up(producer, transaction):
                raise FencedError from None
            return False
        starts.update(places)
        for records in reader.records.values():
            records.clear()
        return True


class LonelyProcessor(Processing):
    """Has one partition while it has the partition's transactional id; no group assigns it."""

    def __init__(self, client: Client, checks: Atomicity, key: Key) -> None:
        super().__init__(client, checks, f"etl-{key[1]}")
        self._key = key

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Process until it is over."""
        rng = self.client.rng
        offsets = GroupOffsets(self.client, GROUP, is_stable=True)
        while not is_over():
            producer = await self.new_producer()
            reader, starts = await self.reader([self._key], offsets)
            try:
                while not is_over() and rng.random() > 0.03:
                    await reader.poll()
                    if reader.records[self._key] and not await self.transact(
                        producer, reader, starts, (-1, "")
                    ):
                        reader, starts = await self.reader([self._key], offsets)
                    await asyncio.sleep(rng.expovariate(10))
            except FencedError:
                pass
            await asyncio.sleep(rng.choice((0.05, 0.5, 2.0)))


class GroupedProcessor(Member):
    """Has what its group assigns; its offsets come with its generation."""

    def __init__(self, client: Client, checks: GroupChecks, atomicity: Atomicity) -> None:
        super().__init__(client, checks, ORDERS)
        self._processing = Processing(client, atomicity, f"id-{client.name}")
        self._offsets = GroupOffsets(client, checks.group, is_stable=True)
        self._producer: TransactionalProducer | None = None

    async def _work(self, assigned: list[Key], is_over: Callable[[], bool]) -> None:
        rng, processing = self._client.rng, self._processing
        if self._producer is None:
            self._producer = await processing.new_producer()
        if not assigned:
            await asyncio.sleep(_STEP_SECONDS)
            await self._heartbeat()
            return
        reader, starts = await processing.reader(assigned, self._offsets)
        try:
            while not is_over() and rng.random() > 0.02:
                if rng.random() < 0.7 and not await self._heartbeat():
                    return
                await reader.poll()
                if any(reader.records.values()) and not await processing.transact(
                    self._producer, reader, starts, (self._generation, self._id)
                ):
                    return
                await asyncio.sleep(rng.expovariate(10))
        except FencedError:
            self._producer = None


class Readers:
    """One reader of each isolation level, of all partitions."""

    def __init__(self, client: Client, checks: Atomicity, *, is_committed: bool) -> None:
        self.reader = TransactionReader(
            client, client.name, [*ORDERS, *LEDGER], checks, is_committed=is_committed
        )

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Read on and on."""
        rng = self.reader.client.rng
        while not is_over():
            await self.reader.poll()
            await asyncio.sleep(rng.expovariate(20))


class Closing:
    """When all others are done: every transaction ends, and what is left is judged."""

    def __init__(self, scenario: "Scenario", checks: Atomicity, client: Client) -> None:
        self._scenario = scenario
        self._checks = checks
        self._client = client
        self._keys = [*ORDERS, *LEDGER]

    async def run(self, others: Sequence[Any]) -> None:
        """Wait for the others, then until everything is stable; then compare."""
        await asyncio.wait(others)
        reader = TransactionReader(
            self._client, "closing", self._keys, self._checks, is_committed=True
        )
        await self._drain(reader)
        offsets = GroupOffsets(self._client, GROUP, is_stable=True)
        committed = {(GROUP, key): await offsets.committed(key, -1) for key in ORDERS}
        self._checks.check(reader.records, committed)

    async def _drain(self, reader: TransactionReader) -> None:
        """Read committed records until nothing is held back by an open transaction."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REST_SECONDS
        quiet = 0
        while quiet < len(self._keys) + 1:
            before = dict(reader.positions)
            await reader.poll(max_wait_ms=100)
            is_at_end = all(reader.ends.get(key, -1) == reader.positions[key] for key in self._keys)
            quiet = quiet + 1 if is_at_end and before == reader.positions else 0
            if loop.time() > deadline:
                held = {key: (at, reader.ends.get(key)) for key, at in reader.positions.items()}
                if not self._has_skewed():
                    self._client.history.violate(
                        "hanging-transaction", f"positions and high watermarks: {held}"
                    )
                await self._end_all()
                deadline = float("inf")

    def _has_skewed(self) -> bool:
        """Whether a transaction's start may lie in the future of whoever coordinates it now."""
        now_ms = self._client.history.now_ms()
        nodes = self._scenario.cluster.nodes
        return any(node.clock.latest_ms() - now_ms > _SKEW_MS for node in nodes)

    async def _end_all(self) -> None:
        """Take every id over, which aborts what is open."""
        for transactional_id in self._checks.ids:
            await Worker(self._client, self._checks, transactional_id).new_producer()


def _topic_settings(profile: "Profile") -> dict[str, str]:
    kept = ("segment.ms", "index.interval.bytes", "min.insync.replicas")
    settings = {key: profile.topic[key] for key in kept}
    if profile.cleanup == "compact":
        # Every key is written once: only what was aborted goes, and markers.
        settings |= {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "200",
        }
    return settings


def _start(scenario: "Scenario") -> list[Any]:
    profile, loop = scenario.profile, scenario.loop
    checks = Atomicity(scenario.history, loop.time)
    admin, admins = scenario.client("ta")
    rng = admin.rng
    has_levels = changes_levels(profile)

    async def create() -> None:
        if has_levels:
            await Administrator(admin).begin()
        for name in ("orders", "ledger"):
            await admin.create_topic(name, 2, profile.replicas, _topic_settings(profile))

    created = loop.start_task(admins, create())
    tasks: list[Any] = []

    def start(name: str, make: Callable[[Client], Any]) -> None:
        client, process = scenario.client(name)
        if has_levels:
            client.level = KnownLevel(client)
        worker = make(client)

        async def work() -> None:
            await asyncio.wait([created])
            await worker.run(scenario.is_over)

        tasks.append(loop.start_task(process, work()))

    for number, transactional_id in enumerate(("w-0", "w-0", "w-1")):
        start(f"tw{number}", lambda client, it=transactional_id: Writer(client, checks, it))
    if rng.random() < 0.5:
        groups = GroupChecks(scenario.history, GROUP)
        for number in range(2):
            start(f"tg{number}", lambda client: GroupedProcessor(client, groups, checks))
    else:
        for number, key in enumerate((*ORDERS, ORDERS[0])):
            start(f"tp{number}", lambda client, key=key: LonelyProcessor(client, checks, key))
    for name, zombie in _zombies(scenario, checks, has_levels=has_levels):
        start(name, zombie)
    start("trc", lambda client: Readers(client, checks, is_committed=True))
    start("tru", lambda client: Readers(client, checks, is_committed=False))
    closing, process = scenario.client("tc")
    tasks.append(loop.start_task(process, Closing(scenario, checks, closing).run(tasks[:])))
    return [created, *tasks]


def _zombies(
    scenario: "Scenario", checks: Atomicity, *, has_levels: bool
) -> list[tuple[str, Callable[[Client], Any]]]:
    """Return what no sound client does, as far as a seed has it: names, and what makes each."""
    cluster = scenario.cluster
    found: list[tuple[str, Callable[[Client], Any]]] = []
    if has_zombies(cluster.seed):
        found.append(("th", lambda client: HastyWriter(client, checks, "hasty")))
        found.append(("tf", lambda client: FormerCoordinator(client, cluster)))
    if cluster.seed >= OVERTAKEN_SINCE and not has_levels:
        found.append(("to", lambda client: Overtaken(client, checks, "overtaken")))
    if cluster.seed >= REPEATERS_SINCE and not has_levels:
        found.append(("te", lambda client: LateEnder(client, checks, "late")))
    if cluster.seed >= REPEATERS_SINCE:
        deletes = cluster.seed >= FORGETTING_SINCE
        found.append(
            ("tb", lambda client: BetweenCommits(client, scenario.loop.time, deletes=deletes))
        )
    return found


def _settings(rng: random.Random, profile: "Profile") -> dict[str, str]:
    return {
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": str(profile.replicas),
        "transaction.state.log.min.isr": str(min(2, profile.replicas)),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "400",
        "transactional.id.expiration.ms": str(rng.choice((604800000, 604800000, 1500))),
    }


TRANSACTIONS = Workload(name="transactions", share=0.35, start=_start, settings=_settings)
