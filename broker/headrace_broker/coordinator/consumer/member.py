"""One member of a consumer group, as in its records. Frozen: replay replaces it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self

from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.modern.assignment import (
    NO_PARTITIONS,
    Partitions,
    from_structs,
    to_structs,
)
from headrace_broker.coordinator.records import CurrentAssignmentRecord, MemberRecord
from headrace_broker.protocol.messages.records.consumer_group_current_member_assignment import (
    TopicPartitions,
)
from headrace_broker.protocol.messages.records.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClassicProtocol,
)
from headrace_broker.protocol.messages.records.coordinator import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""A static member has left temporarily: its place and partitions wait for it."""

Subscription = tuple[tuple[str, ...], str]
"""Topic names in order, and a regular expression or an empty string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicFace:
    """The join data of a member that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member: who it is, its subscription (record 5), and its partitions (record 8)."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] = ()
    topic_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicFace | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)

    @property
    def subscription(self) -> Subscription:
        """Return the member's subscription."""
        return self.topic_names, self.topic_regex

    @property
    def is_away(self) -> bool:
        """Whether it is a static member that has left temporarily."""
        return self.epoch == STATIC_LEAVE_EPOCH

    def held(self) -> Partitions:
        """Return the partitions that no other member may get: its own, and those being revoked."""
        if not self.revoking:
            return self.assigned
        merged = dict(self.assigned)
        for topic_id, items in self.revoking.items():
            merged[topic_id] = merged.get(topic_id, frozenset()) | items
        return merged

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether it has the partitions that the target of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def at_epoch(self, epoch: int) -> Self:
        """Return the member in a new epoch; the previous one is kept, as an answer may be lost."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> Self:
        """Return the member as in record 5, with its present partitions."""
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id or None,
            rack_id=value.rack_id or None,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topic_names=tuple(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex or "",
            server_assignor=value.server_assignor or None,
            classic=None
            if classic is None
            else ClassicFace(
                session_timeout_ms=classic.session_timeout_ms,
                protocols=tuple(
                    (item.name, bytes(item.metadata)) for item in classic.supported_protocols
                ),
            ),
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> Self:
        """Return the member with the partitions in record 8; None: no partitions."""
        if value is None:
            return replace(
                self,
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                state=MemberState.STABLE,
                assigned=NO_PARTITIONS,
                revoking=NO_PARTITIONS,
            )
        known = value.state in MemberState._value2member_map_
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=from_structs(value.assigned_partitions),
            revoking=from_structs(value.partitions_pending_revocation),
        )

    def metadata_record(self, group_id: str) -> MemberRecord:
        """Return record 5."""
        classic = self.classic
        return MemberRecord(
            key=ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            value=ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=list(self.topic_names),
                subscribed_topic_regex=self.topic_regex,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.server_assignor,
                classic_member_metadata=None
                if classic is None
                else ClassicMemberMetadata(
                    session_timeout_ms=classic.session_timeout_ms,
                    supported_protocols=[
                        ClassicProtocol(name=name, metadata=data)
                        for name, data in classic.protocols
                    ],
                ),
            ),
        )

    def assignment_record(self, group_id: str) -> CurrentAssignmentRecord:
        """Return record 8."""
        return CurrentAssignmentRecord(
            key=ConsumerGroupCurrentMemberAssignmentKey(
                group_id=group_id, member_id=self.member_id
            ),
            value=ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=self.state,
                assigned_partitions=to_structs(TopicPartitions, self.assigned),
                partitions_pending_revocation=to_structs(TopicPartitions, self.revoking),
            ),
        )

    def has_same_metadata(self, other: Self) -> bool:
        """Whether record 5 would be the same."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in (
                "instance_id",
                "rack_id",
                "client_id",
                "client_host",
                "rebalance_timeout_ms",
                "topic_names",
                "topic_regex",
                "server_assignor",
                "classic",
            )
        )

    def has_same_assignment(self, other: Self) -> bool:
        """Whether record 8 would be the same."""
        return (
            self.epoch == other.epoch
            and self.previous_epoch == other.previous_epoch
            and self.state is other.state
            and self.assigned == other.assigned
            and self.revoking == other.revoking
        )

    def classic_protocol_names(self) -> frozenset[str]:
        """Return the assignors that a classic member supports."""
        return (
            frozenset(name for name, _ in self.classic.protocols) if self.classic else frozenset()
        )


def common_classic_protocols(members: Iterable[ConsumerMember]) -> frozenset[str] | None:
    """Return the assignors that all classic members support; None if there are no such members."""
    known = [item.classic_protocol_names() for item in members if item.classic is not None]
    return frozenset.intersection(*known) if known else None
