"""One partition on three replicas, in memory: the pure rules of replication, driven at random.

The controller is a plain state that changes at once; each broker learns of it late, and requests to
it may be answered late. A crash may cut the tail of a log, unless the replica was the last in sync.
"""

from dataclasses import dataclass, field, replace

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.types import BrokerEpoch, LeaderEpoch, NodeId, Offset
from headrace_broker.replication.follower import diverging_epoch, truncation_offset
from headrace_broker.replication.leader import IsrUpdate, LeaderState

NODES = (NodeId(1), NodeId(2), NodeId(3))
LAG_MS = 10


@dataclass
class Epochs:
    """A leader epoch cache without a file."""

    replica: "Replica"
    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def latest(self):
        return self.starts[-1][0] if self.starts else -1

    def assign(self, epoch, start):
        if epoch > self.latest:
            while self.starts and self.starts[-1][1] >= start:
                self.starts.pop()
            self.starts.append((epoch, start))

    def truncate_from_end(self, end):
        self.starts = [entry for entry in self.starts if entry[1] < end]

    def end_offset_for(self, epoch):
        if epoch == self.latest:
            return epoch, len(self.replica.log)
        above = [index for index, (known, _) in enumerate(self.starts) if known > epoch]
        if epoch < 0 or not above:
            return -1, -1
        if above[0] == 0:
            return epoch, self.starts[0][1]
        return self.starts[above[0] - 1][0], self.starts[above[0]][1]


@dataclass(frozen=True)
class Metadata:
    """What the controller says of the partition, and of the brokers."""

    leader: int = 1
    epoch: int = 0
    isr: tuple = NODES
    partition_epoch: int = 0
    brokers: tuple = ((1, 1), (2, 1), (3, 1))  # (node, broker epoch) of those that live

    def is_eligible(self, node, broker_epoch):
        return (node, broker_epoch) in self.brokers


class Replica:
    """One broker's replica. Its log survives crashes, all else does not."""

    def __init__(self, node):
        self.node = node
        self.log: list[tuple[int, int]] = []
        self.epochs = Epochs(self)
        self.high_watermark = 0
        self.broker_epoch = 1
        self.is_alive = True
        self.known = Metadata(epoch=-1, partition_epoch=-1)
        self.leading: LeaderState | None = None

    def truncate(self, end):
        del self.log[end:]
        self.epochs.truncate_from_end(end)
        self.high_watermark = min(self.high_watermark, end)


class Replicas:
    """The cluster. Each method is one step, after which `check` must hold."""

    def __init__(self, min_isr=2):
        self.min_isr = min_isr
        self.now_ms = 0
        self.metadata = Metadata()
        self.replicas = {node: Replica(node) for node in NODES}
        self.committed: dict[int, tuple[int, int]] = {}
        self.next_value = 0
        for node in NODES:
            self.learn(node)

    # the brokers

    def learn(self, node):
        """A broker applies the latest metadata."""
        replica = self.replicas[node]
        if not replica.is_alive:
            return
        is_new = self.metadata.epoch > replica.known.epoch
        replica.known = self.metadata
        if is_new:
            replica.leading = None
            if self.metadata.leader == node:
                end = Offset(len(replica.log))
                replica.leading = LeaderState(node, LeaderEpoch(self.metadata.epoch), end)
                replica.epochs.assign(self.metadata.epoch, end)
        leading = replica.leading
        if leading is not None:
            leading.configure(NODES, self.min_isr, self.now_ms)
            leading.commit_isr(self.metadata.isr, self.metadata.partition_epoch)
            self._advance(replica)

    def append(self, node):
        replica = self.replicas[node]
        if replica.is_alive and replica.leading is not None:
            replica.leading.note_append(len(replica.log), self.now_ms)
            replica.log.append((replica.leading.epoch, self.next_value))
            self.next_value += 1
            self._advance(replica)

    def fetch(self, node, records_max):
        """One whole fetch of a follower from the leader that it knows."""
        follower = self.replicas[node]
        source = self.replicas.get(NodeId(follower.known.leader))
        if source is None or source is follower or not (follower.is_alive and source.is_alive):
            return
        leading = source.leading
        if leading is None or leading.epoch != follower.known.epoch:
            return
        end = len(follower.log)
        try:
            diverging = diverging_epoch(source.epochs, follower.epochs.latest, end)
        except ApiError:
            raise AssertionError("a leader does not know an epoch of its past") from None
        if diverging is not None:
            follower.truncate(truncation_offset(follower.epochs, end, diverging))
            return
        epoch = BrokerEpoch(follower.broker_epoch)
        leader_end = Offset(len(source.log))
        if not leading.record_fetch(node, epoch, Offset(end), leader_end, self.now_ms):
            return
        eligible = source.known.is_eligible
        leading.note_candidate(node, leader_end, self.now_ms, LAG_MS, eligible)
        self._advance(source)
        if leading.may_join(node, source.high_watermark, eligible):
            leading.propose([*leading.isr, node], BrokerEpoch(source.broker_epoch))
        for record in source.log[end : end + records_max]:
            follower.epochs.assign(record[0], len(follower.log))
            follower.log.append(record)
        follower.high_watermark = max(
            follower.high_watermark, min(source.high_watermark, len(follower.log))
        )

    def shrink(self, node):
        """A leader looks for laggards."""
        replica = self.replicas[node]
        leading = replica.leading
        if replica.is_alive and leading is not None:
            late = leading.lagging(len(replica.log), self.now_ms, LAG_MS)
            if late and leading.pending is None:
                leading.propose(set(leading.isr) - late, BrokerEpoch(replica.broker_epoch))
            self._advance(replica)

    def _advance(self, replica):
        end = replica.leading.committed_end(Offset(len(replica.log)))
        for offset in range(replica.high_watermark, end):
            before = self.committed.setdefault(offset, replica.log[offset])
            assert before == replica.log[offset], "a committed offset was given to another record"
        replica.high_watermark = max(replica.high_watermark, end)

    # the controller

    def answer(self, node, *, is_told):
        """The controller decides what a leader asked for; its answer may be lost."""
        replica = self.replicas[node]
        update = replica.leading.pending if replica.leading is not None else None
        if not replica.is_alive or update is None:
            return
        now = self.metadata
        if update.leader_epoch != now.epoch or update.partition_epoch != now.partition_epoch:
            return  # fenced, or out of date: newer metadata decides
        if not all(now.is_eligible(member, epoch) for member, epoch in _followers(update)):
            replica.leading.withdraw(update)
            self._advance(replica)
            return
        isr = tuple(sorted(update.nodes))
        self.metadata = replace(now, isr=isr, partition_epoch=now.partition_epoch + 1)
        if is_told:
            replica.leading.commit_isr(isr, self.metadata.partition_epoch)
            self._advance(replica)

    def crash(self, node):
        replica = self.replicas[node]
        replica.is_alive = False
        replica.leading = None
        self._without(node)

    def restart(self, node, lost):
        replica = self.replicas[node]
        if replica.is_alive:
            return
        if self.metadata.isr != (node,):
            replica.truncate(max(0, len(replica.log) - lost))
        replica.is_alive = True
        replica.broker_epoch += 1
        replica.known = Metadata(epoch=-1, partition_epoch=-1)
        # A checkpoint is older than the high watermark that it was made from.
        replica.high_watermark = min(replica.high_watermark // 2, len(replica.log))
        brokers = (*self.metadata.brokers, (node, replica.broker_epoch))
        self.metadata = replace(self.metadata, brokers=tuple(sorted(brokers)))
        if self.metadata.leader < 0 and node in self.metadata.isr:
            self._elect(node, self.metadata.isr)

    def _without(self, node):
        now = self.metadata
        brokers = tuple(entry for entry in now.brokers if entry[0] != node)
        self.metadata = now = replace(now, brokers=brokers)
        isr = tuple(member for member in now.isr if member != node) or now.isr
        if now.leader == node:
            able = [member for member in isr if self.replicas[member].is_alive]
            self._elect(able[0] if able else -1, isr)
        elif isr != now.isr:
            self.metadata = replace(now, isr=isr, partition_epoch=now.partition_epoch + 1)

    def prefer(self, node):
        """Leadership moves without a failure."""
        if self.replicas[node].is_alive and node in self.metadata.isr:
            self._elect(node, self.metadata.isr)

    def _elect(self, leader, isr):
        now = self.metadata
        self.metadata = replace(
            now,
            leader=leader,
            epoch=now.epoch + 1,
            isr=isr,
            partition_epoch=now.partition_epoch + 1,
        )

    # the invariants

    def check(self):
        for replica in self.replicas.values():
            for offset in range(replica.high_watermark):
                assert self.committed.get(offset) == replica.log[offset], (
                    f"broker {replica.node} serves offset {offset}, which is not committed"
                )
        for node in self.metadata.isr:
            log = self.replicas[node].log
            for offset, record in self.committed.items():
                assert offset < len(log), f"in-sync broker {node} lacks committed offset {offset}"
                assert log[offset] == record, f"broker {node} has another record at {offset}"
        writable = [
            (replica.leading.epoch, replica.node)
            for replica in self.replicas.values()
            if replica.leading is not None
        ]
        assert len({epoch for epoch, _ in writable}) == len(writable), "two leaders in one epoch"


def _followers(update: IsrUpdate):
    return update.members[1:]
