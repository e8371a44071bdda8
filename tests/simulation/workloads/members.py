"""Members of a classic consumer group that join, leave, die, sleep too long, and commit.

A partition is never owned by two members of one generation; an acknowledged commit never goes back
and never vanishes; whoever has been replaced by a newer generation commits nothing more. Nor does a
static member's process (KIP-345) whose successor has its assignment, be it in the same generation.
"""

import asyncio
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from simulation.client import FAILURES, Client
from simulation.history import History
from simulation.retries import RETRIABLE
from simulation.workloads.consumers import Consumer, Key
from simulation.workloads.offsets import GroupOffsets
from simulation.workloads.workload import FORGETTING_SINCE, Workload

if TYPE_CHECKING:
    from simulation.scenario import Scenario

GROUP = "workers"
SESSION_MS = 700
REBALANCE_MS = 1000
# Whose session outlives a phase of a rebalance: it may miss one, and is a member until that ends.
_LONG_SESSION_MS, _SHORT_REBALANCE_MS = 3000, 500
REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
_REFUSED = REJOIN | {ErrorCode.FENCED_INSTANCE_ID}
"""Who hears one of these has committed nothing."""
STATIC_GROUP = "statics"
STATIC_SINCE = 1_000_000
# From here on a member says which instance it is.
INSTANCES_FROM = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.OFFSET_COMMIT: 7,
}


Outcome = Callable[[Key, ErrorCode | None], None]
"""What a coordinator said of a partition's commit, None where it said nothing."""


class GroupChecks:
    """What all members saw, held together."""

    def __init__(self, history: History, group: str = GROUP) -> None:
        self.group = group
        self._history = history
        self._owners: dict[tuple[int, Key], str] = {}
        self._acknowledged: dict[Key, int] = {}
        self._attempted: dict[Key, int] = {}
        self.generation = -1
        """The newest that has an assignment."""

    def joined(self, member: str, generation: int, sent_at: float) -> bool:
        """Note that a new member was let in; False where nobody can say into what."""
        del member, generation, sent_at
        return True

    def left(self, member: str) -> None:
        """Note that a member takes itself for none any more."""

    def owned(self, generation: int, key: Key, member: str) -> None:
        """Note that a member was given a partition."""
        owner = self._owners.setdefault((generation, key), member)
        if owner != member:
            self._history.violate(
                "owned-twice", f"{key} in generation {generation}: {owner}, {member}"
            )
        self.generation = max(self.generation, generation)

    def attempt(self, generation: int, places: dict[Key, int]) -> Outcome:
        """Note that a commit is sent; call what is returned with each partition's answer."""
        for key, offset in places.items():
            self._attempted[key] = max(self._attempted.get(key, -1), offset)
        newest = self.generation
        if generation < newest:
            self._history.reach("a member commits with a former generation")

        def heard(key: Key, code: ErrorCode | None) -> None:
            if code is not ErrorCode.NONE:
                return
            if generation < newest:
                self._history.violate(
                    "zombie-commit",
                    f"{places[key]} of {key} by generation {generation}, "
                    f"when {newest} had its assignment",
                )
            before = self._acknowledged.get(key, -1)
            self._acknowledged[key] = max(before, places[key])

        return heard

    def known(self, key: Key) -> int:
        """Return the largest offset whose commit is acknowledged by now."""
        return self._acknowledged.get(key, -1)

    def not_behind(self, places: dict[Key, int]) -> dict[Key, int]:
        """Return those of a late commit's places that no acknowledged commit is beyond."""
        return {key: offset for key, offset in places.items() if offset >= self.known(key)}

    def found(self, key: Key, known: int, offset: int) -> None:
        """Take what the group answered to who asked when `known` had been acknowledged."""
        if offset < known or offset > self._attempted.get(key, -1):
            self._history.violate(
                "lost-commit",
                f"{self.group} finds {offset} of {key}; {known} was acknowledged, "
                f"{self._attempted.get(key, -1)} was sent at most",
            )


@dataclass(frozen=True, kw_only=True)
class Incarnation:
    """One process of a static member, from its JoinGroup on."""

    instance: str
    sent_at: float
    joined_at: float


@dataclass(eq=False)
class _Commit:
    """One that may be the last: nothing that was sent after its end is acknowledged."""

    offset: int
    sent_at: float
    ended_at: float = math.inf


class StaticChecks(GroupChecks):
    """As above, for static members: which incarnation has taken whose place.

    A commit may go back here: who takes a place in the middle of a generation reads what is
    committed while the former process's last commit is still being replicated (an OffsetFetch does
    not wait for that, in Kafka neither), and commits what it has read. So an offset is a register:
    it has the value of one that may be the last commit.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history, STATIC_GROUP)
        self._last: dict[Key, list[_Commit]] = {}
        self._settled: list[Incarnation] = []
        """Those that have their assignment."""

    def attempt(self, generation: int, places: dict[Key, int]) -> Outcome:
        """As above; until it is refused it may be the last."""
        judge = super().attempt(generation, places)
        sent = {key: _Commit(offset, _now()) for key, offset in places.items()}
        for key, commit in sent.items():
            self._last.setdefault(key, [_Commit(-1, -1.0, -1.0)]).append(commit)

        def heard(key: Key, code: ErrorCode | None) -> None:
            judge(key, code)
            commit, last = sent[key], self._last[key]
            commit.ended_at = _now()
            if code in _REFUSED:
                last.remove(commit)
            elif code is ErrorCode.NONE:
                last[:] = [each for each in last if each.ended_at >= commit.sent_at]

        return heard

    def known(self, key: Key) -> int:
        """Return the smallest offset that may be the last that was committed."""
        return min((commit.offset for commit in self._last.get(key, ())), default=-1)

    def found(self, key: Key, known: int, offset: int) -> None:
        """As above; a smaller one may have been committed meanwhile."""
        super().found(key, min(known, self.known(key)), offset)

    def settled(self, incarnation: Incarnation) -> None:
        """Note that an incarnation was given its assignment: it is durable who has its place."""
        self._settled.append(incarnation)

    def may_commit(self, incarnation: Incarnation) -> bool:
        """Return whether no successor was settled by now."""
        is_replaced = any(
            other.instance == incarnation.instance and other.sent_at > incarnation.joined_at
            for other in self._settled
        )
        if is_replaced:
            self._history.reach("a static member's former process commits")
        return not is_replaced

    def committed(self, incarnation: Incarnation, key: Key, *, was_allowed: bool) -> None:
        """Judge a commit that was acknowledged."""
        if not was_allowed:
            self._history.violate(
                "static-zombie", f"{incarnation} commits {key} after its successor was settled"
            )


def _now() -> float:
    return asyncio.get_running_loop().time()


class Member:
    """One consumer that subscribes to all partitions; `instance` makes it a static member's."""

    protocol = ("simulated", "even")
    """The protocol's type and name."""

    def __init__(
        self,
        client: Client,
        checks: GroupChecks,
        partitions: Sequence[Key],
        instance: str | None = None,
    ) -> None:
        self.session_ms, self.rebalance_ms = SESSION_MS, REBALANCE_MS
        self._client = client
        self._checks = checks
        self._partitions = partitions
        self._instance = instance
        self._incarnation: Incarnation | None = None
        if instance is not None:
            for key, first in INSTANCES_FROM.items():
                client.versions[key] = max(client.versions[key], first)
        self._offsets = GroupOffsets(client, checks.group, instance=instance)
        self._id = ""
        self._generation = -1
        self._lives = 0
        self._former: tuple[int, str, dict[Key, int]] | None = None
        """Generation, member id and positions before the last rebalance."""
        self._former_incarnation: Incarnation | None = None
        self._is_replaced = False
        self._working_id = ""
        self._settled_id = ""
        """The member id that was given an assignment last."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Join, work and leave, or die without a word, until it is over."""
        rng = self._client.rng
        while not is_over():
            try:
                assigned = await self._join()
                if assigned is not None:
                    await self._commit_late()
                    await self._work(assigned, is_over)
            except FAILURES:
                pass
            if rng.random() < 0.2:
                if rng.random() < 0.5:
                    await self._leave()
                self._forget_id()  # dies: its session runs out
            if self._is_replaced:
                # Another process has this instance's place; this one takes it back some time.
                self._is_replaced = False
                await asyncio.sleep(rng.choice((0.1, 0.6, 2.0)))
            await self._client.pause()
        await self._leave()

    async def _call(self, key: ApiKey, request: Any) -> Any:
        caller = await self._client.coordinator(self._checks.group)
        if caller is None:
            raise OSError("no coordinator")
        return await self._client.call(caller, key, request)

    async def _join(self) -> list[Key] | None:
        """Join and sync; return the partitions given to us, None where that failed."""
        request = join_group.JoinGroupRequest(
            group_id=self._checks.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self._id,
            group_instance_id=self._instance,
            protocol_type=self.protocol[0],
            protocols=[
                join_group.JoinGroupRequestProtocol(
                    name=self.protocol[1], metadata=self._subscription()
                )
            ],
        )
        sent_at, is_new = _now(), not self._id
        joined = await self._call(ApiKey.JOIN_GROUP, request)
        code = ErrorCode(joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            return None
        if code:
            self._judge("join", code)
            return None
        self._id, self._generation = joined.member_id, joined.generation_id
        if self._instance is not None and is_new:
            self._incarnation = Incarnation(
                instance=self._instance, sent_at=sent_at, joined_at=_now()
            )
        members = sorted(member.member_id for member in joined.members)
        if joined.leader == self._id and self._client.rng.random() < 0.3:
            await self._commit_before_sync()
        sync = sync_group.SyncGroupRequest(
            group_id=self._checks.group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=self._instance,
            protocol_type=self.protocol[0],
            protocol_name=self.protocol[1],
            assignments=self._assign(members) if joined.leader == self._id else [],
        )
        answer = await self._call(ApiKey.SYNC_GROUP, sync)
        if answer.error_code:
            self._judge("sync", ErrorCode(answer.error_code))
            return None
        if self._id != self._settled_id:
            if not self._checks.joined(self._id, self._generation, sent_at):
                await self._leave()
                return None
            self._settled_id = self._id
        assigned = self._read_assignment(bytes(answer.assignment))
        for key in assigned:
            self._checks.owned(self._generation, key, self._instance or self._id)
        if self._incarnation is not None and isinstance(self._checks, StaticChecks):
            self._checks.settled(self._incarnation)
        return assigned

    def _assign(self, members: Sequence[str]) -> list[sync_group.SyncGroupRequestAssignment]:
        return [
            sync_group.SyncGroupRequestAssignment(
                member_id=member,
                assignment=self._write_assignment(self._partitions[place :: len(members)]),
            )
            for place, member in enumerate(members)
        ]

    def _subscription(self) -> bytes:
        """Return what the assignor of this protocol hears of a member."""
        return b""

    def _write_assignment(self, keys: Sequence[Key]) -> bytes:
        return b"".join(struct.pack(">i", self._partitions.index(key)) for key in keys)

    def _read_assignment(self, assignment: bytes) -> list[Key]:
        places = struct.unpack(f">{len(assignment) // 4}i", assignment)
        return [self._partitions[place] for place in places]

    async def _work(self, assigned: list[Key], is_over: Callable[[], bool]) -> None:
        """Read what is ours from where the group stands, until the generation ends."""
        client, rng = self._client, self._client.rng
        self._lives += 1
        self._working_id = self._id
        consumer = Consumer(client, f"{client.name}.{self._lives}", assigned)
        for key in assigned:
            known = self._checks.known(key)
            found = await self._offsets.committed(key, known)
            self._checks.found(key, known, found)
            consumer.positions[key] = max(0, found)
        while not is_over() and rng.random() > 0.02:
            if not await self._heartbeat():
                break
            if assigned:
                await consumer.poll()
                if rng.random() < 0.4 and not await self._commit(dict(consumer.positions)):
                    break
            if rng.random() < 0.03:
                # A stop-the-world pause: when it is over the group may have gone on without us.
                await asyncio.sleep(rng.choice((0.5, 1.5, 2.5)))
                if assigned and not await self._commit(dict(consumer.positions)):
                    break
            await asyncio.sleep(rng.expovariate(20))
        if assigned:
            self._former = (self._generation, self._working_id, dict(consumer.positions))
            self._former_incarnation = self._incarnation

    async def _heartbeat(self) -> bool:
        beat = heartbeat.HeartbeatRequest(
            group_id=self._checks.group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=self._instance,
        )
        code = ErrorCode((await self._call(ApiKey.HEARTBEAT, beat)).error_code)
        if code:
            self._judge("heartbeat", code)
        return not code

    async def _commit_before_sync(self) -> None:
        """Commit in a generation that we have given no assignment yet: the group refuses it."""
        known = {key: self._checks.known(key) for key in self._partitions}
        places = {key: offset for key, offset in known.items() if offset >= 0}
        heard = self._checks.attempt(self._generation, places)
        codes = await self._offsets.commit(places, generation=self._generation, member=self._id)
        for key, code in codes.items():
            heard(key, code)  # where a former coordinator's assignment holds it is acknowledged
            if code and not self._is_usual(code):
                self._client.history.violate("group", f"a commit before a sync: {code.name}")

    async def _commit_late(self) -> None:
        """Send what a thread of ours still had to commit from before the rebalance."""
        if self._former is None or self._client.rng.random() < 0.5:
            return
        generation, member, places = self._former
        self._former = None
        is_other = self._instance is not None and member != self._id
        if generation > self._generation or (generation == self._generation and not is_other):
            return
        heard = self._checks.attempt(generation, places)
        was_allowed = self._may_commit(self._former_incarnation)
        codes = await self._offsets.commit(places, generation=generation, member=member)
        for key, code in codes.items():
            heard(key, code)
            if code is ErrorCode.NONE:
                self._committed(self._former_incarnation, key, was_allowed=was_allowed)
            elif code is not None and not self._is_usual(code):
                self._client.history.violate("group", f"a late commit: {code.name}")

    async def _commit(self, places: dict[Key, int]) -> bool:
        """Commit once. After an unknown outcome this member starts over, in a new generation."""
        heard = self._checks.attempt(self._generation, places)
        incarnation = self._incarnation
        was_allowed = self._may_commit(incarnation)
        codes = await self._offsets.commit(places, generation=self._generation, member=self._id)
        for key, code in codes.items():
            heard(key, code)
            if code is ErrorCode.NONE:
                self._committed(incarnation, key, was_allowed=was_allowed)
            elif code is not None:
                self._judge("commit", code)
        if None in codes.values():
            await self._leave()
        return all(code is ErrorCode.NONE for code in codes.values())

    def _may_commit(self, incarnation: Incarnation | None) -> bool:
        checks = self._checks
        if incarnation is None or not isinstance(checks, StaticChecks):
            return True
        return checks.may_commit(incarnation)

    def _committed(self, incarnation: Incarnation | None, key: Key, *, was_allowed: bool) -> None:
        if incarnation is not None and isinstance(self._checks, StaticChecks):
            self._checks.committed(incarnation, key, was_allowed=was_allowed)

    def _is_usual(self, code: ErrorCode) -> bool:
        """Whether a member hears that when its group has gone on without it."""
        is_replaced = code is ErrorCode.FENCED_INSTANCE_ID and self._instance is not None
        return is_replaced or code in REJOIN or code in RETRIABLE

    async def _leave(self) -> None:
        member = self._forget_id()
        if not member and self._instance is not None:
            return  # by its instance id alone it would take away who has its place
        request = leave_group.LeaveGroupRequest(
            group_id=self._checks.group,
            members=[
                leave_group.MemberIdentity(member_id=member, group_instance_id=self._instance)
            ],
        )
        try:
            await self._call(ApiKey.LEAVE_GROUP, request)
        except FAILURES:
            return

    def _forget_id(self) -> str:
        member, self._id = self._id, ""
        self._checks.left(member)
        return member

    def _judge(self, what: str, code: ErrorCode) -> None:
        is_fenced = code is ErrorCode.FENCED_INSTANCE_ID and self._instance is not None
        self._is_replaced = self._is_replaced or is_fenced
        if code is ErrorCode.UNKNOWN_MEMBER_ID or is_fenced:
            self._forget_id()
        elif not self._is_usual(code):
            self._client.history.violate("group", f"{what}: {code.name}")


def _draw_times(member: Member, client: Client, seed: int) -> None:
    if seed >= FORGETTING_SINCE and client.rng.random() < 0.5:
        member.session_ms, member.rebalance_ms = _LONG_SESSION_MS, _SHORT_REBALANCE_MS


def _start(scenario: "Scenario") -> list[Any]:
    checks = GroupChecks(scenario.history)
    tasks = []
    for number in range(scenario.rng.choice((2, 3))):
        client, process = scenario.client(f"m{number}")
        member = Member(client, checks, scenario.profile.places)
        _draw_times(member, client, scenario.cluster.seed)
        tasks.append(scenario.loop.start_task(process, member.run(scenario.is_over)))
    return tasks


def _start_static(scenario: "Scenario") -> list[Any]:
    """Two processes fight for one instance's place; a third one has its own."""
    checks = StaticChecks(scenario.history)
    tasks = []
    for number, instance in enumerate(("first", "first", "second")):
        client, process = scenario.client(f"s{number}")
        member = Member(client, checks, scenario.profile.places, instance)
        _draw_times(member, client, scenario.cluster.seed)
        tasks.append(scenario.loop.start_task(process, member.run(scenario.is_over)))
    return tasks


MEMBERS = Workload(name="group", share=0.4, start=_start)
STATIC_MEMBERS = Workload(name="static", share=0.3, since=STATIC_SINCE, start=_start_static)
