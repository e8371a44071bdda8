"""Invariants of transactions on the nodes: the last stable offset, outcomes, and markers.

What clients saw of transactions is judged by `simulation.atomicity`.
"""

from typing import Any

from headrace_broker.coordinator.transactions.shard import TransactionShard
from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import TransactionVersion
from headrace_broker.protocol.batch import ControlType
from headrace_broker.server import broker as broker_module
from headrace_broker.server.api import write_txn_markers
from headrace_broker.server.groups import group_driver_log
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.transactions import coordinator
from headrace_broker.server.transactions.shard_driver import ShardDriver, Status
from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant
from simulation.invariants.logs import batches_with_markers
from simulation.invariants.partitions import name_of
from simulation.observing import observer

TOPICS = frozenset({"orders", "ledger", "__consumer_offsets"})


class Transactions(Invariant):
    """Looks at leaders' last stable offsets, and at what coordinators have decided."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._stable: dict[Any, tuple[int, int]] = {}
        """By replica and leader epoch: the last stable offset and the high watermark."""
        self._decided: dict[tuple[str, int, int, int], str] = {}

    def check_node(self, node: Node) -> None:
        """Check a node's leaders and its coordinator."""
        broker: Any = node.broker
        if "transactions" not in self.cluster.profile.works:
            return
        for partition in broker.replicas:
            if partition.topic in TOPICS and partition.leading is not None:
                self._check_stable(node, partition)
        for driver in broker.transactions._shards.values():
            for transaction in driver.shard.transactions.values():
                self._check_decision(node, transaction)

    def _check_stable(self, node: Node, partition: Any) -> None:
        """It is where the log says, and goes on only: nothing is read that may yet be aborted."""
        watermark = partition.high_watermark
        stable = min(watermark, partition.log.last_stable_offset)
        known = self._stable.get((partition, partition.leader_epoch), (0, -1))
        if known == (stable, watermark):
            return
        self._stable[partition, partition.leader_epoch] = (stable, watermark)
        if stable < known[0]:
            self.history.violate(
                "last-stable-went-back", f"{name_of(node, partition)}: {known[0]} to {stable}"
            )
        true, aborted = read_transactions(partition.log, watermark)
        # What compaction has emptied may have been known before.
        if stable not in (true, read_transactions(partition.log, watermark, is_emptied=True)[0]):
            self.history.violate(
                "last-stable-offset",
                f"{name_of(node, partition)} says {stable} below {watermark}, its log {true}",
            )
        known_aborted = {
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for segment in partition.log.segments
            for entry in segment.transaction_index.entries
        }
        if self.cluster.profile.cleanup != "compact" and known_aborted != aborted:
            self.history.violate(
                "aborted-index",
                f"{name_of(node, partition)} says {sorted(known_aborted)}, its log "
                f"{sorted(aborted)}",
            )

    def _check_decision(self, node: Node, transaction: Any) -> None:
        """A decided outcome stays, whoever coordinates."""
        status = transaction.status
        if not status.is_prepared:
            return
        key = (
            transaction.transactional_id,
            transaction.producer_id,
            transaction.epoch,
            transaction.start_ms,
        )
        before = self._decided.setdefault(key, status.label)
        if before != status.label:
            self.history.violate(
                "decision-reversed", f"{key} on {node}: {before}, then {status.label}"
            )


def read_transactions(
    log: Any, high_watermark: int, *, is_emptied: bool = False
) -> tuple[int, set[tuple[int, int, int]]]:
    """Read a log: return its last stable offset, and the aborted transactions up to its end.

    These by producer id, first offset, and the marker's offset. `is_emptied`: a batch without
    records, as compaction leaves a producer's last one, begins a transaction, too.
    """
    begun: dict[int, int] = {}
    held: list[int] = []
    aborted: set[tuple[int, int, int]] = set()
    for header, kind in batches_with_markers(log):
        producer_id = header.producer_id
        if kind is not None:
            first = begun.pop(producer_id, None)
            if first is not None and header.base_offset >= high_watermark:
                held.append(first)
            if first is not None and kind == ControlType.ABORT:
                aborted.add((producer_id, first, header.base_offset))
        elif header.is_transactional and (header.record_count or is_emptied):
            begun.setdefault(producer_id, header.base_offset)
    stable = min([*begun.values(), *held, high_watermark])
    return max(log.log_start_offset, stable), aborted


# ---- the version of a transaction


@observer(coordinator, "decide_end")
def _decide_end(history: History, original: Any, *arguments: Any, **named: Any) -> Any:
    """The epoch moves where the client hears of it, whatever the cluster's level is by then.

    And who ends a transaction has its epoch: a repeated end says nothing of the next one (KIP-890).
    """
    shard, name, identity, now, version = arguments
    before = shard.transactions.get(name)
    decision = original(*arguments, **named)
    if decision.record is not None and before is not None:
        if identity != before.identity:
            history.violate("ended-by-another", f"{before} was ended by {identity}")
        moved = decision.record.transaction.epoch - before.epoch
        if moved != (version >= TransactionVersion.TV_2):
            history.violate(
                "epoch-of-an-end",
                f"{before} was ended with version {version} under {now.version}: "
                f"its epoch moved by {moved}",
            )
    return decision


# ---- the order of two writes


def _note(history: History, transaction: Any) -> None:
    if transaction is not None and transaction.status.is_prepared:
        outcomes = history.decided.setdefault((transaction.producer_id, transaction.epoch), set())
        outcomes.add(transaction.status is TransactionStatus.PREPARE_COMMIT)


@observer(TransactionShard, "apply")
def _apply(history: History, original: Any, shard: TransactionShard, record: Any) -> None:
    original(shard, record)
    _note(history, record.transaction)


@observer(ShardDriver, "_replay")
async def _replay(history: History, original: Any, driver: ShardDriver) -> None:
    """A coordinator serves what it read when all of that is committed."""
    await original(driver)
    if driver.status is Status.ACTIVE:
        for transaction in driver.shard.prepared():
            _note(history, transaction)


@observer(group_driver_log, "write_marker")
@observer(write_txn_markers, "write_marker")
def _write_marker(
    history: History, original: Any, partition: Partition, marker: Any, now_ms: Any
) -> Any:
    """A marker follows a decision that is committed, and says what was decided."""
    decided = history.decided.get((marker.producer_id, marker.producer_epoch), set())
    state = partition.log.producers.get(marker.producer_id)
    end, why = partition.log.log_end_offset, _why_refused(state, marker)
    written = original(partition, marker, now_ms)
    key = (partition, partition.leader_epoch, marker.producer_id, marker.producer_epoch)
    history.marker_ends.setdefault(key, written)
    asked = partition.log.producers.verifications._asked.get(marker.producer_id)
    if asked is not None and (asked.epoch < marker.producer_epoch or not marker.bumped_epoch):
        history.violate(
            "verification-outlives-its-transaction",
            f"{partition.topic}-{partition.index}: {marker} leaves what epoch {asked.epoch} asked",
        )
    # What was refused decides nothing, whoever sent it.
    if marker.commits not in decided:
        history.violate(
            "marker-before-decision",
            f"{marker} in {partition.topic}-{partition.index}, decided: {decided}",
        )
    if why == "it is there" and partition.log.log_end_offset > end:
        history.violate("marker-twice", f"{marker} in {partition.topic}-{partition.index}")
    elif why and why != "it is there":
        history.violate("marker", f"{marker} is taken, but {why}")
    return written


@observer(broker_module, "write_markers")
@observer(write_txn_markers, "write_markers")
async def _write_markers(history: History, original: Any, broker: Any, request: Any) -> Any:
    """A marker that is answered with success is committed: the coordinator sends it no more."""
    response = await original(broker, request)
    for asked, result in zip(request.markers, response.markers, strict=True):
        for topic in result.topics:
            for outcome in topic.partitions:
                partition = broker.replicas.partitions_of(topic.name).get(outcome.partition_index)
                if outcome.error_code or partition is None:
                    continue
                epoch = partition.leader_epoch
                key = (partition, epoch, asked.producer_id, asked.producer_epoch)
                end = history.marker_ends.pop(key, 0)
                if partition.leading is not None and partition.high_watermark < end:
                    history.violate(
                        "marker-answered-too-early",
                        f"{partition.topic}-{partition.index}: {key[2:]} ends at {end}, "
                        f"{partition.high_watermark} is committed",
                    )
    return response


def _why_refused(state: Any, marker: Any) -> str:
    """Say why a marker must not be written, "" where it may be (KIP-98, KIP-890, KIP-1228)."""
    if state is None:
        return ""
    if marker.producer_epoch < state.epoch:
        return f"the producer has epoch {state.epoch}"
    is_known = marker.bumped_epoch and marker.producer_epoch == state.epoch
    if marker.coordinator_epoch < state.coordinator_epoch and (
        is_known or not marker.bumped_epoch or marker.producer_epoch <= state.epoch
    ):
        return f"coordinator {state.coordinator_epoch} has written"
    if is_known:
        return "it is there" if state.txn_first_offset < 0 else "the next transaction is open"
    return ""
