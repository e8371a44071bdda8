"""What never goes back, and what follows from what a replica or an image says of itself.

Partition epochs and log starts go on only; what an fsync covered is there after a restart; nobody
waits for what is committed already; a topic id is one topic's for ever.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.server.partitions.flushing import GroupCommit
from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant
from simulation.invariants.partitions import name_of
from simulation.loop import ProcessEnded
from simulation.observing import observer

# A request is answered, or made again after 5 s; faults are over after a few seconds.
_PENDING_SECONDS = 30.0
Place = tuple[int, UUID, int]
"""A replica: its node, its topic, its index."""


@dataclass(slots=True)
class Promise:
    """What a process has made durable of a replica, until it cuts its log itself."""

    partition: Any
    directory: str
    end: int
    start: int
    """The largest log start that was written: it stays, whatever a later checkpoint leaves out."""


class Changes(Invariant):
    """Compares each replica with what it was at the last look, over restarts, too."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._epochs: dict[Any, int] = {}
        self._starts: dict[Any, int] = {}
        self._promises: dict[Place, Promise] = {}
        self._pending: dict[Any, tuple[Any, float]] = {}
        """The in-sync sets that leaders ask for, and since when."""
        self._names: dict[UUID, str] = {}
        self._images: dict[int, Any] = {}

    def check_node(self, node: Node) -> None:
        """Check a node's replicas, and the topics that it knows."""
        broker: Any = node.broker
        for partition in broker.replicas:
            self._check_order(node, partition)
            self._check_leader(node, partition)
            self._check_waiters(node, partition)
            self._check_promise(node, partition)
            self._check_bounds(node, partition)
        image = broker.replicas.host.image
        if self._images.get(node.node_id) is not image:
            self._images[node.node_id] = image
            self._check_topics(node, image)

    def _check_order(self, node: Node, partition: Any) -> None:
        epoch, start = int(partition.partition_epoch), int(partition.log.log_start_offset)
        if epoch < self._epochs.get(partition, -1):
            self._violate("partition-epoch-went-back", node, partition, f"to {epoch}")
        self._epochs[partition] = epoch
        # A truncation may go below the start; a log that is cut whole begins where it is told.
        lowest = self.history.cut_to.pop(partition.log, start)
        known = min(self._starts.get(partition, 0), lowest)
        if start < known:
            self._violate("log-start-went-back", node, partition, f"from {known} to {start}")
        self._starts[partition] = start

    def _check_leader(self, node: Node, partition: Any) -> None:
        """A leader's state is that of its partition, and the log knows the same high watermark."""
        leading = partition.leading
        if partition.high_watermark != partition.log.high_watermark:
            self._violate(
                "high-watermarks-differ",
                node,
                partition,
                f"{partition.high_watermark}, its log has {partition.log.high_watermark}",
            )
        if leading is None:
            return
        told = (leading.epoch, leading.partition_epoch, tuple(leading.isr))
        known = (
            partition.leader_epoch,
            partition.partition_epoch,
            tuple(partition.in_sync_replicas),
        )
        if told != known:
            self._violate("leader-differs", node, partition, f"{told}, the partition is of {known}")
        asked, since = self._pending.get(partition, (None, 0.0))
        if asked is not leading.pending:
            self._pending[partition] = (leading.pending, self.cluster.loop.time())
        elif asked is not None and self.cluster.loop.time() - since > _PENDING_SECONDS:
            self._violate("in-sync-set-pending", node, partition, f"{asked} since {since:.1f} s")
        if node.node_id not in leading.isr:
            self._violate("leader-not-in-sync", node, partition, f"{leading.isr} are in sync")

    def _check_waiters(self, node: Node, partition: Any) -> None:
        """Who waits for a commit, or an fsync, is told as soon as it is so."""
        waiting = partition._commit_waiters._heap
        if waiting and waiting[0][0] <= partition.high_watermark:
            self._violate(
                "waits-in-vain",
                node,
                partition,
                f"for {waiting[0][0]}, {partition.high_watermark} is committed",
            )

    def _check_promise(self, node: Node, partition: Any) -> None:
        """What an fsync covered is there in the next process, too."""
        log = partition.log
        place = (node.node_id, partition.topic_id, int(partition.index))
        directory = str(log.directory)
        known = self._promises.get(place)
        cut = self.history.cut_logs.pop(directory, None)
        start = 0
        if known is None or node.cluster.rotting is node:
            pass
        elif known.directory == directory:
            start, end = known.start, known.end
            if cut is not None:
                start, end = min(start, cut), min(end, cut)
            if known.partition is not partition:
                self._check_successor(node, partition, start, end)
        elif known.partition is partition:
            # It moved, and so did what was promised.
            start = min(known.start, int(log.log_start_offset))
        holder = node.broker.directories.holder(log)  # type: ignore[union-attr]  # it is ready
        starts = {} if holder is None else holder._log_starts
        start = max(start, starts.get((partition.topic, partition.index), 0))
        self._promises[place] = Promise(partition, directory, int(log.recovery_point), start)

    def _check_successor(self, node: Node, partition: Any, start: int, end: int) -> None:
        log = partition.log
        if log.log_end_offset < end:
            self._violate(
                "fsynced-and-lost",
                node,
                partition,
                f"a new process has {log.log_end_offset}, below {end} was on disk",
            )
        if log.log_start_offset < start:
            self._violate(
                "deleted-and-back",
                node,
                partition,
                f"a new process begins at {log.log_start_offset}, {start} was on disk",
            )

    def _check_bounds(self, node: Node, partition: Any) -> None:
        """What is durable, or compacted, is there; no checkpoint on disk vouches for more."""
        log, key = partition.log, (partition.topic, partition.index)
        holder = node.broker.directories.holder(log)  # type: ignore[union-attr]  # it is ready
        written = {} if holder is None else holder._recovery_points
        for name, offset, bound in (
            ("recovery point", log.recovery_point, log.log_end_offset),
            ("compacted", log.cleaner_offset, log.log_end_offset),
            ("recovery point on disk", written.get(key, 0), log.recovery_point),
        ):
            if offset > bound:
                self._violate("beyond-the-end", node, partition, f"{name} {offset} above {bound}")

    def _check_topics(self, node: Node, image: Any) -> None:
        for topic_id, topic in image.topics_by_id.items():
            name = self._names.setdefault(topic_id, topic.name)
            if name != topic.name:
                self.history.violate(
                    "topic-id", f"{node}: {topic_id} was {name}'s, and is {topic.name}'s"
                )
        for partition in node.broker.replicas:  # type: ignore[union-attr]  # it is ready
            topic = image.topics_by_id.get(partition.topic_id)
            assigned = None if topic is None else topic.partitions.get(partition.index)
            if assigned is not None and node.node_id not in assigned.replicas:
                waits = node.broker._metadata_quorum.loader.image is not image
                if not waits:
                    self._violate(
                        "serves-without-a-replica", node, partition, f"{assigned.replicas} have it"
                    )

    def _violate(self, kind: str, node: Node, partition: Any, text: str) -> None:
        self.history.violate(kind, f"{name_of(node, partition)}: {text}")


@observer(PartitionLog, "_truncated")
def _truncated(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    """Note how far a log was cut since the last look; nobody remembers what was cut."""
    original(log, offset)
    history.cut_to[log] = min(offset, history.cut_to.get(log, offset))
    _note_cut(history, log, offset)
    for producer_id, state in log.producers.items():
        if max(state.last_offset, state.txn_first_offset) >= offset:
            history.violate(
                "producers-above-end", f"{log.directory.name}: {producer_id} at {offset}: {state}"
            )


@observer(PartitionLog, "_truncate_to")
def _truncate_to(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    """Where the machine fails in the middle, the next process may have any of what was above."""
    last = log.segments.floor(offset)
    try:
        original(log, offset)
    except ProcessEnded:
        _note_cut(history, log, int(last.base_offset) if last is not None else 0)
        raise


@observer(PartitionLog, "truncate_fully_and_start_at")
def _start_anew(history: History, original: Any, log: PartitionLog, offset: int) -> None:
    """The leader has nothing of this log: a process that dies meanwhile may leave nothing of it."""
    try:
        original(log, offset)
    except ProcessEnded:
        _note_cut(history, log, 0)
        raise


def _note_cut(history: History, log: PartitionLog, offset: int) -> None:
    directory = str(log.directory)
    history.cut_logs[directory] = min(offset, history.cut_logs.get(directory, offset))


@observer(LogDirectory, "_take_away")
def _take_away(
    history: History, original: Any, directory: LogDirectory, topic: str, index: int, suffix: str
) -> Any:
    """Note that a replica is given up: another one may begin under its name."""
    history.cut_logs[str(directory.path / f"{topic}-{index}")] = 0
    return original(directory, topic, index, suffix)


@observer(PartitionLog, "_look")
def _look(history: History, original: Any, log: PartitionLog, suspicion: Any) -> None:
    """Nothing is taken for damaged in a log that is open, where no disk damages anything."""
    if not history.rots and hasattr(log, "producers"):
        history.violate("suspected-damage", f"{log.directory.name}: {suspicion}")
    original(log, suspicion)


@observer(GroupCommit, "_finish")
def _finish(history: History, original: Any, group_commit: GroupCommit, *arguments: Any) -> None:
    """What an fsync makes durable is committed at once, where the in-sync replicas have it."""
    original(group_commit, *arguments)
    partition = getattr(group_commit._on_flushed, "__self__", None)
    leading = getattr(partition, "leading", None)
    if partition is None or leading is None or group_commit._is_closed:
        return
    end = leading.committed_end(partition.durable_end)
    if end > partition.high_watermark:
        history.violate(
            "high-watermark-behind",
            f"{partition.topic}-{partition.index}: {partition.high_watermark}, not {end}",
        )
