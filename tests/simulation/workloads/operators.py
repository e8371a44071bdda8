"""What an operator changes while clients work: replicas, leaders, and the quorum's voters."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    add_raft_voter,
    alter_partition_reassignments,
    describe_quorum,
    elect_leaders,
    list_partition_reassignments,
    metadata,
    remove_raft_voter,
)
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.profile import Profile
    from simulation.scenario import Scenario

CONTROLLER_PORT = 9093
# An operator hears these and looks again.
EXPECTED = RETRIABLE | {
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ErrorCode.ELECTION_NOT_NEEDED,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ErrorCode.DUPLICATE_VOTER,
    ErrorCode.VOTER_NOT_FOUND,
}


class Operator:
    """One who changes the cluster under load."""

    def __init__(
        self, client: Client, profile: "Profile", places: list[tuple[str, int]] | None = None
    ) -> None:
        self.client = client
        self._partitions = places or profile.places
        self._brokers = profile.brokers
        self._replicas = profile.replicas

    async def reassign(self, is_over: Callable[[], bool]) -> None:
        """Move replicas and leaders about; at the end every move must come to its end."""
        rng = self.client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(2))
            topic, partition = rng.choice(self._partitions)
            try:
                if rng.random() < 0.3:
                    await self._elect(topic, partition)
                else:
                    await self._move(topic, partition)
            except FAILURES:
                continue
        await self.client.until(self._moves_are_done)

    async def _move(self, topic: str, partition: int) -> None:
        rng = self.client.rng
        target = rng.sample(list(self._brokers), self._replicas)
        is_cancelled = rng.random() < 0.15
        await self._assign(topic, partition, None if is_cancelled else target)

    async def lead(self, place: tuple[str, int], order: list[int]) -> None:
        """Have the first of a partition's replicas lead it, if it is in sync."""
        await self._assign(*place, order)
        await self._elect(*place)

    async def _assign(self, topic: str, partition: int, target: list[int] | None) -> None:
        messages = alter_partition_reassignments
        request = messages.AlterPartitionReassignmentsRequest(
            timeout_ms=1500,
            topics=[
                messages.ReassignableTopic(
                    name=topic,
                    partitions=[
                        messages.ReassignablePartition(partition_index=partition, replicas=target)
                    ],
                )
            ],
        )
        response = await self.client.any_call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        self._judge("reassign", response.error_code)
        for answer in response.responses:
            self._judge("reassign", answer.partitions[0].error_code)

    async def _elect(self, topic: str, partition: int) -> None:
        request = elect_leaders.ElectLeadersRequest(
            topic_partitions=[elect_leaders.TopicPartitions(topic=topic, partitions=[partition])],
            timeout_ms=1500,
        )
        response = await self.client.any_call(ApiKey.ELECT_LEADERS, request)
        self._judge("elect", response.error_code)

    async def _moves_are_done(self) -> bool | None:
        request = list_partition_reassignments.ListPartitionReassignmentsRequest(timeout_ms=1500)
        response = await self.client.any_call(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
        self._judge("list reassignments", response.error_code)
        return None if response.error_code or response.topics else True

    async def change_voters(
        self, is_over: Callable[[], bool], hosts: dict[int, str], fewest: int
    ) -> None:
        """Remove voters and add observers, one at a time, as KIP-853 has it."""
        while not is_over():
            await asyncio.sleep(self.client.rng.expovariate(1.5))
            try:
                await self._change_voters(hosts, fewest)
            except FAILURES:
                continue

    async def _change_voters(self, hosts: dict[int, str], fewest: int) -> None:
        request = describe_quorum.DescribeQuorumRequest(
            topics=[
                describe_quorum.DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[
                        describe_quorum.DescribeQuorumRequestPartitionData(partition_index=0)
                    ],
                )
            ]
        )
        response = await self.client.any_call(ApiKey.DESCRIBE_QUORUM, request)
        if response.error_code or not response.topics:
            return
        quorum = response.topics[0].partitions[0]
        if quorum.error_code:
            return
        rng = self.client.rng
        candidates = [item for item in quorum.observers if item.replica_id in hosts]
        if len(quorum.current_voters) > fewest and (not candidates or rng.random() < 0.5):
            await self._remove(rng.choice(quorum.current_voters))
        elif candidates:
            await self._add(rng.choice(candidates), hosts)

    async def _remove(self, voter: Any) -> None:
        request = remove_raft_voter.RemoveRaftVoterRequest(
            cluster_id=None,
            voter_id=voter.replica_id,
            voter_directory_id=voter.replica_directory_id,
        )
        response = await self.client.any_call(ApiKey.REMOVE_RAFT_VOTER, request)
        self._judge("remove voter", response.error_code)

    async def _add(self, observer: Any, hosts: dict[int, str]) -> None:
        listener = add_raft_voter.Listener(
            name="CONTROLLER", host=hosts[observer.replica_id], port=CONTROLLER_PORT
        )
        request = add_raft_voter.AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=1500,
            voter_id=observer.replica_id,
            voter_directory_id=observer.replica_directory_id,
            listeners=[listener],
        )
        response = await self.client.any_call(ApiKey.ADD_RAFT_VOTER, request)
        self._judge("add voter", response.error_code)

    async def converged(self) -> bool | None:
        """Return True when every partition has a leader and all its replicas in sync."""
        request = metadata.MetadataRequest(topics=None)
        response = await self.client.any_call(ApiKey.METADATA, request)
        if len(response.brokers) < len(self._brokers):
            return None
        for topic in response.topics:
            for partition in topic.partitions:
                in_sync, replicas = set(partition.isr_nodes), set(partition.replica_nodes)
                if partition.leader_id < 0 or in_sync != replicas:
                    return None
        return True

    def _judge(self, what: str, code: int) -> None:
        if code and code not in EXPECTED:
            self.client.history.violate("operator", f"{what}: {ErrorCode(code).name}")


def _start_reassignments(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("moves")
    operator = Operator(client, scenario.profile)
    return [scenario.loop.start_task(process, operator.reassign(scenario.is_over))]


def _start_voters(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("voters")
    nodes = scenario.cluster.nodes
    hosts = {number: nodes[number - 1].host for number in scenario.profile.controllers}
    fewest = scenario.rng.choice((1, 2))
    changes = Operator(client, scenario.profile).change_voters(scenario.is_over, hosts, fewest)
    return [scenario.loop.start_task(process, changes)]


def _has_several_nodes(profile: "Profile") -> bool:
    return profile.nodes > 1


REASSIGNMENTS = Workload(
    name="reassign", share=0.35, start=_start_reassignments, needs=_has_several_nodes
)
VOTERS = Workload(name="voters", share=0.35, start=_start_voters, needs=_has_several_nodes)
