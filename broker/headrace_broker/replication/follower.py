"""Finds where a follower's log diverges from its leader's, and how far the follower truncates.

Truncation is by leader epoch, never by high watermark (KIP-101, KIP-279). A fetch names the epoch
of the follower's last batch (KIP-595), the leader answers where that epoch ended in its own log,
and the follower truncates to the smaller of both ends. Each step ends at an earlier epoch or at a
common offset, so a few fetches find the point.
"""

from typing import NamedTuple, Protocol

from headrace_broker.protocol.errors import ApiError, ErrorCode


class LeaderEpochs(Protocol):
    """A log's leader epochs (`log.epoch_cache`)."""

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch not above the asked one, where it ended), or (-1, -1)."""
        ...


class EpochEnd(NamedTuple):
    """The largest epoch that both may share, and its end in the leader's log."""

    epoch: int
    end_offset: int


def diverging_epoch(
    leader_epochs: LeaderEpochs, last_fetched_epoch: int, fetch_offset: int
) -> EpochEnd | None:
    """Return where a fetcher's log diverges from the leader's, None if it is a prefix.

    Raises OFFSET_OUT_OF_RANGE if the leader has no epoch that old.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end = leader_epochs.end_offset_for(last_fetched_epoch)
    if epoch < 0 or end < 0:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the end of leader epoch {last_fetched_epoch} is not known",
        )
    if epoch < last_fetched_epoch or end < fetch_offset:
        return EpochEnd(epoch, end)
    return None


def truncation_offset(leader_epochs: LeaderEpochs, log_end: int, diverging: EpochEnd) -> int:
    """Return where a follower truncates its log after the leader's answer `diverging`.

    If the follower has no batch of that epoch, it keeps its log up to the next lower one, and its
    next fetch names that epoch.
    """
    epoch, end = leader_epochs.end_offset_for(diverging.epoch)
    if epoch < 0:
        return min(diverging.end_offset, log_end)
    if epoch != diverging.epoch:
        return min(end, log_end)
    return min(end, diverging.end_offset, log_end)
