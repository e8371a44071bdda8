"""Members of a classic consumer group that join, leave, die and commit, and what must hold of them.

A partition is never owned by two members of one generation; an acknowledged commit never goes back
and never vanishes; whoever has been replaced by a newer generation commits nothing more.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from simulation.client import FAILURES, RETRIABLE, Client, Consumer
from simulation.history import History

GROUP = "workers"
SESSION_MS = 700
REBALANCE_MS = 1000
REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)


class GroupChecks:
    """What all members saw, held together."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._owners: dict[tuple[int, int], str] = {}
        self._generation = -1
        self._acknowledged: dict[int, int] = {}
        self._attempted: dict[int, int] = {}

    def owned(self, generation: int, partition: int, member: str) -> None:
        """Note that a member was given a partition."""
        owner = self._owners.setdefault((generation, partition), member)
        if owner != member:
            self._history.violate(
                "owned-twice",
                f"partition {partition} in generation {generation}: {owner}, {member}",
            )
        self._generation = max(self._generation, generation)

    def attempt(self, generation: int, partition: int, offset: int) -> Callable[[], None]:
        """Note that a commit is sent; call what is returned when it is acknowledged."""
        self._attempted[partition] = max(self._attempted.get(partition, -1), offset)
        newest = self._generation

        def acknowledged() -> None:
            if generation < newest:
                self._history.violate(
                    "zombie-commit",
                    f"{offset} of partition {partition} by generation {generation}, "
                    f"when {newest} had its assignment",
                )
            before = self._acknowledged.get(partition, -1)
            self._acknowledged[partition] = max(before, offset)

        return acknowledged

    def known(self, partition: int) -> int:
        """Return the largest offset whose commit is acknowledged by now."""
        return self._acknowledged.get(partition, -1)

    def found(self, partition: int, known: int, offset: int) -> None:
        """Take what the group answered to who asked when `known` had been acknowledged."""
        if offset < known or offset > self._attempted.get(partition, -1):
            self._history.violate(
                "lost-commit",
                f"{GROUP} finds {offset} of partition {partition}; {known} was acknowledged, "
                f"{self._attempted.get(partition, -1)} was sent at most",
            )


class Member:
    """One consumer that subscribes to all partitions of a topic."""

    def __init__(
        self, client: Client, checks: GroupChecks, topic: str, partitions: Sequence[int]
    ) -> None:
        self._client = client
        self._checks = checks
        self._topic = topic
        self._partitions = partitions
        self._id = ""
        self._generation = -1
        self._lives = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Join, work and leave, or die without a word, until it is over."""
        chance = self._client.chance
        while not is_over():
            try:
                assigned = await self._join()
                if assigned is not None:
                    await self._work(assigned, is_over)
            except FAILURES:
                pass
            if chance.random() < 0.2:
                if chance.random() < 0.5:
                    await self._leave()
                self._id = ""  # dies: its session runs out
            await self._client.pause()
        await self._leave()

    async def _call(self, key: ApiKey, request: Any) -> Any:
        caller = await self._client.coordinator(GROUP)
        if caller is None:
            raise OSError("no coordinator")
        return await caller.call(key, request)

    async def _join(self) -> list[int] | None:
        """Join and sync; return the partitions given to us, None where that failed."""
        request = join_group.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._id,
            protocol_type="simulated",
            protocols=[join_group.JoinGroupRequestProtocol(name="even", metadata=b"")],
        )
        joined = await self._call(ApiKey.JOIN_GROUP, request)
        code = ErrorCode(joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._id = joined.member_id
            return None
        if code:
            self._judge("join", code)
            return None
        self._id, self._generation = joined.member_id, joined.generation_id
        members = sorted(member.member_id for member in joined.members)
        sync = sync_group.SyncGroupRequest(
            group_id=GROUP,
            generation_id=self._generation,
            member_id=self._id,
            assignments=self._assign(members) if joined.leader == self._id else [],
        )
        answer = await self._call(ApiKey.SYNC_GROUP, sync)
        if answer.error_code:
            self._judge("sync", ErrorCode(answer.error_code))
            return None
        count = len(answer.assignment) // 4
        assigned = list(struct.unpack(f">{count}i", answer.assignment))
        for partition in assigned:
            self._checks.owned(self._generation, partition, self._id)
        return assigned

    def _assign(self, members: Sequence[str]) -> list[sync_group.SyncGroupRequestAssignment]:
        return [
            sync_group.SyncGroupRequestAssignment(
                member_id=member,
                assignment=b"".join(
                    struct.pack(">i", partition)
                    for partition in self._partitions
                    if partition % len(members) == place
                ),
            )
            for place, member in enumerate(members)
        ]

    async def _work(self, assigned: list[int], is_over: Callable[[], bool]) -> None:
        """Read what is ours from where the group stands, until the generation ends."""
        chance = self._client.chance
        consumers = []
        for partition in assigned:
            self._lives += 1
            name = f"{self._client.name}.{self._lives}"
            consumer = Consumer(self._client, name, self._topic, partition)
            known = self._checks.known(partition)
            found = await self._client.committed(GROUP, self._topic, partition, known)
            self._checks.found(partition, known, found)
            consumer.position = max(0, found)
            consumers.append(consumer)
        while not is_over() and chance.random() > 0.02:
            beat = heartbeat.HeartbeatRequest(
                group_id=GROUP, generation_id=self._generation, member_id=self._id
            )
            code = ErrorCode((await self._call(ApiKey.HEARTBEAT, beat)).error_code)
            if code:
                self._judge("heartbeat", code)
                return
            for consumer in consumers:
                await consumer.poll()
                if chance.random() < 0.4 and not await self._commit(consumer):
                    return
            await asyncio.sleep(chance.expovariate(20))

    async def _commit(self, consumer: Consumer) -> bool:
        """Commit once. After an unknown outcome this member begins anew, in a new generation."""
        acknowledged = self._checks.attempt(self._generation, consumer.partition, consumer.position)
        code = await self._client.try_commit(
            GROUP,
            self._topic,
            consumer.partition,
            consumer.position,
            generation=self._generation,
            member=self._id,
        )
        if code is ErrorCode.NONE:
            acknowledged()
            return True
        if code is None:
            await self._leave()
        else:
            self._judge("commit", code)
        return False

    async def _leave(self) -> None:
        member, self._id = self._id, ""
        request = leave_group.LeaveGroupRequest(
            group_id=GROUP, members=[leave_group.MemberIdentity(member_id=member)]
        )
        try:
            await self._call(ApiKey.LEAVE_GROUP, request)
        except FAILURES:
            return

    def _judge(self, what: str, code: ErrorCode) -> None:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._id = ""
        elif code not in REJOIN and code not in RETRIABLE:
            self._client.history.violate("group", f"{what}: {code.name}")
