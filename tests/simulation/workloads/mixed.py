"""A group that is moved from the classic protocol to KIP-848's and back, while members are in it.

Each process lives some seconds with one protocol, leaves, dies, or is followed at once by one with
the other protocol. So the group is converted either way, again and again, in the middle of
rebalances and of coordinators' ends. A group that nobody is left in begins at generation 0 with the
next member of the other protocol: that is a new life of it, in which generations say nothing of
those before.
"""

import asyncio
import struct
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.records import (
    consumer_protocol_assignment,
    consumer_protocol_subscription,
)
from simulation.client import Client
from simulation.history import History
from simulation.workloads.consumers import Key
from simulation.workloads.members import REBALANCE_MS, SESSION_MS, Member, Outcome
from simulation.workloads.modern import (
    LOST,
    ModernChecks,
    ModernMember,
    raise_versions,
    session_settings,
)
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.scenario import Scenario

GROUP = "mixed"
SINCE = 5_000_000
# A group goes back to the classic protocol when the last native member leaves others behind.
_CLASSIC_SECONDS, _NATIVE_SECONDS = (1.0, 2.0, 4.0), (0.4, 0.8, 1.5)
_LIVES_MIN = 4
_EMBEDDED_VERSION = 1
_ANSWER_SECONDS_MAX = (SESSION_MS + REBALANCE_MS) / 1000
"""Who is answered later may be no member any more: its session ran while its record waited."""


class MixedChecks(ModernChecks):
    """What members of either protocol saw, by lives of the group."""

    def __init__(self, history: History) -> None:
        super().__init__(history, GROUP)
        self._life = 0
        self._lives: dict[str, int] = {}
        self._newest_generation = (-1, 0.0)
        """The largest one in this life, and when somebody was told of it first."""

    def joined(self, member: str, generation: int, sent_at: float) -> bool:
        """See a new life where a generation is none that a newcomer begins.

        That one is larger than all that were told before the newcomer asked.
        """
        newest, told_at = self._newest_generation
        if asyncio.get_running_loop().time() - sent_at > _ANSWER_SECONDS_MAX:
            return False
        if generation < newest and sent_at <= told_at:
            return False
        if generation <= newest and sent_at > told_at:
            self._life += 1
            self._newest_generation = (-1, 0.0)
            self._owners.clear()
            self._newest.clear()
            self._history.reach("a group of both protocols begins a new life")
        self._lives[member] = self._life
        self._told(generation)
        return True

    def left(self, member: str) -> None:
        """Let another have what it had, also in a new life that began at the same generation."""
        for owned in [each for each, owner in self._owners.items() if owner == member]:
            del self._owners[owned]

    def owned(self, generation: int, key: Key, member: str) -> None:
        """As of a consumer group, in the life that the member joined in."""
        if self._lives.get(member) == self._life:
            self._told(generation)
            super().owned(generation, key, member)

    def attempt(self, generation: int, places: dict[Key, int]) -> Outcome:
        """As of a consumer group: a classic member's generation is its member epoch there."""
        return self.attempt_by("", generation, places)

    def _told(self, generation: int) -> None:
        if generation > self._newest_generation[0]:
            self._newest_generation = (generation, asyncio.get_running_loop().time())


class ClassicMember(Member):
    """One that speaks the classic protocol with the embedded one of Kafka's consumers."""

    protocol = ("consumer", "range")

    async def _commit_before_sync(self) -> None:
        """Commit nothing: a consumer group, also Kafka's, takes it, whoever owns what by then."""

    async def _commit_late(self) -> None:
        """Only what nobody has committed beyond.

        A consumer group, also Kafka's, takes it for as long as the former member's session runs,
        and a coordinator that was started again lets that run anew.
        """
        if self._former is not None:
            generation, member, places = self._former
            places = self._checks.not_behind(places)
            self._former = (generation, member, places) if places else None
        await super()._commit_late()

    def _subscription(self) -> bytes:
        return subscription_to({topic for topic, _ in self._partitions})

    def _write_assignment(self, keys: Sequence[Key]) -> bytes:
        message = consumer_protocol_assignment
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(keys):
            by_topic.setdefault(topic, []).append(index)
        found = message.ConsumerProtocolAssignment(
            assigned_partitions=[
                message.TopicPartition(topic=topic, partitions=indexes)
                for topic, indexes in by_topic.items()
            ]
        )
        return _embedded(found)

    def _read_assignment(self, assignment: bytes) -> list[Key]:
        if not assignment:
            return []
        kind = consumer_protocol_assignment.ConsumerProtocolAssignment
        found, _ = decode(kind, assignment, _EMBEDDED_VERSION, 2)
        return [
            (topic.topic, index)
            for topic in found.assigned_partitions
            for index in topic.partitions
        ]


class NativeMember(ModernMember):
    """One that speaks KIP-848's protocol, and finds itself in a classic group after a pause.

    Or in none: the classic one that took its group's place may have ended as well.
    """

    lost = LOST | {ErrorCode.GROUP_ID_NOT_FOUND}

    def _judge(self, what: str, code: ErrorCode) -> None:
        if code is not ErrorCode.GROUP_ID_NOT_FOUND:
            super()._judge(what, code)
            return
        if what == "heartbeat":
            self._client.history.reach("a member of a consumer group finds a classic one")
        self._abandon()


def subscription_to(topics: Collection[str]) -> bytes:
    """Return what a classic member of Kafka's consumers says of itself."""
    found = consumer_protocol_subscription.ConsumerProtocolSubscription(
        topics=sorted(topics), user_data=None, owned_partitions=[]
    )
    return _embedded(found)


def _embedded(message: Any) -> bytes:
    return struct.pack(">h", _EMBEDDED_VERSION) + encode_bytes(message, _EMBEDDED_VERSION)


async def _live(
    client: Client,
    checks: MixedChecks,
    partitions: Sequence[Key],
    is_over: Callable[[], bool],
) -> None:
    """Be one member after another, each with a protocol, until it is over."""
    rng, loop = client.rng, asyncio.get_running_loop()
    lives = 0
    while lives < _LIVES_MIN or not is_over():
        lives += 1
        is_classic = rng.random() < 0.5
        ends_at = loop.time() + rng.choice(_CLASSIC_SECONDS if is_classic else _NATIVE_SECONDS)

        def ends(ends_at: float = ends_at) -> bool:
            return loop.time() >= ends_at

        if is_classic:
            await ClassicMember(client, checks, partitions).run(ends)
        else:
            topics = sorted({topic for topic, _ in partitions})
            await NativeMember(client, checks, topics).run(ends)
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.3)))


def _start(scenario: "Scenario") -> list[Any]:
    checks = MixedChecks(scenario.history)
    rng = scenario.cluster.fork("mixed")
    tasks = []
    for number in range(rng.choice((3, 4))):
        client, process = scenario.client(f"mx{number}")
        raise_versions(client)
        member = _live(client, checks, scenario.profile.places, scenario.is_over)
        tasks.append(scenario.loop.start_task(process, member))
    return tasks


MIXED = Workload(name="mixed", share=0.4, since=SINCE, start=_start, settings=session_settings)
