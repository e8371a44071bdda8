"""The driver: answers wait for the commit, failures reload, timers run on the loop's clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.log.markers import Marker
from headrace_broker.log.verification import TRUSTED
from headrace_broker.protocol.batch import HEADER_SIZE
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace_broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace_broker.protocol.types import PartitionIndex
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.groups.group_driver import GroupCoordinator
from headrace_broker.server.network.context import RequestContext
from support.groups import subscription

CONTEXT = RequestContext(
    api_version=8,
    correlation_id=1,
    client_id="c",
    client_address="127.0.0.1",
    listener="PLAINTEXT",
    connection_id=1,
)
CONFIG = GroupConfig(
    offsets_topic_partitions=1, initial_rebalance_delay_ms=0, session_timeout_ms_min=100
)
ONLY = PartitionIndex(0)


class MemoryLog:
    """A log in memory whose commits can be held up, or fail."""

    batch_bytes_max = 1_000_000

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.failure: Exception | None = None

    @property
    def end_offset(self) -> int:
        return len(self.batches)

    @property
    def record_bytes_max(self) -> int:
        return self.batch_bytes_max - HEADER_SIZE

    async def append(self, batch: bytes) -> None:
        if len(batch) > self.batch_bytes_max:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        await self.may_commit.wait()
        if self.failure is not None:
            raise self.failure
        self.batches.append(batch)

    def append_transactional(self, batch: bytearray, verification: object) -> int:
        del verification
        if self.failure is not None:
            raise self.failure
        self.batches.append(bytes(batch))
        return len(self.batches)

    def append_marker(self, marker: Marker) -> int:
        return self.append_transactional(marker.batch(0), None)

    async def wait_committed(self, end: int) -> None:
        assert end <= len(self.batches)
        await self.may_commit.wait()

    async def read_all(self) -> AsyncIterator[bytes]:
        for batch in self.batches:
            yield batch


def run(
    scenario: Callable[[GroupCoordinator, MemoryLog], Awaitable[None]], config: GroupConfig = CONFIG
) -> None:
    async def main() -> None:
        coordinator, log = GroupCoordinator(config, SystemClock()), MemoryLog()
        coordinator.start()
        await coordinator.load(ONLY, log)
        try:
            async with asyncio.timeout(20):
                await scenario(coordinator, log)
        finally:
            coordinator.close()

    asyncio.run(main())


def commit(coordinator: GroupCoordinator, offset: int, group_id: str = "g") -> "asyncio.Task":
    request = OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(committed_offset=offset)],
            )
        ],
    )
    return asyncio.ensure_future(
        coordinator.commit_offsets(request, CONTEXT, lambda _topic, _index: ErrorCode.NONE)
    )


async def committed(coordinator: GroupCoordinator) -> int:
    request = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    answer = await coordinator.fetch_offsets(
        request, lambda _name: UUID(int=0), require_stable=False
    )
    return answer.topics[0].partitions[0].committed_offset


async def join(coordinator: GroupCoordinator, member_id: str = "", timeout_ms: int = 100):
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=5_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    return await coordinator.join_group(request, CONTEXT)


async def become_member(coordinator: GroupCoordinator, timeout_ms: int = 100):
    first = await join(coordinator, timeout_ms=timeout_ms)
    joined = await join(coordinator, first.member_id, timeout_ms)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    await coordinator.sync_group(request, CONTEXT)
    return joined


def beat(coordinator: GroupCoordinator, member) -> ErrorCode:
    request = HeartbeatRequest(
        group_id="g", generation_id=member.generation_id, member_id=member.member_id
    )
    try:
        return ErrorCode(coordinator.heartbeat(request, CONTEXT).error_code)
    except ApiError as error:
        return error.code


def test_a_commit_is_answered_and_read_only_when_it_is_in_the_log():
    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        log.may_commit.clear()
        writing = commit(coordinator, 7)
        await asyncio.sleep(0)
        reading = asyncio.ensure_future(committed(coordinator))
        await asyncio.sleep(0.05)
        assert not writing.done()
        assert not reading.done()
        log.may_commit.set()
        assert (await writing).topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await reading == 7

    run(scenario)


def commit_in_a_transaction(coordinator: GroupCoordinator, offset: int) -> "asyncio.Task":
    partition = TxnOffsetCommitRequestPartition(committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id="app",
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    return asyncio.ensure_future(
        coordinator.commit_transactional(
            request, CONTEXT, lambda _topic, _index: ErrorCode.NONE, TRUSTED
        )
    )


MARKER = Marker(7, 1, 0, commits=True, bumped_epoch=True)


def test_commits_are_in_the_log_in_the_order_in_which_they_were_taken():
    """The next coordinator goes by the log: the group would go back to an earlier commit."""

    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        log.may_commit.clear()
        plain = commit(coordinator, 5)
        await asyncio.sleep(0)
        transactional = commit_in_a_transaction(coordinator, 9)
        await asyncio.sleep(0.01)
        log.may_commit.set()
        await asyncio.gather(plain, transactional)
        await coordinator.write_marker(ONLY, MARKER)
        assert await committed(coordinator) == 9
        await coordinator.load(ONLY, log)
        assert await committed(coordinator) == 9

    run(scenario)


def test_a_marker_is_answered_when_it_is_committed():
    """The transaction is over then, and nobody sends the marker again."""

    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        await commit_in_a_transaction(coordinator, 9)
        log.may_commit.clear()
        marking = asyncio.ensure_future(coordinator.write_marker(ONLY, MARKER))
        done, _ = await asyncio.wait([marking], timeout=0.05)
        assert not done
        log.may_commit.set()
        await marking
        assert await committed(coordinator) == 9

    run(scenario)


def test_what_was_loaded_is_told_only_when_it_is_committed():
    """A new leader's log may end in records that are lost with it (as in Kafka's runtime)."""

    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        await commit(coordinator, 7)
        member = await become_member(coordinator, timeout_ms=5_000)
        log.may_commit.clear()
        await coordinator.load(ONLY, log)
        told = [
            asyncio.ensure_future(work)
            for work in (committed(coordinator), join(coordinator, member.member_id, 5_000))
        ]
        done, _ = await asyncio.wait(told, timeout=0.05)
        assert not done
        log.may_commit.set()
        assert await told[0] == 7
        assert (await told[1]).generation_id >= member.generation_id

    run(scenario)


def test_what_was_loaded_and_is_lost_with_its_leader_is_never_told():
    class Former(MemoryLog):
        async def wait_committed(self, end: int) -> None:
            await super().wait_committed(end)
            if self.failure is not None:
                raise self.failure

    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        await commit(coordinator, 7)
        former = Former()
        former.batches = log.batches
        former.may_commit.clear()
        former.failure = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await coordinator.load(ONLY, former)
        reading = asyncio.ensure_future(committed(coordinator))
        await asyncio.sleep(0.05)
        former.may_commit.set()
        with pytest.raises(ApiError) as error:
            await reading
        assert error.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_commits_that_come_together_share_a_batch():
    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        await asyncio.gather(*(commit(coordinator, offset) for offset in range(100)))
        assert len(log.batches) == 1
        assert await committed(coordinator) == 99

    run(scenario)


def test_heartbeats_are_answered_while_the_log_is_slow():
    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        member = await become_member(coordinator)
        log.may_commit.clear()
        writing = commit(coordinator, 1, group_id="another")
        await asyncio.sleep(0.01)
        assert beat(coordinator, member) == ErrorCode.NONE
        assert not writing.done()
        log.may_commit.set()
        await writing

    run(scenario)


def test_nobody_waits_for_ever_for_a_log_that_commits_nothing():
    """offsets.commit.timeout.ms: each is answered in its time, and what was written stays."""

    async def scenario(coordinator, log):
        log.may_commit.clear()
        began = asyncio.get_running_loop().time()
        first = commit(coordinator, 1)
        await asyncio.sleep(0.1)
        second, reader = commit(coordinator, 2), asyncio.ensure_future(committed(coordinator))
        for task in (first, second, reader):
            with pytest.raises(ApiError) as refused:
                await task
            assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert asyncio.get_running_loop().time() - began >= 0.3
        log.may_commit.set()
        third = await commit(coordinator, 3)
        assert third.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await committed(coordinator) == 3
        assert len(log.batches) >= 2

    run(scenario, replace(CONFIG, commit_timeout_ms=300))


def subscribe(coordinator: GroupCoordinator, topics: list[str], group_id: str) -> "asyncio.Task":
    request = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=topics,
        topic_partitions=[],
    )
    return asyncio.ensure_future(coordinator.consumer_heartbeat(request, CONTEXT))


@pytest.mark.parametrize("of_topic", [False, True], ids=["broker's limit", "topic's limit"])
def test_a_member_whose_record_the_log_would_refuse_is_refused_alone(of_topic):
    """Otherwise all groups of the partition would be loaded again, whenever it asks again."""

    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        if of_topic:
            log.batch_bytes_max = 10_000
        member = await become_member(coordinator, timeout_ms=5_000)
        other = commit(coordinator, 1, "other")
        huge = subscribe(coordinator, [f"topic-{number}" for number in range(10_000)], "huge")
        usual = subscribe(coordinator, ["t"], "usual")
        with pytest.raises(ApiError) as refused:
            await huge
        assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        await other
        assert (await usual).error_code == ErrorCode.NONE
        assert beat(coordinator, member) == ErrorCode.NONE
        assert {group.group_id for group in coordinator.groups()} == {"g", "other", "usual"}
        assert (await subscribe(coordinator, ["t"], "huge")).error_code == ErrorCode.NONE

    limit = CONFIG.record_bytes_max if of_topic else 10_000
    run(scenario, replace(CONFIG, record_bytes_max=limit))


def test_an_offset_whose_metadata_no_record_can_hold_is_refused_alone():
    async def scenario(coordinator: GroupCoordinator, _log: MemoryLog) -> None:
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=7, committed_metadata="x" * size
            )
            for index, size in enumerate((0, 2_000_000, 10))
        ]
        request = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
        )
        answer = await coordinator.commit_offsets(
            request, CONTEXT, lambda _topic, _index: ErrorCode.NONE
        )
        assert [each.error_code for each in answer.topics[0].partitions] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
            ErrorCode.NONE,
        ]
        assert await committed(coordinator) == 7

    run(scenario, replace(CONFIG, offset_metadata_bytes_max=10_000_000))


def test_after_a_failed_append_only_what_was_committed_is_there():
    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        await commit(coordinator, 1)
        log.failure = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(ApiError, match="NOT_COORDINATOR"):
            await commit(coordinator, 2)
        with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await commit(coordinator, 3)
        log.failure = None
        with pytest.raises(ApiError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await committed(coordinator)
        await asyncio.sleep(1.5)
        assert await committed(coordinator) == 1

    run(scenario)


def test_a_coordinator_that_takes_over_knows_members_and_offsets():
    async def scenario(coordinator: GroupCoordinator, log: MemoryLog) -> None:
        await commit(coordinator, 5)
        member = await become_member(coordinator)
        coordinator.unload(ONLY)
        with pytest.raises(ApiError, match="NOT_COORDINATOR"):
            await committed(coordinator)
        await coordinator.load(ONLY, log)
        assert await committed(coordinator) == 5
        assert beat(coordinator, member) == ErrorCode.NONE
        (snapshot,) = coordinator.groups_snapshot()
        assert (snapshot.group_id, snapshot.topic, snapshot.offset) == ("g", "t", 5)

    run(scenario)


def test_a_join_that_waits_when_the_coordinator_moves_is_sent_to_look_for_it():
    async def scenario(coordinator: GroupCoordinator, _log: MemoryLog) -> None:
        await become_member(coordinator, timeout_ms=10_000)
        newcomer = (await join(coordinator)).member_id
        waiting = asyncio.ensure_future(join(coordinator, newcomer))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        coordinator.unload(ONLY)
        with pytest.raises(ApiError, match="NOT_COORDINATOR"):
            await waiting

    run(scenario)


def test_a_member_that_heartbeats_stays_and_one_that_stops_goes():
    async def scenario(coordinator: GroupCoordinator, _log: MemoryLog) -> None:
        member = await become_member(coordinator, timeout_ms=300)
        for _ in range(10):
            await asyncio.sleep(0.06)
            assert beat(coordinator, member) == ErrorCode.NONE
        await asyncio.sleep(0.5)
        assert beat(coordinator, member) == ErrorCode.UNKNOWN_MEMBER_ID
        (group,) = coordinator.list_groups(ListGroupsRequest())
        assert group.group_state == "Empty"

    run(scenario)


def test_a_client_that_went_away_while_parked_harms_nobody():
    async def scenario(coordinator: GroupCoordinator, _log: MemoryLog) -> None:
        member = await become_member(coordinator, timeout_ms=10_000)
        newcomer = (await join(coordinator, timeout_ms=10_000)).member_id
        waiting = asyncio.ensure_future(join(coordinator, newcomer, 10_000))
        await asyncio.sleep(0.01)
        waiting.cancel()
        answer = await join(coordinator, member.member_id, 10_000)
        assert len(answer.members) == 2

    run(scenario)
