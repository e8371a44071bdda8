"""A coordinator's shard in simulated time, driven by named clients and written down as it goes.

Plays the driver: carries decisions out, fires timers in order, and checks after every step that
replaying all records gives the state that is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import Caller, GroupDecision, SetTimer, Ticket, TimerKey
from headrace_broker.coordinator.expiry import decide_expiry
from headrace_broker.coordinator.join import decide_join
from headrace_broker.coordinator.membership import decide_heartbeat, decide_leave, decide_sync
from headrace_broker.coordinator.offsets import decide_commit
from headrace_broker.coordinator.records import (
    CoordinatorRecord,
    GroupRecord,
    read_record,
    write_record,
)
from headrace_broker.coordinator.shard import GroupShard, finish_loading, replay
from headrace_broker.coordinator.timers import decide_timer
from headrace_broker.protocol.codec import encode_bytes
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest
from headrace_broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from headrace_broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace_broker.protocol.types import PartitionIndex, TimestampMs

GROUP = "g"


def subscription(*topics: str) -> bytes:
    """Return the metadata with which a consumer joins."""
    body = encode_bytes(ConsumerProtocolSubscription(topics=list(topics)), 1)
    return (1).to_bytes(2, "big") + body


@dataclass
class Client:
    """What a member knows of itself."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    leader: str = ""
    members: list[str] = field(default_factory=list)
    assignment: bytes | None = None


class GroupSimulation:
    """One shard, one group by default, and any number of clients by name."""

    def __init__(self, **config: int) -> None:
        self.config = GroupConfig(**{"initial_rebalance_delay_ms": 0, **config})
        self.shard = GroupShard(partition=PartitionIndex(0))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 0
        self.timers: dict[TimerKey, int] = {}
        self.clients: dict[str, Client] = {}
        self.answers: dict[Ticket, Any] = {}
        self.lines: list[str] = []
        self.reasons: list[str] = []
        self._asked: dict[Ticket, str] = {}

    @property
    def group(self) -> Any:
        return self.shard.groups[GROUP]

    @property
    def transcript(self) -> str:
        return "\n".join(self.lines)

    def client(self, name: str) -> Client:
        return self.clients.setdefault(name, Client())

    def join(  # noqa: PLR0913  tests name just the options that they are about
        self,
        name: str,
        *,
        protocols: Sequence[tuple[str, bytes]] = (("range", subscription("t")),),
        version: int = 9,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        protocol_type: str = "consumer",
    ) -> Any:
        """Send a JoinGroup; return the answer, None while it waits."""
        client = self.client(name)
        client.instance_id = instance_id or client.instance_id
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=key, metadata=data) for key, data in protocols
            ],
        )

        def decide(caller: Caller) -> GroupDecision:
            return decide_join(self.shard, self.config, request, caller, TimestampMs(self.now_ms))

        return self._ask(name, "join", decide, version=version)

    def enter(self, name: str, **options: Any) -> Any:
        """Join as clients do: again with the member id when the first answer asks for it."""
        answer = self.join(name, **options)
        if answer is not None and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.join(name, **options)
        return answer

    def sync(self, name: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        """Send a SyncGroup; `assignments` are by client's name."""
        client = self.client(name)
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=self.client(key).member_id or key, assignment=value
                )
                for key, value in (assignments or {}).items()
            ],
            **fields,
        )

        def decide(caller: Caller) -> GroupDecision:
            return decide_sync(self.shard, self.config, request, caller, TimestampMs(self.now_ms))

        return self._ask(name, "sync", decide)

    def heartbeat(self, name: str) -> Any:
        client = self.client(name)
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
        )

        def decide(caller: Caller) -> GroupDecision:
            return decide_heartbeat(self.shard, self.config, request, caller)

        return self._ask(name, "heartbeat", decide)

    def leave(self, name: str, *, by_instance_id: bool = False) -> Any:
        client = self.client(name)
        member_id = "" if by_instance_id else client.member_id
        identity = MemberIdentity(member_id=member_id, group_instance_id=client.instance_id)
        request = LeaveGroupRequest(group_id=GROUP, members=[identity])

        def decide(caller: Caller) -> GroupDecision:
            return decide_leave(self.shard, self.config, request, caller, TimestampMs(self.now_ms))

        return self._ask(name, "leave", decide, version=5)

    def commit(
        self,
        name: str,
        offset: int,
        *,
        topic: str = "t",
        metadata: str = "",
        group_id: str = GROUP,
        retention_ms: int = -1,
    ) -> Any:
        """Commit an offset of partition 0; a client that never joined is a simple consumer."""
        client = self.client(name)
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            committed_metadata=metadata,
                        )
                    ],
                )
            ],
        )

        def decide(caller: Caller) -> GroupDecision:
            return decide_commit(
                self.shard,
                self.config,
                request,
                caller,
                TimestampMs(self.now_ms),
                lambda _topic, _index: ErrorCode.NONE,
            )

        return self._ask(name, "commit", decide)

    def stable(self, *names: str, **options: Any) -> None:
        """Bring a group of these members to Stable; the first one leads."""
        for name in names:
            self.enter(name, **options)
        if self.config.initial_rebalance_delay_ms:
            self.advance(self.config.initial_rebalance_delay_ms * 3 + 1)
        for _ in names:
            for name in names:
                if self.heartbeat(name).error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                    self.join(name, **options)
        leader = next(key for key in names if self.client(key).member_id == self.group.leader_id)
        for name in names:
            if name != leader:
                self.sync(name)
        self.sync(leader, {name: f"work of {name}".encode() for name in names})

    def expire(self) -> None:
        self.carry_out(decide_expiry(self.shard, self.config, TimestampMs(self.now_ms)))

    def advance(self, ms: int) -> None:
        """Let time pass and fire what is due, in order."""
        end_ms = self.now_ms + ms
        while self.timers:
            key = min(self.timers, key=lambda item: (self.timers[item], str(item)))
            if self.timers[key] > end_ms:
                break
            self.now_ms = self.timers.pop(key)
            decision = decide_timer(self.shard, self.config, key, TimestampMs(self.now_ms))
            if decision.records or decision.replies or decision.timers:
                who = f" of {key.member_id}" if key.member_id else ""
                self._say(f"{key.kind.value} timer{who}")
            self.carry_out(decision)
        self.now_ms = end_ms

    def carry_out(self, decision: GroupDecision) -> None:
        for record in decision.records:
            self.log.append(write_record(record))
            replay(self.shard, record)
            self.lines.append(f"          log  {_describe(record)}")
        self.reasons += [f"{each.generation} {each.reason}" for each in decision.rebalances]
        for effect in decision.timers:
            if isinstance(effect, SetTimer):
                self.timers[effect.key] = self.now_ms + effect.delay_ms
            else:
                self.timers.pop(effect.key, None)
        for ticket, response in decision.replies:
            self._receive(ticket, response)

    def replayed(self) -> GroupShard:
        """Return what a coordinator that loads this log comes to."""
        shard = GroupShard(partition=PartitionIndex(0))
        for key, value in self.log:
            record = read_record(key, value)
            assert record is not None
            replay(shard, record)
        return shard

    def restart(self) -> None:
        """Forget everything but the log."""
        self.shard = self.replayed()
        self.timers.clear()
        self._say("restart")
        self.carry_out(finish_loading(self.shard))

    def _ask(
        self, name: str, what: str, decide: Callable[[Caller], GroupDecision], *, version: int = 9
    ) -> Any:
        ticket = Ticket(len(self._asked) + 1)
        self._asked[ticket] = f"{name} {what}"
        self._say(f"{name} {what}")
        caller = Caller(
            ticket=ticket,
            api_version=version,
            client_id=name,
            client_host="/127.0.0.1",
            new_member_id=str(ticket),
        )
        try:
            self.carry_out(decide(caller))
        except ApiError as error:
            self.lines.append(f"          {name} ← {error.code.name}")
            return _Refusal(error.code)
        return self.answers.get(ticket)

    def _receive(self, ticket: Ticket, response: Any) -> None:
        assert ticket not in self.answers, "a request is answered once"
        self.answers[ticket] = response
        name = self._asked[ticket].split()[0]
        client = self.client(name)
        text = ErrorCode(getattr(response, "error_code", 0)).name
        if isinstance(response, JoinGroupResponse):
            if text in {"NONE", "MEMBER_ID_REQUIRED"}:
                client.member_id = response.member_id
            if text == "NONE":
                client.generation = response.generation_id
                client.leader = response.leader
                client.members = [member.member_id for member in response.members]
                client.assignment = None
                text = f"generation {response.generation_id} {response.protocol_name}"
                if client.members:
                    text += f", leads {' '.join(client.members)}"
                if response.skip_assignment:
                    text += ", keeps the assignment"
            elif text == "MEMBER_ID_REQUIRED":
                text += f" {response.member_id}"
        elif isinstance(response, SyncGroupResponse) and text == "NONE":
            client.assignment = response.assignment
            text = f"assigned {response.assignment.decode()!r}"
        self.lines.append(f"          {name} ← {text}")

    def _say(self, text: str) -> None:
        self.lines.append(f"{self.now_ms:6} ms {text}")


@dataclass
class _Refusal:
    error_code: ErrorCode


def _describe(record: CoordinatorRecord) -> str:
    if isinstance(record, GroupRecord):
        if record.value is None:
            return f"group {record.key.group} ends"
        members = " ".join(member.member_id for member in record.value.members) or "nobody"
        return f"group {record.key.group} generation {record.value.generation}: {members}"
    where = f"{record.key.group} {record.key.topic}-{record.key.partition}"
    return (
        f"offset {where} ends" if record.value is None else f"offset {where} {record.value.offset}"
    )
