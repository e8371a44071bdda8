"""`LeaderState`: a leader's knowledge of its followers in one leader epoch.

Owns the in-sync set and the limit of the high watermark. The rules are: KIP-497 (until the
controller answers, a change of the in-sync set counts wherever that is safer: the *maximal* in-sync
set holds the high watermark back, the committed one decides about acks=all and
min.insync.replicas), KIP-966 (below min.insync.replicas the high watermark does not advance, for
any acks), KIP-903 (a replica is identified by its broker epoch, too).

A new leader knows nothing of its followers, so it commits nothing above its recovered high
watermark before each in-sync replica has fetched in this very epoch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace_broker.protocol.types import BrokerEpoch, LeaderEpoch, NodeId, Offset

UNKNOWN_OFFSET: Final = Offset(-1)
UNKNOWN_EPOCH: Final = BrokerEpoch(-1)

Eligible = Callable[[NodeId, BrokerEpoch], bool]
"""Whether a broker may join in-sync sets: registered with that epoch, unfenced, not leaving."""


class FollowerProgress:
    """The progress of one follower."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "fetch_offset",
        "last_end",
        "last_fetch_ms",
        "log_start_offset",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.fetch_offset: Offset = UNKNOWN_OFFSET
        self.log_start_offset: Offset = UNKNOWN_OFFSET
        self.broker_epoch: BrokerEpoch = UNKNOWN_EPOCH
        self.caught_up_ms = caught_up_ms
        """The latest time at which it had all that the leader had (Kafka: lastCaughtUpTimeMs)."""
        self.last_fetch_ms = 0
        self.last_end: Offset = UNKNOWN_OFFSET
        """The leader's end at the previous fetch."""

    def is_caught_up(self, leader_end: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether it is caught up, or was a short time ago."""
        return self.fetch_offset == leader_end or now_ms - self.caught_up_ms <= lag_ms_max


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrUpdate:
    """An AlterPartition request. `members` are (node, broker epoch), leader first."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    members: tuple[tuple[NodeId, BrokerEpoch], ...]

    @property
    def nodes(self) -> frozenset[NodeId]:
        """The proposed in-sync set."""
        return frozenset(node_id for node_id, _ in self.members)


class LeaderState:
    """One leader epoch of one partition, as its leader sees it."""

    __slots__ = (
        "_counted",
        "_joining",
        "epoch",
        "epoch_start_offset",
        "followers",
        "isr",
        "min_in_sync_replicas",
        "node_id",
        "partition_epoch",
        "pending",
    )

    def __init__(self, node_id: NodeId, epoch: LeaderEpoch, epoch_start_offset: Offset) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.epoch_start_offset = epoch_start_offset
        self.followers: dict[NodeId, FollowerProgress] = {}
        self.isr: tuple[NodeId, ...] = ()
        self.partition_epoch = -1
        self.min_in_sync_replicas = 1
        self.pending: IsrUpdate | None = None
        self._joining: set[NodeId] = set()
        self._counted: tuple[FollowerProgress, ...] = ()

    # ---- decisions of the controller

    def configure(self, replicas: Iterable[NodeId], min_in_sync_replicas: int, now_ms: int) -> None:
        """Set the replicas, and how many must be in sync (at most all of them)."""
        before = self.followers
        self.followers = {}
        for node_id in replicas:
            if node_id != self.node_id:
                known = before.get(node_id)
                self.followers[node_id] = known or FollowerProgress(now_ms)
        self.min_in_sync_replicas = min(min_in_sync_replicas, len(self.followers) + 1)
        self._joining &= self.followers.keys()
        self._recount()

    def commit_isr(self, isr: tuple[NodeId, ...], partition_epoch: int) -> bool:
        """Apply a committed in-sync set; return False if a newer one is known already."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr = isr
        self.partition_epoch = partition_epoch
        self.pending = None
        self._joining.difference_update(isr)
        self._recount()
        return True

    def withdraw(self, update: IsrUpdate) -> None:
        """Drop `update`, which the controller did not apply: the committed set counts again."""
        if self.pending is update:
            self.pending = None
            self._recount()

    # ---- progress

    def note_append(self, end_before: int, now_ms: int) -> None:
        """Note that the leader's log grows: caught-up followers were caught up until now."""
        for progress in self.followers.values():
            if progress.fetch_offset == end_before:
                progress.caught_up_ms = now_ms

    def record_fetch(
        self,
        node_id: NodeId,
        broker_epoch: BrokerEpoch,
        fetch_offset: Offset,
        leader_end: Offset,
        now_ms: int,
    ) -> bool:
        """Record that a follower has all below `fetch_offset`; False for a former process."""
        progress = self.followers[node_id]
        if broker_epoch < progress.broker_epoch:
            return False
        progress.broker_epoch = broker_epoch
        if fetch_offset >= leader_end:
            progress.caught_up_ms = max(progress.caught_up_ms, now_ms)
        elif fetch_offset >= progress.last_end >= 0:
            # It has everything that existed at its previous fetch: it keeps up with a busy leader.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.last_fetch_ms)
        progress.fetch_offset = fetch_offset
        progress.last_end = leader_end
        progress.last_fetch_ms = now_ms
        return True

    def note_log_start(self, node_id: NodeId, offset: Offset) -> bool:
        """Record where a follower's log starts; return whether that has changed."""
        progress = self.followers[node_id]
        before, progress.log_start_offset = progress.log_start_offset, offset
        return offset != before

    def note_candidate(
        self, node_id: NodeId, leader_end: Offset, now_ms: int, lag_ms_max: int, eligible: Eligible
    ) -> None:
        """Make the high watermark wait for a follower that is about to join the in-sync set.

        Otherwise a leader alone in its in-sync set would stay ahead of every fetch forever.
        """
        if node_id in self._joining or node_id in self.isr:
            return
        progress = self.followers[node_id]
        if progress.is_caught_up(leader_end, now_ms, lag_ms_max) and eligible(
            node_id, progress.broker_epoch
        ):
            self._joining.add(node_id)
            self._recount()

    # ---- the high watermark

    @property
    def is_alone(self) -> bool:
        """Whether the leader's own log decides what is committed."""
        return not self._counted

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync to commit anything."""
        return len(self.isr) < self.min_in_sync_replicas

    def committed_end(self, leader_end: Offset) -> Offset:
        """Return the offset below which every counted replica has everything; -1: no advance."""
        if len(self.isr) < self.min_in_sync_replicas:
            return UNKNOWN_OFFSET
        end = leader_end
        for progress in self._counted:
            end = min(end, progress.fetch_offset)
        return end

    # ---- the in-sync set

    @property
    def maximal_isr(self) -> frozenset[NodeId]:
        """The in-sync replicas, including those that the controller may already have added."""
        found = frozenset(self.isr)
        return found if self.pending is None else found | self.pending.nodes

    def may_join(self, node_id: NodeId, high_watermark: int, eligible: Eligible) -> bool:
        """Whether a follower has all committed records, and reached this epoch's start."""
        if self.pending is not None or node_id in self.isr:
            return False
        progress = self.followers[node_id]
        return progress.fetch_offset >= max(high_watermark, self.epoch_start_offset) and eligible(
            node_id, progress.broker_epoch
        )

    def lagging(self, leader_end: int, now_ms: int, lag_ms_max: int) -> frozenset[NodeId]:
        """Return the in-sync replicas that lag; drop candidates that lag."""
        if self._joining:
            late = {
                node_id
                for node_id in self._joining
                if not self.followers[node_id].is_caught_up(leader_end, now_ms, lag_ms_max)
            }
            self.dismiss(late)
        return frozenset(
            node_id
            for node_id, progress in self._members()
            if not progress.is_caught_up(leader_end, now_ms, lag_ms_max)
        )

    def dismiss(self, nodes: Iterable[NodeId]) -> None:
        """Stop waiting for candidates that were fenced or fell behind."""
        self._joining.difference_update(nodes)
        self._recount()

    @property
    def joining(self) -> frozenset[NodeId]:
        """The candidates that the high watermark waits for."""
        return frozenset(self._joining)

    def propose(self, nodes: Iterable[NodeId], own_broker_epoch: BrokerEpoch) -> IsrUpdate:
        """Make `nodes` the pending in-sync set; illegal while another one is pending."""
        if self.pending is not None:
            raise RuntimeError("an AlterPartition is under way")
        members = [(self.node_id, own_broker_epoch)]
        members += [
            (node_id, self.followers[node_id].broker_epoch)
            for node_id in sorted(nodes)
            if node_id != self.node_id
        ]
        self.pending = IsrUpdate(
            leader_epoch=self.epoch, partition_epoch=self.partition_epoch, members=tuple(members)
        )
        self._recount()
        return self.pending

    def _members(self) -> Iterator[tuple[NodeId, FollowerProgress]]:
        for node_id in self.isr:
            progress = self.followers.get(node_id)
            if progress is not None:
                yield node_id, progress

    def _recount(self) -> None:
        counted = self.maximal_isr | self._joining
        self._counted = tuple(
            progress for node_id, progress in self.followers.items() if node_id in counted
        )
