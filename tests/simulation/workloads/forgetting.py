"""Committed offsets that go: by request (KIP-496), with their group (KIP-229), or by age (KIP-211).

What an acknowledged deletion took away stays away, whoever coordinates the group, and what was
committed stays until it is deleted or its time is over. A group has members now and then, of either
protocol: then neither it nor the offsets of what they subscribe to can be deleted.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    consumer_group_heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE
from simulation.workloads.members import REBALANCE_MS, SESSION_MS
from simulation.workloads.mixed import ClassicMember, subscription_to
from simulation.workloads.modern import session_settings
from simulation.workloads.offsets import GroupOffsets, Key
from simulation.workloads.repeaters import DELETED_BETWEEN
from simulation.workloads.workload import FORGETTING_SINCE, Workload

if TYPE_CHECKING:
    import random

    from simulation.profile import Profile
    from simulation.scenario import Scenario

NAME = "forgetting"
ANOTHER = "a deleted offset is looked for at another coordinator"
DELETED, DELETED_WITH_GROUP = (
    "an offset is deleted by request",
    "an offset is deleted with its group",
)
EXPIRED = "a committed offset expires"
IN_USE = "a group with members is to be deleted"
MARKS = {
    DELETED_BETWEEN: 20,
    ANOTHER: 20,
    DELETED: 50,
    DELETED_WITH_GROUP: 50,
    EXPIRED: 10,
    IN_USE: 20,
}

_NONE = -1
_PLACES_MAX = 3
CHECK_INTERVAL, _CHECK_MS = "offsets.retention.check.interval.ms", 500
# Where these run, an empty group that has no offset yet is not to go: its generations begin anew.
_OTHER_GROUPS = frozenset({"group", "static", "modern", "mixed", "share", "transactions"})
# Certainly nothing was changed.
_REFUSED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
_MEMBERS_LEAVE_FROM = 3


class Forgetter:
    """Commits, deletes, and looks at what is left, in one group after another, all its own."""

    def __init__(self, client: Client, places: Sequence[Key], *, expires: bool) -> None:
        """`expires` says whether the brokers look for what is too old all the time."""
        self._client = client
        self._places = places[:_PLACES_MAX]
        self._expires = expires
        self._newest = 0
        self._lives = 0
        self._begin()

    def _begin(self) -> None:
        """Go on with a group that nobody has heard of."""
        self._lives += 1
        group = f"{self._client.name}-{self._lives}"
        self._offsets = GroupOffsets(self._client, group, is_stable=True)
        self._allowed: dict[Key, set[int]] = {key: {_NONE} for key in self._places}
        """What may be committed."""
        self._late: dict[Key, set[int]] = {key: set() for key in self._places}
        """What nobody heard an answer to: it may be committed at any time."""
        self._deleted_by: dict[Key, tuple[int, Any]] = {}
        """Coordinators that acknowledged a deletion of what is not committed again."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Commit and delete until it is over; what is committed for a moment goes even then."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(5))
            acts = (self._commit, self._delete_offsets, self._delete_group, self._visit)
            (act,) = rng.choices(acts, (6, 2, 1, 1))
            try:
                await act()
            except FAILURES:
                continue
            if rng.random() < 0.5:
                await self._judge()
        await self._judge()
        if self._expires:
            await self._wait_until_it_expires()

    # ---- what it asks for

    async def _commit(self) -> None:
        rng = self._client.rng
        chosen = [key for key in self._places if rng.random() < 0.7]
        keep_ms = rng.choice((300, 2000)) if self._expires and rng.random() < 0.3 else None
        await self._commit_once(chosen, keep_ms)

    async def _commit_once(self, chosen: Sequence[Key], keep_ms: int | None) -> bool:
        """Commit something new; return whether all of it is committed."""
        self._newest += 1
        number = self._newest
        codes = await self._offsets.commit(dict.fromkeys(chosen, number), keep_ms=keep_ms)
        for key, code in codes.items():
            ends = set() if keep_ms is None else {_NONE}
            if code is ErrorCode.NONE:
                self._allowed[key] = {number} | ends
                self._deleted_by.pop(key, None)
            elif not self._is_refused("a commit", code):
                self._allowed[key] |= {number} | ends
                self._late[key].add(number)
        return all(code is ErrorCode.NONE for code in codes.values())

    async def _delete_offsets(self) -> None:
        rng = self._client.rng
        chosen = [key for key in self._places if rng.random() < 0.5] or list(self._places)
        codes, led = await self._offsets.delete(chosen)
        await self._hear(codes, DELETED, led=led)

    async def _delete_group(self) -> None:
        code, led = await self._offsets.delete_group()
        await self._hear(dict.fromkeys(self._places, code), DELETED_WITH_GROUP, led=led)

    async def _visit(self) -> None:
        """Be its only member for a while: then nothing of it may be deleted."""
        rng = self._client.rng
        stay = rng.choice((self._be_classic, self._be_native))
        await stay()

    async def _try_to_delete(self) -> None:
        for act in (self._delete_offsets, self._delete_group):
            if self._client.rng.random() < 0.7:
                await act()
                await self._judge()

    async def _be_classic(self) -> None:
        client, group = self._client, self._offsets.group
        request = join_group.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=ClassicMember.protocol[0],
            protocols=[
                join_group.JoinGroupRequestProtocol(
                    name=ClassicMember.protocol[1],
                    metadata=subscription_to({topic for topic, _ in self._places}),
                )
            ],
        )
        answer, _ = await self._offsets.ask(ApiKey.JOIN_GROUP, request)
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = answer.member_id
            answer, _ = await self._offsets.ask(ApiKey.JOIN_GROUP, request)
        if answer is None or answer.error_code:
            return
        member = answer.member_id
        sync = sync_group.SyncGroupRequest(
            group_id=group,
            generation_id=answer.generation_id,
            member_id=member,
            protocol_type=request.protocol_type,
            protocol_name=request.protocols[0].name,
            assignments=[sync_group.SyncGroupRequestAssignment(member_id=member)],
        )
        if client.rng.random() < 0.7:
            await self._offsets.ask(ApiKey.SYNC_GROUP, sync)
        await self._try_to_delete()
        if self._offsets.group == group and client.rng.random() < 0.7:
            leave = leave_group.LeaveGroupRequest(
                group_id=group, members=[leave_group.MemberIdentity(member_id=member)]
            )
            await self._offsets.ask(ApiKey.LEAVE_GROUP, leave)

    async def _be_native(self) -> None:
        client, group = self._client, self._offsets.group
        member = f"{client.name}#{self._newest}/{client.rng.random()}"
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=0,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=sorted({topic for topic, _ in self._places}),
            topic_partitions=[],
        )
        answer, _ = await self._offsets.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
        if answer is None or answer.error_code:
            return
        await self._try_to_delete()
        if self._offsets.group == group and client.rng.random() < 0.7:
            leave = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=group, member_id=member, member_epoch=-1
            )
            await self._offsets.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, leave)

    # ---- what it hears

    async def _hear(self, codes: Mapping[Key, ErrorCode | None], mark: str, *, led: bool) -> None:
        """Take the answer to a deletion. After one that may come late another group begins."""
        history, is_open = self._client.history, False
        for key, code in codes.items():
            if code is ErrorCode.NONE:
                if _NONE not in self._allowed[key]:
                    history.reach(mark)
                self._allowed[key] = {_NONE}
                self._deleted_by[key] = history.coordinator(self._offsets.group)
            elif code is ErrorCode.GROUP_ID_NOT_FOUND and led:
                if not self._allowed[key] & {_NONE}:
                    history.violate(
                        "lost-group",
                        f"{self._offsets.group} is not there, with {self._allowed[key]}",
                    )
            elif not self._is_refused("a deletion", code):
                self._allowed[key].add(_NONE)
                is_open = True
        if is_open:
            await self._judge()
            self._begin()

    def _is_refused(self, what: str, code: ErrorCode | None) -> bool:
        """Whether an answer says for sure that nothing was done."""
        if code is not None and code not in _REFUSED | RETRIABLE:
            self._client.history.violate(
                "forgetting", f"{what} in {self._offsets.group}: {code.name}"
            )
        return code in _REFUSED

    async def _judge(self) -> None:
        history = self._client.history
        for key in self._places:
            found = await self._offsets.committed(key, _NONE)
            allowed = self._allowed[key] | self._late[key]
            if found not in allowed:
                history.violate(
                    "forgotten-offset",
                    f"{self._offsets.group} is at {found} of {key}, not at {allowed}",
                )
            deleted_by = self._deleted_by.get(key)
            if deleted_by is not None and deleted_by != history.coordinator(self._offsets.group):
                history.reach(ANOTHER)
            if found == _NONE:
                self._allowed[key] = {_NONE}

    async def _wait_until_it_expires(self) -> None:
        """Nothing that was committed for a moment stays."""
        self._begin()

        async def committed() -> bool | None:
            return await self._commit_once(self._places, 300) or None

        await self._client.until(committed)
        for key in self._places:

            async def is_gone(key: Key = key) -> bool | None:
                return await self._offsets.committed(key, _NONE) == _NONE or None

            await self._client.until(is_gone)


def _settings(rng: "random.Random", profile: "Profile") -> dict[str, str]:
    settings = session_settings(rng, profile)
    if not profile.works & _OTHER_GROUPS:
        settings[CHECK_INTERVAL] = str(_CHECK_MS)
    return settings


def _start(scenario: "Scenario") -> list[Any]:
    profile = scenario.profile
    tasks = []
    for number in range(2):
        client, process = scenario.client(f"fg{number}")
        client.versions[ApiKey.LEAVE_GROUP] = max(
            client.versions[ApiKey.LEAVE_GROUP], _MEMBERS_LEAVE_FROM
        )
        forgetter = Forgetter(client, profile.places, expires=CHECK_INTERVAL in profile.settings)
        tasks.append(scenario.loop.start_task(process, forgetter.run(scenario.is_over)))
    return tasks


FORGETTING = Workload(
    name=NAME, share=0.5, since=FORGETTING_SINCE, start=_start, settings=_settings
)
