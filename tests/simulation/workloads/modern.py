"""Members of a consumer group (KIP-848) that join, leave, die, sleep too long, and commit.

The coordinator assigns; a member gives up what is taken from it, says so, and only then another
gets it. So a partition is never given to two members in one member epoch, and once another member
has it in a later epoch, no commit of a former epoch is taken.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import consumer_group_heartbeat
from simulation.client import FAILURES, METADATA_IDS_FROM, Client
from simulation.history import History
from simulation.retries import RETRIABLE
from simulation.workloads.consumers import Consumer, Key
from simulation.workloads.members import GroupChecks, Outcome
from simulation.workloads.offsets import GroupOffsets
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.profile import Profile
    from simulation.scenario import Scenario

GROUP = "moderns"
SINCE = 4000
REBALANCE_MS = 1500
MEMBER_EPOCHS_FROM = 9
_JOIN, _LEAVE = 0, -1
LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


class ModernChecks(GroupChecks):
    """What all members saw, held together: a partition's owner has the largest member epoch."""

    def __init__(self, history: History, group: str = GROUP) -> None:
        super().__init__(history, group)
        self._newest: dict[Key, tuple[int, str]] = {}

    def owned(self, generation: int, key: Key, member: str) -> None:
        """Note that a member has a partition in its epoch."""
        super().owned(generation, key, member)
        self._newest[key] = max(self._newest.get(key, (-1, "")), (generation, member))

    def attempt_by(self, member: str, epoch: int, places: dict[Key, int]) -> Outcome:
        """As `attempt`: only who has lost a partition to a later epoch commits it no more."""
        former = {
            key: newest
            for key in places
            if (newest := self._newest.get(key, (-1, "")))[0] > epoch and newest[1] != member
        }
        if former:
            self._history.reach("a member of a consumer group commits with a former epoch")
        self.generation = -1
        judge = super().attempt(epoch, places)

        def heard(key: Key, code: ErrorCode | None) -> None:
            if key in former and code is ErrorCode.NONE:
                self._history.violate(
                    "former-owner-commits",
                    f"{places[key]} of {key} by {member} in epoch {epoch}, when {former[key]} "
                    "had it",
                )
            judge(key, code)

        return heard


class ModernMember:
    """One consumer of all topics; the coordinator assigns."""

    lost = LOST
    """What a member hears that is none any more."""

    def __init__(self, client: Client, checks: ModernChecks, topics: Sequence[str]) -> None:
        self._client = client
        self._checks = checks
        self._topics = list(topics)
        self._subscribed = list(topics)
        self._offsets = GroupOffsets(client, checks.group)
        self._assignor = client.rng.choice((None, "uniform", "range"))
        self._epoch = _JOIN
        self._lives = 0
        self._owned: set[Key] = set()
        self._says_owned = True
        self._former: tuple[str, int, dict[Key, int]] | None = None
        """Id, epoch and positions of what was taken from us."""
        self._consumer: Consumer | None = None
        self._new_id()

    def _new_id(self) -> None:
        self._lives += 1
        self._remember()
        self._consumer = None  # what it had was the former id's
        self._id = str(uuid.UUID(int=self._client.rng.getrandbits(128), version=4))
        self._abandon()

    def _abandon(self) -> None:
        """Have nothing any more, and join again under the same id."""
        self._remember()
        self._checks.left(self._id)
        self._epoch = _JOIN
        self._owned = set()
        self._consumer = None
        self._says_owned = True

    def _remember(self) -> None:
        if self._consumer is not None and self._owned:
            places = {key: self._consumer.positions[key] for key in self._owned}
            self._former = (self._id, self._epoch, places)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Join, work and leave, or die without a word, until it is over."""
        rng = self._client.rng
        while not is_over():
            try:
                await self._step()
            except FAILURES:
                self._says_owned = True  # the answer may be lost, or what we said
            if rng.random() < 0.02:
                if rng.random() < 0.5:
                    await self._leave()
                self._new_id()
            if rng.random() < 0.03:
                # A stop-the-world pause: when it is over the group may have gone on without us.
                await asyncio.sleep(rng.choice((0.5, 1.5, 2.5)))
                await self._commit()
            await asyncio.sleep(rng.expovariate(15))
        await self._leave()

    async def _step(self) -> None:
        rng = self._client.rng
        if rng.random() < 0.5 or self._epoch == _JOIN or self._says_owned:
            await self._heartbeat()
        if self._former is not None and rng.random() < 0.2:
            await self._commit_late()
        if self._consumer is not None:
            await self._consumer.poll()
            if rng.random() < 0.4:
                await self._commit()

    # ---- the group

    async def _heartbeat(self) -> None:
        client, messages = self._client, consumer_group_heartbeat
        if client.rng.random() < 0.02:
            self._subscribed = sorted(client.rng.sample(self._topics, 1))
            self._says_owned = True
        is_new, sent_at = self._epoch == _JOIN, asyncio.get_running_loop().time()
        is_whole = is_new or self._says_owned
        owned: list[Any] | None = None
        if is_whole:
            for topic in self._topics:
                await client.topic_id(topic)
            by_topic: dict[str, list[int]] = {}
            for topic, index in sorted(self._owned):
                by_topic.setdefault(topic, []).append(index)
            owned = [
                messages.ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=client.ids[topic], partitions=indexes
                )
                for topic, indexes in by_topic.items()
            ]
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=self._checks.group,
            member_id=self._id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=REBALANCE_MS if is_whole else -1,
            subscribed_topic_names=self._subscribed if is_whole else None,
            server_assignor=self._assignor if is_whole else None,
            topic_partitions=owned,
        )
        response = await self._call(request)
        code = ErrorCode(response.error_code)
        if code:
            self._judge("heartbeat", code)
            return
        self._says_owned = False
        self._epoch = response.member_epoch
        if is_new and not self._checks.joined(self._id, self._epoch, sent_at):
            await self._leave()
            self._new_id()
            return
        if response.assignment is not None:
            await self._assign(response.assignment)
        for key in sorted(self._owned):
            self._checks.owned(self._epoch, key, self._id)

    async def _assign(self, assignment: Any) -> None:
        """Give up what is not ours any more, and begin with what is new."""
        client = self._client
        given = {
            (client.names[topic.topic_id], index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        }
        lost = self._owned - given
        if lost:
            client.history.reach("a member of a consumer group gives partitions up")
            await self._commit()
            if self._epoch == _JOIN:
                return  # it heard that it is no member any more
            self._remember()
            self._says_owned = True
        if given == self._owned:
            return
        before = dict(self._consumer.positions) if self._consumer is not None else {}
        for key in sorted(given):
            self._checks.owned(self._epoch, key, self._id)
        fresh = sorted(given - self._owned)
        self._owned &= given
        # What it does not know the position of is not its own yet, as far as it says.
        self._lives += 1
        consumer = Consumer(client, f"{client.name}.{self._lives}", sorted(given))
        for key in sorted(given):
            if key in fresh:
                known = self._checks.known(key)
                found = await self._offsets.committed(key, known)
                self._checks.found(key, known, found)
                before[key] = max(0, found)
            consumer.positions[key] = before[key]
        self._owned = given
        self._consumer = consumer if given else None
        self._says_owned = True

    async def _commit(self) -> None:
        """Commit once. After an unknown outcome this member starts over, under another id."""
        if self._consumer is None:
            return
        places = {key: self._consumer.positions[key] for key in sorted(self._owned)}
        if not places:
            return
        heard = self._checks.attempt_by(self._id, self._epoch, places)
        codes = await self._offsets.commit(places, generation=self._epoch, member=self._id)
        for key, code in codes.items():
            heard(key, code)
            if code and code is not ErrorCode.STALE_MEMBER_EPOCH:
                self._judge("commit", code)
        if None in codes.values():
            await self._leave()
            self._new_id()

    async def _commit_late(self) -> None:
        """Send what a thread of ours still had to commit from before it was taken from us.

        Only what nobody has committed beyond: who has the same id and epoch again is no zombie.
        """
        if self._former is None:
            return
        (member, epoch, places), self._former = self._former, None
        places = self._checks.not_behind(places)
        if not places:
            return
        heard = self._checks.attempt_by(member, epoch, places)
        codes = await self._offsets.commit(places, generation=epoch, member=member)
        for key, code in codes.items():
            # What is ours again we may have read from further back: our next commit says so.
            if key not in self._owned:
                heard(key, code)
            usual = self.lost | RETRIABLE | {ErrorCode.STALE_MEMBER_EPOCH}
            if code and code not in usual:
                self._client.history.violate("group", f"a late commit: {code.name}")

    async def _leave(self) -> None:
        self._checks.left(self._id)
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=self._checks.group, member_id=self._id, member_epoch=_LEAVE
        )
        try:
            await self._call(request)
        except FAILURES:
            return

    async def _call(self, request: Any) -> Any:
        caller = await self._client.coordinator(self._checks.group)
        if caller is None:
            raise OSError("no coordinator")
        return await self._client.call(caller, ApiKey.CONSUMER_GROUP_HEARTBEAT, request)

    def _judge(self, what: str, code: ErrorCode) -> None:
        if code in self.lost:
            self._client.history.reach("a member of a consumer group is fenced")
            self._abandon()
        elif code in RETRIABLE:
            self._says_owned = True
        else:
            self._client.history.violate("consumer-group", f"{what}: {code.name}")


def raise_versions(client: Client) -> None:
    """Let a client speak versions that know topic ids and member epochs."""
    versions = client.versions
    versions[ApiKey.METADATA] = max(versions[ApiKey.METADATA], METADATA_IDS_FROM)
    versions[ApiKey.OFFSET_COMMIT] = max(versions[ApiKey.OFFSET_COMMIT], MEMBER_EPOCHS_FROM)


def _start(scenario: "Scenario") -> list[Any]:
    checks = ModernChecks(scenario.history)
    rng = scenario.cluster.fork("moderns")
    tasks = []
    for number in range(rng.choice((2, 3))):
        client, process = scenario.client(f"mm{number}")
        raise_versions(client)
        member = ModernMember(client, checks, list(scenario.profile.topics))
        tasks.append(scenario.loop.start_task(process, member.run(scenario.is_over)))
    return tasks


def session_settings(rng: random.Random, _profile: "Profile") -> dict[str, str]:
    """Let members of consumer groups be missed within a second or two."""
    return {
        "group.consumer.session.timeout.ms": str(rng.choice((700, 1500))),
        "group.consumer.min.session.timeout.ms": "500",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "100",
    }


MODERNS = Workload(name="modern", share=0.3, since=SINCE, start=_start, settings=session_settings)
