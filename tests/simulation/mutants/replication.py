"""Planted bugs of the metadata quorum and of replication, each against a rule of KRaft or Kafka."""

from typing import Any

from headrace_broker.log.files import replace_file
from headrace_broker.metadata import partition_change
from headrace_broker.raft import elections, leading
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.fetch import replica_sessions
from headrace_broker.server.partitions import stray_replicas
from headrace_broker.server.partitions.flushing import GroupCommit
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.quorum.metadata_loader import MetadataLoader
from headrace_broker.server.quorum.quorum_state import QuorumStateFile
from headrace_broker.server.quorum.raft_log import MetadataLog
from simulation.mutants.mutant import Mutant, does


def _always(_original: Any) -> Any:
    return lambda *_arguments, **_named: True


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


def _leaders_end(_original: Any) -> Any:
    return lambda _self, leader_end: leader_end


def _truncate_by_high_watermark(_original: Any) -> Any:
    def truncate(self: Partition, _diverging: Any) -> int:
        self.log.truncate_to(self.high_watermark)
        return self.log.log_end_offset

    return truncate


def _trust_own_log(original: Any) -> Any:
    def new_leader_state(self: Partition) -> LeaderState:
        state: LeaderState = original(self)
        self.high_watermark = self.log.high_watermark = self.log.log_end_offset
        return state

    return new_leader_state


def _log_end(_original: Any) -> Any:
    return property(lambda self: self._log.log_end_offset)


def _forget_votes(_original: Any) -> Any:
    def write(self: QuorumStateFile, _state: Any) -> None:
        if not self.path.exists():
            replace_file(self.path, b"")
            self.path.unlink()

    return write


def _first_alive(_original: Any) -> Any:
    def elect(
        before: Any, _target: Any, replicas: Any, sync: Any, rules: Any
    ) -> partition_change._Sync:
        for node in (before.leader, *replicas):
            if rules.can_lead(node):
                isr = sync.isr if node in sync.isr else (node,)
                return partition_change._Sync(node, isr, ())
        return partition_change._Sync(-1, sync.isr, sync.elr)

    return elect


def _commit_alone(_original: Any) -> Any:
    def update(replica: Any, leader: Any) -> bool:
        end = replica.log.end.offset
        return end > leader.epoch_start_offset and bool(replica.advance_high_watermark(end))

    return update


def _publish_snapshot_at_once(original: Any) -> Any:
    def load(self: MetadataLoader, snapshot_id: Any) -> None:
        self.release()
        original(self, snapshot_id)

    return load


def _flush_nothing(_original: Any) -> Any:
    return lambda _self: lambda: None


REPLICATION_MUTANTS = (
    Mutant(
        name="records are acknowledged before the in-sync set has them",
        owner=LeaderState,
        attribute="committed_end",
        replace=_leaders_end,
        nodes=3,
        seed_known=2,
    ),
    Mutant(
        name="replicas vouch for what is not on their disks",
        owner=GroupCommit,
        attribute="durable_end",
        replace=_log_end,
        nodes=3,
        seeds_max=60,
        seed_known=37,
    ),
    Mutant(
        name="followers truncate by high watermark",
        owner=Partition,
        attribute="truncate",
        replace=_truncate_by_high_watermark,
        nodes=3,
        seeds_max=60,
        seed_known=35,
    ),
    Mutant(
        name="a follower's log may part from the leader's",
        owner=replica_sessions,
        attribute="diverging_epoch",
        replace=_nothing,
        nodes=3,
        seed_known=2,
    ),
    Mutant(
        name="a new leader serves above its recovered high watermark",
        owner=Partition,
        attribute="_new_leader_state",
        replace=_trust_own_log,
        nodes=3,
        seeds_max=100,
    ),
    Mutant(
        name="anybody alive becomes leader",
        owner=partition_change,
        attribute="_elect",
        replace=_first_alive,
        nodes=3,
        seed_known=21,
    ),
    Mutant(
        name="votes are not remembered",
        owner=QuorumStateFile,
        attribute="write",
        replace=_forget_votes,
        nodes=3,
    ),
    Mutant(
        name="a second vote in an epoch is granted",
        owner=elections,
        attribute="may_grant",
        replace=_always,
        nodes=3,
        seed_known=3,
    ),
    Mutant(
        name="votes go to logs that lack committed records",
        owner=elections,
        attribute="is_up_to_date",
        replace=_always,
        nodes=3,
        seed_known=3,
    ),
    Mutant(
        name="metadata is committed without a majority",
        owner=leading,
        attribute="update_high_watermark",
        replace=_commit_alone,
        nodes=3,
    ),
    Mutant(
        name="a snapshot is published before the node has caught up",
        owner=MetadataLoader,
        attribute="load_snapshot",
        replace=_publish_snapshot_at_once,
        nodes=3,
        needs=lambda profile: (
            "churn" in profile.works
            and "metadata.log.max.record.bytes.between.snapshots" in profile.settings
        ),
        seeds_max=60,
        seed_known=111,
    ),
    Mutant(
        name="strays keep their names",
        owner=stray_replicas,
        attribute="_set_aside",
        replace=_nothing,
        nodes=5,
        needs=does("reassign"),
        seed_known=10,
    ),
    Mutant(
        name="metadata is acknowledged before fsync",
        owner=MetadataLog,
        attribute="begin_flush",
        replace=_flush_nothing,
        nodes=3,
        seeds_max=40,
        seed_known=2,
    ),
)
