"""Planted bugs that nobody had thought of before the invariants that find them were there.

Each is one boundary, one order of two steps, one line forgotten; `invariants.changes` and
`invariants.calm` look for what most of them leave behind.
"""

from headrace_broker.coordinator import rebalance
from headrace_broker.log import producer_state, recovery
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.metadata import partition_change
from headrace_broker.metadata.brokers import registration
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.raft import elections, node
from headrace_broker.raft.log_index import LogIndex
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.api import delete_records
from headrace_broker.server.fetch import replica_sessions
from headrace_broker.server.groups import group_transactions
from headrace_broker.server.groups.group_driver_shard import ShardDriver
from headrace_broker.server.partitions import partition as partition_module
from headrace_broker.server.partitions.flushing import GroupCommit
from headrace_broker.server.partitions.isr_updates import IsrUpdates
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_manager import ReplicaManager
from headrace_broker.server.partitions.waiting import CommitWaiters
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.profile import Profile
from simulation.workloads.settings import SINCE as SETTINGS_SINCE
from simulation.workloads.workload import FORGETTING_SINCE, POWER_CUTS_SINCE, STRANGERS_SINCE

_rule = rules_with(nodes=3, seeds_max=150)


def _syncs(profile: Profile) -> bool:
    return profile.has_fsyncs


def _syncs_and_compacts(profile: Profile) -> bool:
    return profile.has_fsyncs and profile.cleanup == "compact"


OVERLOOKED_MUTANTS = (
    # ---- replication
    _rule(
        "a committed in-sync set leaves the one asked for pending",
        LeaderState,
        "commit_isr",
        edited("self.pending = None", "pass"),
    ),
    _rule(
        "an older image takes the place of an AlterPartition's answer",
        Partition,
        "apply",
        edited("if image.partition_epoch > self.partition_epoch:", "if True:"),
    ),
    _rule(
        "a leader alone knows the in-sync set that it was answered",
        Partition,
        "isr_committed",
        edited("self.in_sync_replicas, self.partition_epoch = isr, partition_epoch", "pass"),
    ),
    _rule(
        "an in-sync set is given up when its answer is lost",
        IsrUpdates,
        "_send_all",
        edited(
            'log.info("in-sync sets could not be changed yet", cause=str(error))',
            "[one.leading.withdraw(asked) for one, asked in batch.values() if one.leading]",
        ),
        seeds_max=300,
    ),
    _rule(
        "a follower keeps what its leader deleted",
        Partition,
        "follow_high_watermark",
        edited("if leader_log_start > log.log_start_offset and", "if False and"),
        needs=does("trim"),
    ),
    _rule(
        "a follower keeps the epoch that it led without a record",
        PartitionLog,
        "truncate_to",
        edited("self.leader_epochs.truncate_from_end(self.log_end_offset)", "pass"),
    ),
    _rule(
        "followers are not told of a commit",
        Partition,
        "_commit",
        edited("fetch.changed()", "pass"),
    ),
    _rule(
        "who waits for exactly what is committed waits on",
        CommitWaiters,
        "commit",
        edited("heap[0][0] <= end", "heap[0][0] < end"),
    ),
    _rule(
        "a follower without the leader's epoch keeps nothing below it",
        partition_module,
        "truncation_offset",
        edited("return min(end, log_end)", "return min(diverging.end_offset, log_end)"),
    ),
    _rule(
        "an older last epoch does not diverge",
        replica_sessions,
        "diverging_epoch",
        edited("epoch < last_fetched_epoch or ", ""),
    ),
    _rule(
        "a replica that was moved away goes on",
        ReplicaManager,
        "_change_replica",
        edited(
            'self._drop(partition, not_leader("the replica moved to another broker"))',
            "partitions[index] = partition",
        ),
        needs=does("reassign"),
        nodes=5,
    ),
    _rule(
        "logs keep the settings that they were opened with",
        ReplicaManager,
        "_change_replica",
        edited("partition.log.update_config(settings.log_config)", "pass"),
        needs=does("settings"),
        since=SETTINGS_SINCE,
    ),
    _rule(
        "a leader keeps the minimum of in-sync replicas that it began with",
        Partition,
        "apply",
        edited("self.min_in_sync_replicas = min_in_sync_replicas", "pass"),
        needs=does("settings"),
        since=SETTINGS_SINCE,
    ),
    _rule(
        "a setting that comes with a change of one partition is that one's alone",
        ReplicaManager,
        "apply",
        edited("for name in sorted(changed):", "for name in changed - set(delta.topics_changed):"),
        nodes=5,
        needs=does("settings"),
        since=SETTINGS_SINCE,
    ),
    _rule(
        "an fsync that ends tells nobody",
        GroupCommit,
        "_finish",
        edited("self._on_flushed()", "pass"),
        needs=_syncs,
    ),
    # ---- the log
    _rule(
        "an fsync leaves out the segment that ends where it begins",
        PartitionLog,
        "begin_flush",
        edited("self.recovery_point - 1)", "self.recovery_point)"),
        needs=_syncs,
        seeds_max=1000,
    ),
    _rule(
        "a truncation leaves the producers of what it cut",
        PartitionLog,
        "_truncated",
        edited("self._load_producers(self._snapshots, _END_OF_TIME)", "pass"),
    ),
    _rule(
        "a truncation leaves the recovery point above the end",
        PartitionLog,
        "_truncated",
        edited("min(self.recovery_point, offset)", "self.recovery_point"),
        needs=_syncs,
    ),
    _rule(
        "a truncation leaves the compacted offset above the end",
        PartitionLog,
        "_truncated",
        edited("min(self.cleaner_offset, offset)", "self.cleaner_offset"),
        needs=lambda profile: profile.cleanup == "compact",
    ),
    _rule(
        "snapshots of producers above a truncation stay",
        PartitionLog,
        "_load_producers",
        edited("snapshot_path(self.directory, offset).unlink(missing_ok=True)", "pass"),
    ),
    _rule(
        "a truncation leaves checkpoints above it",
        LogDirectory,
        "_lower_checkpoints",
        edited("if offsets.get(key, 0) > offset:", "if False:"),
        needs=_syncs,
        seeds_max=300,
    ),
    _rule(
        "a start forgets which records were deleted",
        LogDirectory,
        "_opening",
        edited("log_start_offset=self._log_starts.get(key, 0)", "log_start_offset=0"),
        needs=does("trim"),
    ),
    _rule(
        "a checkpoint leaves out a log start before the segments below are gone",
        LogDirectory,
        "checkpoint_log_start_offsets",
        edited("sync_directory(log.directory)", "pass"),
        needs=lambda profile: does("trim")(profile) and _syncs(profile),
        since=POWER_CUTS_SINCE,
        seeds_max=400,
        nodes=1,
    ),
    _rule(
        "a log start that a kill brought back is without its leader epochs",
        LeaderEpochCache,
        "extend_back",
        edited("if log_start_offset >= known_from:", "if True:"),
        seeds_max=1000,
        nodes=5,
    ),
    _rule(
        "a new leader epoch leaves one that wrote nothing",
        LeaderEpochCache,
        "_note",
        edited("self._cut(start_offset)", "pass"),
    ),
    _rule(
        "a truncation keeps the epoch that begins at the end",
        LeaderEpochCache,
        "_cut",
        edited("self._starts[-1] >= end_offset", "self._starts[-1] > end_offset"),
    ),
    _rule(
        "a hole between two segments is left after a power cut",
        recovery,
        "_recover_tail",
        edited("if not is_cut and not is_apart:", "if not is_cut:"),
        needs=_syncs,
        nodes=5,
        seeds_max=300,
    ),
    _rule(
        "empty segments stay behind the hole that a power cut left in a compacted log",
        recovery,
        "_remove_what_is_apart",
        edited("while len(segments) > 1 and", "while False and"),
        needs=_syncs_and_compacts,
        since=FORGETTING_SINCE,
        nodes=5,
        seeds_max=300,
    ),
    _rule(
        "a torn tail that was cut may come back",
        recovery,
        "recover_segment",
        edited("sync_file(segment.path)", "pass"),
        needs=_syncs,
        seeds_max=1000,
    ),
    _rule(
        "recovery takes the batch that the recovery point divides for whole",
        recovery,
        "_end_of_whole_batches",
        edited(
            "header.last_offset >= recovery_point or ", "header.base_offset >= recovery_point or "
        ),
        needs=_syncs,
        seeds_max=300,
    ),
    _rule(
        "a truncation leaves the index of what it cut",
        LogSegment,
        "truncate",
        edited(
            "self.offset_index.truncate_from_key(relative)\n"
            "    self.offset_index.truncate_above_value(position - 1)",
            "pass",
        ),
    ),
    _rule(
        "a marker at the high watermark counts as committed",
        ProducerStates,
        "note_high_watermark",
        edited("done.last_offset >= high_watermark", "done.last_offset > high_watermark"),
        needs=does("transactions"),
    ),
    _rule(
        "a fenced producer's marker is written",
        ProducerStates,
        "check_marker",
        edited("header.producer_epoch < state.epoch", "False"),
        needs=does("strangers", "transactions"),
        since=STRANGERS_SINCE,
    ),
    _rule(
        "a new producer epoch may begin anywhere",
        producer_state,
        "_check_new_epoch",
        edited("header.base_sequence != 0 and state.epoch != NO_EPOCH", "False"),
        needs=does("strangers"),
        since=STRANGERS_SINCE,
    ),
    # ---- metadata
    _rule(
        "a reassignment is over when one of the new replicas is in sync",
        partition_change,
        "_settle_assignment",
        edited("if kept and set(kept) <= set(kept_isr):", "if kept and kept_isr:"),
        needs=does("reassign"),
        nodes=5,
    ),
    _rule(
        "a removed replica goes on in its leader epoch",
        partition_change,
        "_record",
        edited("or not set(before.replicas) <= set(assignment.replicas)\n", "\n"),
        needs=does("reassign"),
        nodes=5,
    ),
    _rule(
        "blocks of producer ids overlap",
        registration,
        "decide_allocate_producer_ids",
        edited("next_producer_id=start + PRODUCER_ID_BLOCK_SIZE", "next_producer_id=start + 1"),
    ),
    _rule(
        "an fsync of the metadata log vouches for what followed a truncation",
        LogIndex,
        "truncate",
        edited("ticket: min(end, end_offset)", "ticket: end"),
        seeds_max=300,
    ),
    _rule(
        "a former leader's announcement is followed",
        node,
        "_REQUESTS",
        # The table has the function itself: one that was planted beside it would never be called.
        lambda original: (
            original
            | {
                BeginQuorumEpochRequest: edited(
                    "elif partition.leader_epoch < replica.epoch:", "elif False:"
                )(elections.handle_begin_epoch)
            }
        ),
        needs=does("strangers"),
        since=STRANGERS_SINCE,
    ),
    # ---- coordinators
    _rule(
        "a rebalance keeps its generation",
        rebalance,
        "complete_join",
        edited("Generation(group.generation + 1)", "group.generation"),
        needs=does("group"),
    ),
    _rule(
        "an answer does not wait for what was decided before it",
        ShardDriver,
        "_carry_out",
        edited("if not records and not self._unwritten:", "if not records:"),
        seeds_max=300,
    ),
    _rule(
        "a group's memory goes on after an append that was refused",
        ShardDriver,
        "_reload",
        edited(
            "self.status = ShardStatus.LOADING\n    self._abandon()\n    self._load_later()",
            "self._abandon()",
        ),
    ),
    _rule(
        "a refused commit of a transaction stays pending",
        group_transactions,
        "forget_transactional",
        lambda _original: lambda *_arguments: None,
        needs=does("transactions"),
    ),
    # ---- requests
    _rule(
        "records are deleted above the high watermark",
        delete_records,
        "_delete_records",
        edited(
            "if target < 0 or target > partition.high_watermark:",
            "target = min(target, partition.log.log_end_offset)\n    if target < 0:",
        ),
        needs=does("trim"),
        since=6_000_000,
    ),
    _rule(
        "a recreated topic goes on with the folder of the former one",
        ReplicaManager,
        "_open",
        edited("if found is not None and found != topic.topic_id:", "if False:"),
        needs=does("churn"),
    ),
)
