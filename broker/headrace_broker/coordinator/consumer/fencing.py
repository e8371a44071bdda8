"""Who may commit and fetch offsets of a consumer group: its members, in their epoch (KIP-848)."""

from typing import Final

from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.group import NO_MEMBER_ID
from headrace_broker.protocol.errors import ApiError, ErrorCode

_VERSION_THAT_KNOWS_MEMBER_EPOCHS: Final = 9


def check_commit(group: ConsumerGroup, member_id: str, epoch: int, api_version: int) -> None:
    """Raise unless the caller may commit: a member in its epoch, or anyone in an empty group."""
    if epoch < 0 and not group.members:
        return
    _check_epoch(group, member_id, epoch)
    member = group.members[member_id]
    if member.classic is None and api_version < _VERSION_THAT_KNOWS_MEMBER_EPOCHS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the modern group "
            "protocol",
        )


def check_transactional_commit(
    group: ConsumerGroup, member_id: str, epoch: int, instance_id: str | None
) -> None:
    """Raise unless the caller may commit in a transaction (KIP-447).

    TxnOffsetCommit has no STALE_MEMBER_EPOCH: its clients know ILLEGAL_GENERATION.
    """
    if member_id == NO_MEMBER_ID and epoch < 0 and instance_id is None:
        return  # a producer without group metadata is fenced by its transactional id alone
    try:
        _check_epoch(group, member_id, epoch)
    except ApiError as error:
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
        raise


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raise unless the caller may read offsets: a member in its epoch, or no member at all."""
    if (member_id is None or member_id == NO_MEMBER_ID) and epoch < 0:
        return
    _check_epoch(group, member_id or NO_MEMBER_ID, epoch)


def _check_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    member = group.check_member(member_id)
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise ApiError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The generation {epoch} is not the member's, which is {member.epoch}.",
        )
    raise ApiError(
        ErrorCode.STALE_MEMBER_EPOCH,
        f"The received member epoch {epoch} does not match the expected member epoch "
        f"{member.epoch}.",
    )
