"""Who speaks of what is over, or never was: in the seeds from `SINCE` on.

A member that has left commits in the generation that it was in, and one that is behind asks for
its assignment. A leader takes for in sync who has another process, or none, and a controller is
announced in an epoch that is over. A coordinator sends the marker of a producer's former epoch. And
a producer that begins a new epoch begins it in its middle. From `COMMITTERS_SINCE` on a member that
is a generation behind commits in a transaction, too, and one of a consumer group that is an epoch
behind reads its offsets, and beats. Each is refused; what is done of it is judged where it is
decided, and by what it hears.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    alter_partition,
    begin_quorum_epoch,
    consumer_group_heartbeat,
    offset_commit,
    offset_fetch,
    sync_group,
    write_txn_markers,
)
from simulation.atomicity import Atomicity
from simulation.client import FAILURES, Client
from simulation.history import Status, asked_set
from simulation.retries import NOT_APPLIED
from simulation.workloads.former_processes import FormerProcesses
from simulation.workloads.operators import CONTROLLER_PORT
from simulation.workloads.producers import Producer
from simulation.workloads.transactional import AbortableError, FencedError, Worker
from simulation.workloads.workload import COMMITTERS_SINCE, STRANGERS_SINCE, Workload
from simulation.workloads.zombies import FormerCoordinator, Marked

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node
    from simulation.scenario import Scenario

_MEMBERS_READ_FROM = 9
_LATE_EPOCH = 4
_SKIPPED = 3
"""So many records the new epoch seems to have written before its first batch."""


def classic_members(cluster: "Cluster") -> Iterator[tuple[str, int, str]]:
    """Yield group, generation and member id of all that the nodes know."""
    for node in cluster.nodes:
        broker: Any = node.broker
        for shard in broker.groups._shards.values() if broker and node.is_ready else ():
            for name, group in sorted(shard.shard.groups.items()):
                for member in sorted(group.members):
                    yield name, int(group.generation), member


class FormerMembers:
    """Commits and syncs of members that have left, or are a generation behind."""

    def __init__(self, client: Client, cluster: "Cluster") -> None:
        self._client = client
        self._cluster = cluster

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Speak until it is over."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(4))
            known = list(classic_members(self._cluster))
            if not known:
                continue
            speak = rng.choice((self._commit, self._sync))
            try:
                await speak(*rng.choice(known))
            except FAILURES:
                continue

    async def _commit(self, group: str, generation: int, member: str) -> None:
        """Commit in the present generation, by an id that it has no member of."""
        client, (topic, index) = self._client, self._client.rng.choice(self._places())
        asked = offset_commit.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=0
                )
            ],
        )
        if client.speaks_ids(ApiKey.OFFSET_COMMIT):
            asked.topic_id = await client.topic_id(topic)
        request = offset_commit.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=f"{member[:-1]}~",
            topics=[asked],
        )
        caller = await client.coordinator(group)
        if caller is not None:
            answer = await client.call(caller, ApiKey.OFFSET_COMMIT, request)
            if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                client.history.violate("stranger-commits", f"{request.member_id} in {group}")
            client.history.reach("somebody who is no member commits")

    def _places(self) -> list[tuple[str, int]]:
        return self._cluster.profile.places

    async def _sync(self, group: str, generation: int, member: str) -> None:
        """Ask for the assignment of the generation before the present one."""
        client = self._client
        request = sync_group.SyncGroupRequest(
            group_id=group, generation_id=generation - 1, member_id=member
        )
        caller = await client.coordinator(group)
        if caller is not None:
            await client.call(caller, ApiKey.SYNC_GROUP, request)
            client.history.reach("a member syncs in a former generation")


class FormerCommitter(Worker):
    """A consumer that is a generation behind, and commits in its producer's transaction."""

    def __init__(self, client: Client, cluster: "Cluster", now: Callable[[], float]) -> None:
        super().__init__(client, Atomicity(client.history, now), "former-committer")
        self._cluster = cluster

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Commit until it is over."""
        rng = self.client.rng
        while not is_over():
            producer = await self.new_producer()
            may_go_on = True
            while may_go_on and not is_over():
                await asyncio.sleep(rng.expovariate(4))
                known = list(classic_members(self._cluster))
                if not known:
                    continue
                group, generation, member = rng.choice(known)
                transaction = producer.begin()
                place = rng.choice(self._cluster.profile.places)
                try:
                    await producer.commit_offsets(
                        group, {place: 0}, generation=generation - 1, member=member
                    )
                    # A coordinator's successor may not know the newest generation.
                    await producer.end(transaction, commits=False)
                except FencedError:
                    may_go_on = False
                except AbortableError:
                    may_go_on = await self.give_up(producer, transaction)


class FormerOwner:
    """A member of a consumer group that is behind: it reads offsets, and beats (KIP-848)."""

    def __init__(self, client: Client, cluster: "Cluster") -> None:
        client.versions[ApiKey.OFFSET_FETCH] = _MEMBERS_READ_FROM
        self._client = client
        self._cluster = cluster

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Read until it is over."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(4))
            known = list(self._members())
            if known:
                speak = rng.choice((self._read, self._beat))
                try:
                    await speak(*rng.choice(known))
                except FAILURES:
                    continue

    def _members(self) -> Iterator[tuple[str, str, int]]:
        for node in self._cluster.nodes:
            broker: Any = node.broker
            for shard in broker.groups._shards.values() if broker and node.is_ready else ():
                for name, group in sorted(shard.shard.consumer_groups.items()):
                    for member_id, member in sorted(group.members.items()):
                        yield name, member_id, int(member.epoch)

    async def _read(self, group: str, member_id: str, epoch: int) -> None:
        topic, index = self._client.rng.choice(self._cluster.profile.places)
        asked = offset_fetch.OffsetFetchRequestGroup(
            group_id=group,
            member_id=member_id,
            member_epoch=max(0, epoch - 1),
            topics=[offset_fetch.OffsetFetchRequestTopics(name=topic, partition_indexes=[index])],
        )
        caller = await self._client.coordinator(group)
        if caller is not None:
            request = offset_fetch.OffsetFetchRequest(groups=[asked])
            await self._client.call(caller, ApiKey.OFFSET_FETCH, request)

    async def _beat(self, group: str, member_id: str, epoch: int) -> None:
        """Beat in the first epoch, which no coordinator's successor goes back to by then."""
        caller = None if epoch < _LATE_EPOCH else await self._client.coordinator(group)
        if caller is not None:
            request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=group, member_id=member_id, member_epoch=1
            )
            await self._client.call(caller, ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
            self._client.history.reach("a member of a consumer group beats in a former epoch")


class FormerRegistrations(FormerProcesses):
    """Takes for in sync who has another process by now, or none; announces a former controller."""

    def _words(self) -> Sequence[Callable[["Node"], Awaitable[None]]]:
        return (self._join, self._join, self._announce)

    async def _join(self, node: "Node") -> None:
        """Ask for an in-sync set with a replica in words that are true of nobody any more."""
        partition = self._led(node)
        brokers = node.broker.metadata.brokers  # type: ignore[union-attr]  # it is ready
        if partition is None or not set(partition.replicas) <= brokers.keys():
            return
        members = [
            alter_partition.BrokerState(broker_id=each, broker_epoch=brokers[each].epoch)
            for each in partition.in_sync_replicas
        ]
        one = self._client.rng.choice([each for each in partition.replicas if each != node.node_id])
        members = [each for each in members if each.broker_id != one]
        # One that is fenced, and has no process, does not come back under this epoch.
        is_gone = brokers[one].fenced and not self._cluster.nodes[one - 1].is_running
        epoch = brokers[one].epoch - (not is_gone)
        members.append(alter_partition.BrokerState(broker_id=one, broker_epoch=epoch))
        data = alter_partition.AlterPartitionRequestPartitionData(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=members,
        )
        topic = alter_partition.AlterPartitionRequestTopicData(
            topic_id=partition.topic_id, partitions=[data]
        )
        request = alter_partition.AlterPartitionRequest(
            broker_id=node.node_id, broker_epoch=brokers[node.node_id].epoch, topics=[topic]
        )
        # Unlike a leader, it may ask a former controller with what a newer one has committed.
        self._client.history.forged.add(asked_set(partition.topic_id, data))
        await self._tell_controller(ApiKey.ALTER_PARTITION, request)
        kind = "a fenced one" if is_gone else "a former process"
        self._client.history.reach(f"a leader takes {kind} for in sync")

    async def _announce(self, node: "Node") -> None:
        """Announce a controller of the epoch before a voter's own."""
        quorum: Any = node.broker._metadata_quorum  # type: ignore[union-attr]  # it is ready
        voters = [each for each in self._cluster.profile.voters if each != node.node_id]
        epoch = int(quorum.driver.node.epoch) - 1
        if node.node_id not in self._cluster.profile.controllers or not voters or epoch < 0:
            return
        announced = begin_quorum_epoch.BeginQuorumEpochRequestPartitionData(
            leader_id=self._client.rng.choice(voters), leader_epoch=epoch
        )
        topic = begin_quorum_epoch.BeginQuorumEpochRequestTopicData(
            topic_name="__cluster_metadata", partitions=[announced]
        )
        request = begin_quorum_epoch.BeginQuorumEpochRequest(topics=[topic])
        caller = await self._client.caller((node.host, CONTROLLER_PORT))
        await self._client.call(caller, ApiKey.BEGIN_QUORUM_EPOCH, request, 0)
        self._client.history.reach("a former controller announces itself")


class FormerEpochs(FormerCoordinator):
    """Sends the markers of a producer's former epoch, as the coordinator that there is."""

    def _marker(self, marked: Marked) -> write_txn_markers.WritableTxnMarker:
        topic, index = marked.key
        return write_txn_markers.WritableTxnMarker(
            producer_id=marked.producer_id,
            producer_epoch=marked.epoch - 1,
            transaction_result=self._client.rng.random() < 0.5,
            topics=[
                write_txn_markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])
            ],
            coordinator_epoch=marked.coordinator_epoch,
            transaction_version=self._client.rng.choice((0, 2)),
        )

    def _may_send(self, marked: Marked) -> bool:
        return marked.epoch > 0

    def _taken(self, text: str) -> None:
        self._client.history.violate("fenced-marker", text)


class Leaper(Producer):
    """Writes a batch, and begins its next epoch in the middle, with a new id each time."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Leap until it is over."""
        self.is_idempotent, self.acks, self.in_flight_max, self.retries = True, -1, 1, True
        self.is_promised = True
        (lane,) = self._lanes
        while not is_over():
            await self._begin()
            lane.window = [self._next_batch(lane)]
            while lane.window:
                await self._round()
                await self._think()
            if lane.is_known and not is_over():
                await self._leap()
            await asyncio.sleep(self.client.rng.expovariate(3))

    async def _leap(self) -> None:
        (lane,) = self._lanes
        self._id = (self._id[0], self._id[1] + 1)
        self._begin_epoch(lane)
        lane.first_sequence -= _SKIPPED
        batch = self._next_batch(lane)
        try:
            caller, _ = await self.client.leader(lane.topic, lane.partition)
            answer = await self.client.wait(caller, self._send(caller, [(lane, batch)]))
        except FAILURES:
            self.client.forget(lane.topic, lane.partition)
            return  # nobody knows what became of it
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        self.client.heard(lane.topic, lane.partition, code)
        if code is ErrorCode.NONE:
            # A leader that does not know the producer any more takes any sequence.
            for place, write in enumerate(batch.writes):
                self.client.history.acknowledged(write, result.base_offset + place)
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or code in NOT_APPLIED:
            self._give_up(lane, batch, Status.FAILED)
            self.client.history.reach("a new producer epoch begins in its middle")


def _start(scenario: "Scenario") -> list[Any]:
    tasks, cluster, profile = [], scenario.cluster, scenario.profile

    def start(name: str, make: Callable[[Client], Any]) -> None:
        client, process = scenario.client(name)
        tasks.append(scenario.loop.start_task(process, make(client).run(scenario.is_over)))

    place = cluster.fork("leaper").choice(profile.places)
    start("xl", lambda client: Leaper(client, [place], replicas=profile.replicas))
    start("xm", lambda client: FormerMembers(client, cluster))
    if len(profile.brokers) > 1:
        start("xr", lambda client: FormerRegistrations(client, cluster))
    if "transactions" in profile.works:
        start("xe", lambda client: FormerEpochs(client, cluster))
    if cluster.seed < COMMITTERS_SINCE:
        return tasks
    start("xo", lambda client: FormerOwner(client, cluster))
    if "transactions" in profile.works:
        start("xc", lambda client: FormerCommitter(client, cluster, scenario.loop.time))
    return tasks


STRANGERS = Workload(name="strangers", share=0.5, since=STRANGERS_SINCE, start=_start)
