"""A leader of share state that is replaced, comes late, and begins anew: one key, many epochs.

It asks the share coordinator as a partition's leader does (KIP-932), for a group without members,
one request at a time. Now and then it is a zombie: it writes with the state epoch of a former life,
with a former leader's epoch, or what a later write has moved on from. All of that must be refused
or change nothing, whoever coordinates. What is unknown after a time-out is done again with a newer
epoch, which fences what may still be under way.
"""

from typing import TYPE_CHECKING, Any

from headrace_broker.coordinator.share_state.state import UNINITIALIZED, ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    initialize_share_group_state,
    read_share_group_state,
    write_share_group_state,
)
from headrace_broker.server.shares.state_coordinator import coordinator_key
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "state-epochs"
SINCE = 5000
_SHARE = 2
_NO_LEADER = -1
_REFUSALS = RETRIABLE | {ErrorCode.FENCED_STATE_EPOCH}


class StateEpochs:
    """What was answered: a state epoch, a leader epoch in it, and the highest start offset."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._epoch = self._newest_epoch = 0
        self._leader = self._newest_leader = _NO_LEADER
        self._start = 0

    async def run(self, is_over: "Callable[[], bool]") -> None:
        """Go through lives until it is over; what was answered then must be there."""
        await self._client.until(self._begin)
        while not is_over():
            steps = [self._begin, self._lead, self._write, self._write, self._write]
            if self._leader > _NO_LEADER:
                steps += [self._come_late, self._be_replaced, self._ask_again]
                steps += [self._live_on, self._begin_late] if self._epoch > 1 else []
            try:
                await self._client.rng.choice(steps)()
            except FAILURES:
                await self._client.pause()
            await self._client.pause()
        await self._client.until(self._is_there)

    # ---- as it should be

    async def _begin(self) -> bool | None:
        """Begin a new life of the state, as an administrator who moves the group does."""
        self._newest_epoch += 1
        epoch, start = self._newest_epoch, self._client.rng.randrange(100)
        if await self._initialize(epoch, start) is not ErrorCode.NONE:
            return None
        self._epoch, self._start = epoch, start
        self._leader = _NO_LEADER
        return True

    async def _lead(self) -> bool | None:
        """Read as the next leader."""
        self._newest_leader += 1
        leader = self._newest_leader
        found = await self._read(leader)
        if found is None or found.state_epoch != self._epoch:
            return None
        self._leader = leader
        return True

    async def _is_there(self) -> bool | None:
        self._newest_leader += 1
        return True if await self._read(self._newest_leader) else None

    async def _write(self) -> None:
        start = self._start + self._client.rng.choice((0, 1, 5))
        if self._leader == _NO_LEADER:
            return
        if await self._say(self._epoch, self._leader, start) is ErrorCode.NONE:
            self._start = start

    # ---- as it should not be

    async def _live_on(self) -> None:
        """Write in a former life of the state."""
        code = await self._say(self._epoch - 1, self._leader, self._start + 1)
        self._refused("stale-state-epoch", code, f"{self._epoch - 1} after {self._epoch}")

    async def _begin_late(self) -> None:
        """Begin a former life of the state once more."""
        code = await self._initialize(self._epoch - 1, 0)
        self._refused("stale-state-epoch", code, f"{self._epoch - 1} begins after {self._epoch}")

    async def _be_replaced(self) -> None:
        """Write as a former leader."""
        code = await self._say(self._epoch, self._leader - 1, self._start + 1)
        self._refused("former-leader-writes", code, f"{self._leader - 1} after {self._leader}")

    async def _come_late(self) -> None:
        """Have a write arrive again after a later one."""
        await self._say(self._epoch, self._leader, max(0, self._start - 3))
        await self._read(self._leader)

    async def _ask_again(self) -> None:
        """Ask for a state that is there, as a group coordinator may after its failover."""
        await self._initialize(self._epoch, UNINITIALIZED)
        await self._read(self._leader)

    def _refused(self, kind: str, code: ErrorCode, text: str) -> None:
        if code is ErrorCode.NONE:
            self._client.history.violate(kind, f"it was taken: {text}")
        elif code in {ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH}:
            self._client.history.reach(f"share state refuses a zombie: {kind}")

    # ---- requests

    async def _initialize(self, epoch: int, start: int) -> ErrorCode:
        messages = initialize_share_group_state
        data = messages.PartitionData(partition=0, state_epoch=epoch, start_offset=start)
        topics = [messages.InitializeStateData(topic_id=await self._id(), partitions=[data])]
        request = messages.InitializeShareGroupStateRequest(group_id=GROUP, topics=topics)
        return (await self._ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, request))[0]

    async def _say(self, epoch: int, leader: int, start: int) -> ErrorCode:
        messages = write_share_group_state
        data = messages.PartitionData(
            partition=0,
            state_epoch=epoch,
            leader_epoch=leader,
            start_offset=start,
            delivery_complete_count=0,
        )
        topics = [messages.WriteStateData(topic_id=await self._id(), partitions=[data])]
        request = messages.WriteShareGroupStateRequest(group_id=GROUP, topics=topics)
        return (await self._ask(ApiKey.WRITE_SHARE_GROUP_STATE, request))[0]

    async def _read(self, leader: int) -> Any | None:
        """Return what is kept, None where it is refused; judge it by what was answered."""
        messages = read_share_group_state
        data = messages.PartitionData(partition=0, leader_epoch=leader)
        topics = [messages.ReadStateData(topic_id=await self._id(), partitions=[data])]
        request = messages.ReadShareGroupStateRequest(group_id=GROUP, topics=topics)
        epoch, start, newest = self._epoch, self._start, self._newest_epoch
        code, found = await self._ask(ApiKey.READ_SHARE_GROUP_STATE, request)
        if code is not ErrorCode.NONE:
            return None
        # A life that nobody was told of may have begun; where it begins is not known here.
        is_back = found.state_epoch == epoch and found.start_offset < start
        if is_back or not epoch <= found.state_epoch <= newest:
            self._client.history.violate(
                "share-state-went-back",
                f"epoch {found.state_epoch} at {found.start_offset}; {epoch} at {start} was kept",
            )
        return found

    async def _ask(self, key: ApiKey, request: Any) -> tuple[ErrorCode, Any]:
        """Return the outcome and the answer; raises one of FAILURES."""
        name = coordinator_key(ShareKey(group_id=GROUP, topic_id=await self._id(), partition=0))
        caller = await self._client.coordinator(name, _SHARE)
        if caller is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        answer = await self._client.call(caller, key, request)
        found = answer.results[0].partitions[0]
        code = ErrorCode(found.error_code)
        if code and code not in _REFUSALS:
            self._client.history.violate("share-state", f"{key.name}: {code.name}")
        return code, found

    async def _id(self) -> Any:
        return await self._client.topic_id(self._topic)
