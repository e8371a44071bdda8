"""A share group: the state that its records add up to. Only `replay_share` changes one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self
from uuid import UUID

from headrace_broker.coordinator.modern.assignment import (
    NO_PARTITIONS,
    Partitions,
    from_structs,
)
from headrace_broker.coordinator.share.member import ShareMember
from headrace_broker.coordinator.share.records import (
    ShareAssignmentRecord,
    ShareEpochRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareStateRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    from_infos,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode

SHARE_PROTOCOL_TYPE: Final = "share"


class ShareGroupState(Enum):
    """States with the names in ListGroups and ShareGroupDescribe."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, kw_only=True)
class ShareGroup:
    """A share group; any code may read it, only replay changes it."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    initializing: dict[UUID, tuple[str, frozenset[int]]] = field(default_factory=dict)
    """Partitions whose state the share coordinator is being asked to create."""
    initialized: dict[UUID, tuple[str, frozenset[int]]] = field(default_factory=dict)
    """Partitions with state: only these are assigned."""
    deleting: dict[UUID, str] = field(default_factory=dict)

    @property
    def state(self) -> ShareGroupState:
        """Return the state that follows from the records."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's target."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics of all subscriptions."""
        return names_of_all(self.members.values())

    def check_member(self, member_id: str) -> ShareMember:
        """Return the member; raise UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def copy(self) -> Self:
        """Return a draft for a decision that builds on its own records."""
        return type(self)(
            group_id=self.group_id,
            epoch=self.epoch,
            metadata_hash=self.metadata_hash,
            target_epoch=self.target_epoch,
            members=dict(self.members),
            targets=dict(self.targets),
            initializing=dict(self.initializing),
            initialized=dict(self.initialized),
            deleting=dict(self.deleting),
        )


def names_of_all(members: Iterable[ShareMember]) -> frozenset[str]:
    """Return the topics that any of the members subscribes to."""
    return frozenset(name for member in members for name in member.topic_names)


def replay_share(group: ShareGroup, record: ShareGroupRecord) -> None:
    """Apply one record; the shard applies the tombstone of the group itself.

    The result depends only on the last record of each key: compaction may have removed the others.
    """
    match record:
        case ShareEpochRecord(value=value) if value is not None:
            group.epoch = value.epoch
            group.metadata_hash = value.metadata_hash
        case ShareMemberRecord(key=key, value=value):
            if value is None:
                group.members.pop(key.member_id, None)
                group.targets.pop(key.member_id, None)
            else:
                known = group.members.get(key.member_id, ShareMember(member_id=key.member_id))
                group.members[key.member_id] = known.with_metadata(value)
        case ShareTargetEpochRecord(value=value):
            group.target_epoch = 0 if value is None else value.assignment_epoch
        case ShareTargetRecord(key=key, value=value):
            if value is None:
                group.targets.pop(key.member_id, None)
            else:
                group.targets[key.member_id] = from_structs(value.topic_partitions)
        case ShareAssignmentRecord(key=key, value=value):
            found = group.members.get(key.member_id)
            if found is None and value is None:
                return
            found = found or ShareMember(member_id=key.member_id)
            group.members[key.member_id] = found.with_assignment(value)
        case ShareStateRecord(value=value):
            group.initializing = {} if value is None else from_infos(value.initializing_topics)
            group.initialized = {} if value is None else from_infos(value.initialized_topics)
            group.deleting = (
                {}
                if value is None
                else {item.topic_id: item.topic_name for item in value.deleting_topics}
            )
        case _:
            pass
