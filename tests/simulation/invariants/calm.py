"""What must agree when all is quiet: replicas with each other, and memory with what is on disk.

Each state that a broker keeps in memory is read once more, from the log or the files that it stands
for: what was decided without a record, or loaded otherwise than it was decided, differs.
"""

import contextvars
from dataclasses import replace
from typing import Any

from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.coordinator.transactions.shard import TransactionShard
from headrace_broker.coordinator.transactions.shard import replay as replay_transaction
from headrace_broker.coordinator.transactions.transaction import Transaction, TransactionVersion
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.config import INFINITE, LogConfig
from headrace_broker.log.producer_recovery import rebuild_producers
from headrace_broker.metadata.settings.setting_types import format_value
from headrace_broker.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from headrace_broker.server.groups.group_driver_shard import ShardStatus
from headrace_broker.server.groups.group_transactions import replay_batches
from headrace_broker.server.transactions.shard_driver import Status
from headrace_broker.server.transactions.state_log import decode_records
from simulation.cluster import Node
from simulation.invariants.invariant import Final, Invariant
from simulation.invariants.logs import batches_of, data_of
from simulation.invariants.partitions import name_of
from simulation.loop import CURRENT

_NEVER = 1 << 62


class Calm(Invariant):
    """Looks once, at the end."""

    def at_the_end(self, final: Final) -> None:  # noqa: ARG002 - what clients read is compared elsewhere
        """Compare all that should be equal."""
        nodes = [node for node in self.cluster.nodes if node.is_ready]
        self._check_images(nodes)
        leaders: dict[tuple[Any, int], Any] = {}
        for node in nodes:
            broker: Any = node.broker
            for partition in broker.replicas:
                if partition.leading is not None:
                    leaders[partition.topic_id, partition.index] = partition
        for node in nodes:
            # A disk is its own process's alone.
            contextvars.Context().run(self._check_node, node, leaders)

    def _check_node(self, node: Node, leaders: dict[tuple[Any, int], Any]) -> None:
        CURRENT.set(node.process)
        broker: Any = node.broker
        for partition in broker.replicas:
            self._check_replica(node, partition)
            leader = leaders.get((partition.topic_id, partition.index))
            if leader is not None:
                self._check_follower(node, partition, leader)
        self._check_groups(node)
        self._check_transactions(node)

    # ---- metadata

    def _check_images(self, nodes: list[Node]) -> None:
        """All have the newest metadata, and serve by it."""
        images = {node: node.broker._metadata_quorum.loader.image for node in nodes}  # type: ignore[union-attr]
        newest = max(images.values(), key=lambda image: image.offset, default=None)
        for node, image in images.items():
            for name in ("topics", "configs", "features", "brokers"):
                if getattr(image, name) != getattr(newest, name):
                    self.history.violate(
                        "metadata-behind",
                        f"{node} has {name} of offset {image.offset}, another those of "
                        f"{newest.offset}",
                    )

    # ---- replicas

    def _check_replica(self, node: Node, partition: Any) -> None:
        log = partition.log
        self._check_config(node, partition)
        if log.is_damaged:
            return
        self._check_segments(node, partition)
        if not log.config.compacts:
            self._check_holes(node, partition)
            self._check_producers(node, partition)

    def _check_config(self, node: Node, partition: Any) -> None:
        """A log goes by its topic's settings."""
        broker: Any = node.broker
        values = broker.replicas.effective_config(partition.topic)
        texts = {name: format_value(value) or "" for name, value in values.items()}
        wanted = replace(LogConfig.from_settings(texts), flush_messages=INFINITE)
        if partition.log.config != wanted:
            self._violate("config-not-applied", node, partition, f"{partition.log.config}")
        for (topic, name), value in self.history.settings.items():
            # A broker goes on looking for a controller when its client has given up, as Kafka's
            # does: what that one asked for may be decided after what was answered last.
            late = self.history.late_settings.get((topic, name), set())
            if topic == partition.topic and texts[name] not in {value, *late}:
                self._violate(
                    "setting-lost", node, partition, f"{name} is {texts[name]}, not {value}"
                )
        if partition.min_in_sync_replicas != values["min.insync.replicas"]:
            self._violate(
                "config-not-applied", node, partition, f"{partition.min_in_sync_replicas} in sync"
            )

    def _check_segments(self, node: Node, partition: Any) -> None:
        """Segments ascend, and their indexes lead to each of their batches."""
        end = 0
        for segment in partition.log.segments:
            if segment.base_offset < end:
                self._violate(
                    "segments-overlap", node, partition, f"{segment.path.name} begins below {end}"
                )
            for at, header in iterate_headers(data_of(segment)):
                found = segment.position_of(header.base_offset)
                if found != at:
                    self._violate(
                        "index",
                        node,
                        partition,
                        f"{segment.path.name} has {header.base_offset} at {at}, the index says "
                        f"{found}",
                    )
                end = header.base_offset + header.last_offset_delta + 1
        if end > partition.log.log_end_offset:
            self._violate("segments-overlap", node, partition, f"batches go on to {end}")

    def _check_holes(self, node: Node, partition: Any) -> None:
        """A log that is not compacted has every offset from its start to its end."""
        log = partition.log
        at = int(log.log_start_offset)
        for header in batches_of(log, at):
            if header.base_offset > at:
                break
            at = header.base_offset + header.last_offset_delta + 1
        if at != log.log_end_offset:
            self._violate(
                "hole", node, partition, f"nothing at {at}, {log.log_end_offset} is the end"
            )

    def _check_producers(self, node: Node, partition: Any) -> None:
        """What is known of producers is what their batches say."""
        log = partition.log
        if any(segment.damages for segment in log.segments):
            return  # damage before the log's start, which nobody heals
        read = rebuild_producers(
            log.directory, log.segments, [], log_end_offset=log.log_end_offset, reindex_from=_NEVER
        )
        for producer_id, state in read.items():
            known = log.producers.get(producer_id)
            if known is None or not _is_in(state, known):
                self._violate(
                    "producers-differ", node, partition, f"{producer_id}: {known}, read: {state}"
                )

    def _check_follower(self, node: Node, partition: Any, leader: Any) -> None:
        """A replica has what its leader has: the end, the start, and the high watermark.

        Coordinators and share partitions may have written just now, so clients' topics only.
        """
        if (partition.topic, partition.index) not in self.cluster.profile.places:
            return
        for name, known, wanted in (
            ("end", partition.log.log_end_offset, leader.log.log_end_offset),
            ("high watermark", partition.high_watermark, leader.high_watermark),
            ("leader epoch", partition.leader_epoch, leader.leader_epoch),
            ("partition epoch", partition.partition_epoch, leader.partition_epoch),
        ):
            if known != wanted:
                self._violate("follower-differs", node, partition, f"{name} {known}, not {wanted}")
        # Retention may have moved the leader's start just now.
        start, wanted = partition.log.log_start_offset, leader.log.log_start_offset
        if start < wanted and self.cluster.profile.keeps_everything:
            self._violate("follower-differs", node, partition, f"start {start}, not {wanted}")

    # ---- coordinators

    def _check_groups(self, node: Node) -> None:
        """A coordinator's groups and offsets are what its partition's records say."""
        broker: Any = node.broker
        for index, driver in broker.groups._shards.items():
            partition = broker.replicas.partitions_of("__consumer_offsets").get(index)
            if partition is None or driver.status is not ShardStatus.ACTIVE or driver._unwritten:
                continue
            shard = GroupShard(partition=index)
            for chunk in _chunks(partition.log):
                replay_batches(shard, chunk)
            for name, known, read in (
                ("groups", _persisted(driver.shard), _persisted(shard)),
                ("offsets", driver.shard.offsets, shard.offsets),
                ("pending offsets", driver.shard.pending_offsets, shard.pending_offsets),
                ("consumer groups", _consumer_groups(driver.shard), _consumer_groups(shard)),
                ("share groups", driver.shard.share_groups, shard.share_groups),
            ):
                self._compare(node, partition, name, known, read)

    def _check_transactions(self, node: Node) -> None:
        broker: Any = node.broker
        for index, driver in broker.transactions._shards.items():
            partition = broker.replicas.partitions_of("__transaction_state").get(index)
            if partition is None or driver.status is not Status.ACTIVE or driver.shard.pending:
                continue
            shard = TransactionShard(partition=index)
            for chunk in _chunks(partition.log):
                for record in decode_records(chunk):
                    replay_transaction(shard, record)
            self._compare(node, partition, "transactions", _written(driver.shard), _written(shard))

    def _compare(
        self, node: Node, partition: Any, name: str, known: dict[Any, Any], read: dict[Any, Any]
    ) -> None:
        for key in {*known, *read}:
            if known.get(key) != read.get(key):
                self._violate(
                    "coordinator-differs-from-its-log",
                    node,
                    partition,
                    f"{name} of {key}: {known.get(key)}, the log has {read.get(key)}",
                )

    def _violate(self, kind: str, node: Node, partition: Any, text: str) -> None:
        self.history.violate(kind, f"{name_of(node, partition)}: {text}")


def _is_in(read: Any, known: Any) -> bool:
    """Whether a producer's state agrees with one that may remember more: batches that are gone."""
    kept = known.batches[-len(read.batches) :] if read.batches else []
    return kept == read.batches and (
        (read.epoch, read.coordinator_epoch, read.txn_first_offset)
        == (known.epoch, known.coordinator_epoch, known.txn_first_offset)
    )


def _chunks(log: Any) -> list[bytes]:
    return [data_of(segment) for segment in log.segments]


def _persisted(shard: GroupShard) -> dict[str, Any]:
    found = {name: group.persisted for name, group in shard.groups.items()}
    return {name: value for name, value in found.items() if value is not None}


def _consumer_groups(shard: GroupShard) -> dict[str, Any]:
    return {
        name: replace(group, empty_since_ms=None, _subscribed=None)
        for name, group in shard.consumer_groups.items()
    }


def _written(shard: TransactionShard) -> dict[str, Any]:
    """Return what records keep of the transactions, and whose markers are to be written."""
    return {
        name: (_as_written(each), name in shard.unmarked)
        for name, each in shard.transactions.items()
    }


def _as_written(transaction: Transaction) -> Transaction:
    """Leave out what has no field, or none in a record of version 0, as in Kafka."""
    written = replace(transaction, last_epoch=NO_PRODUCER_EPOCH)
    if transaction.client_version is TransactionVersion.TV_0:
        return replace(written, previous_producer_id=NO_PRODUCER_ID)
    return written
