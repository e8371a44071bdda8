"""Where a follower's log parts from its leader's, and what the follower does about it.

Truncation is by leader epoch, never by high watermark (KIP-101, KIP-279): a fetch names the epoch
of the follower's last batch (KIP-595), the leader answers where its own log of that epoch ended,
and the follower cuts what lies above the smaller of both ends. Each step ends at an earlier epoch
or at a common offset, so a few fetches at most find the point.
"""

from typing import NamedTuple, Protocol

from headrace_broker.protocol.errors import ApiError, ErrorCode


class LeaderEpochs(Protocol):
    """A log's leader epochs (`log.epoch_cache`)."""

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch not above the asked one, where it ended), or (-1, -1)."""
        ...


class EpochEnd(NamedTuple):
    """The largest epoch that both may share, and where the leader's log of it ends."""

    epoch: int
    end_offset: int


def diverging_epoch(
    leader_epochs: LeaderEpochs, last_fetched_epoch: int, fetch_offset: int
) -> EpochEnd | None:
    """Return where the leader's log parts from a fetcher's, None where the fetcher's is a prefix.

    Raises OFFSET_OUT_OF_RANGE where the leader knows no epoch that old.
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
    """Return where a follower cuts its log when its leader answered `diverging`.

    Where the follower has no batch of that epoch, it keeps its own up to the next lower one, and
    its next fetch asks for that.
    """
    epoch, end = leader_epochs.end_offset_for(diverging.epoch)
    if epoch < 0:
        return min(diverging.end_offset, log_end)
    if epoch != diverging.epoch:
        return min(end, log_end)
    return min(end, diverging.end_offset, log_end)
