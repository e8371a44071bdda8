"""One member of a share group, as in its records. Frozen: replay replaces it."""

from dataclasses import dataclass, field, replace
from typing import Final, Self

from headrace_broker.coordinator.modern.assignment import (
    NO_PARTITIONS,
    Partitions,
    from_structs,
    to_structs,
)
from headrace_broker.coordinator.share.records import ShareAssignmentRecord, ShareMemberRecord
from headrace_broker.protocol.messages.records.share_group_current_member_assignment import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from headrace_broker.protocol.messages.records.share_group_member_metadata import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """A member: who it is and its subscription (record 10), and its partitions (record 14)."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    assigned: Partitions = field(default_factory=dict)

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> Self:
        """Return the member as in record 10, with its present partitions."""
        return replace(
            self,
            rack_id=value.rack_id or None,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=tuple(value.subscribed_topic_names),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue | None) -> Self:
        """Return the member with the partitions in record 14; None: no partitions."""
        if value is None:
            return replace(
                self, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned=NO_PARTITIONS
            )
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=from_structs(value.assigned_partitions),
        )

    def at(self, epoch: int, assigned: Partitions) -> Self:
        """Return the member in an epoch with its partitions there."""
        if epoch == self.epoch and assigned == self.assigned:
            return self
        previous = self.previous_epoch if epoch == self.epoch else self.epoch
        return replace(self, epoch=epoch, previous_epoch=previous, assigned=assigned)

    def metadata_record(self, group_id: str) -> ShareMemberRecord:
        """Return record 10."""
        return ShareMemberRecord(
            key=ShareGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id),
            value=ShareGroupMemberMetadataValue(
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=list(self.topic_names),
            ),
        )

    def assignment_record(self, group_id: str) -> ShareAssignmentRecord:
        """Return record 14."""
        return ShareAssignmentRecord(
            key=ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id),
            value=ShareGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                assigned_partitions=to_structs(TopicPartitions, self.assigned),
            ),
        )
