"""Planted bugs: one rule of the code each, taken out by one change of its source.

Each epoch check, each minimum and maximum, each fsync, each order of two steps that somebody could
forget.
"""

from typing import Any

from headrace_broker.coordinator import offsets
from headrace_broker.log import checkpoints, partition_log, producer_state
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments.flush import Flush
from headrace_broker.metadata import alter_partition, partition_change
from headrace_broker.metadata.brokers import liveness as broker_liveness
from headrace_broker.metadata.brokers import registration as brokers
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.raft import fetching, following, leading
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.fetch import fast_follower, follower_fetch, replica_sessions
from headrace_broker.server.fetch.replica_sessions import ReplicaFetch
from headrace_broker.server.follower.replica_fetcher import FetchedPartitions, ReplicaFetcher
from headrace_broker.server.groups.group_driver_log import PartitionOffsetsLog
from headrace_broker.server.partitions import partition as partition_module
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.quorum.quorum_state import QuorumStateFile
from headrace_broker.server.quorum.raft_log import MetadataLog
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.profile import Profile
from simulation.workloads.producers import PIPELINED_SINCE
from simulation.workloads.workload import STRANGERS_SINCE


def _no_error(_original: Any) -> Any:
    return lambda *_arguments: ErrorCode.NONE


def _always(_original: Any) -> Any:
    return lambda *_arguments: True


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


def _has_fsyncs(profile: Profile) -> bool:
    return profile.has_fsyncs


def _loses_power_without_fsyncs(profile: Profile) -> bool:
    return profile.loses_power and not profile.has_fsyncs


def _is_tossed_without_fsyncs(profile: Profile) -> bool:
    moved = profile.works & {"toss", "slow toss"}
    return not profile.has_fsyncs and bool(moved) and "reassign" not in profile.works


_has_group = does("group")


def _retains(profile: Profile) -> bool:
    return profile.cleanup == "delete"


def _is_trimmed(profile: Profile) -> bool:
    return _retains(profile) or "trim" in profile.works


_rule = rules_with(nodes=3, seeds_max=200)


_DEFINES_LOG = {
    name: next(kind for kind in PartitionLog.__mro__ if name in vars(kind))
    for name in ("_truncate_to", "finish_flush", "_load")
}

REPLICATION_RULES = (
    _rule(
        "the high watermark ignores the in-sync set asked for",
        LeaderState,
        "maximal_isr",
        edited("found if self.pending is None else found | self.pending.nodes", "found"),
    ),
    _rule(
        "records are committed below min.insync.replicas",
        LeaderState,
        "committed_end",
        edited("len(self.isr) < self.min_in_sync_replicas", "False"),
    ),
    _rule(
        "a follower joins without what the leader's epoch began with",
        LeaderState,
        "may_join",
        edited("max(high_watermark, self.epoch_start_offset)", "high_watermark"),
    ),
    _rule(
        "a follower joins without what is committed",
        LeaderState,
        "may_join",
        edited("progress.fetch_offset >= max(high_watermark, self.epoch_start_offset) and ", ""),
    ),
    _rule(
        "a former process counts after its successor",
        LeaderState,
        "record_fetch",
        edited("broker_epoch < progress.broker_epoch", "False"),
        seeds_max=1000,
    ),
    _rule(
        "a fetch is believed with the broker epoch of a former process",
        LeaderState,
        "record_fetch",
        edited("broker_epoch < progress.broker_epoch", "False"),
        also=(
            (fast_follower, "is_believed", _always),
            (follower_fetch, "is_believed", _always),
        ),
    ),
    _rule(
        "an older in-sync set takes a newer one's place",
        LeaderState,
        "commit_isr",
        edited("partition_epoch <= self.partition_epoch", "False"),
    ),
    _rule(
        "an answer to a former leader epoch changes the in-sync set",
        Partition,
        "isr_committed",
        edited("leading is None or leading.epoch != leader_epoch", "leading is None"),
        seeds_max=1000,
    ),
    _rule(
        "a follower's high watermark goes beyond its log",
        Partition,
        "follow_high_watermark",
        edited("min(leader_high_watermark, log.log_end_offset)", "leader_high_watermark"),
    ),
    _rule(
        "a follower's log starts above its high watermark",
        Partition,
        "follow_high_watermark",
        edited(" and leader_log_start <= self.high_watermark", ""),
        needs=_is_trimmed,
    ),
    _rule(
        "a truncation leaves the high watermark",
        Partition,
        "_truncated",
        edited("min(self.high_watermark, end)", "self.high_watermark"),
    ),
    _rule(
        "a follower's leader epoch is not checked",
        ReplicaFetch,
        "_admit",
        edited("partition.check_leader(self.leader_epoch)", "partition.check_leader(-1)"),
    ),
    _rule("clients' leader epochs are not checked", Partition, "check_epoch", _nothing),
    _rule(
        "what waits is acknowledged when leadership is lost",
        Partition,
        "_stop_leading",
        edited(
            'self._commit_waiters.fail(not_leader("the leader changed; the outcome is unknown"))',
            "self._commit_waiters.commit(self.log.log_end_offset)",
        ),
    ),
    _rule(
        "a follower takes what a leader of a former epoch answered",
        FetchedPartitions,
        "take",
        edited("or partition.leader_epoch != position.leader_epoch", ""),
        seeds_max=1000,
    ),
    _rule(
        "a follower fetches on before its fsync",
        ReplicaFetcher,
        "_go_on_when_durable",
        edited("await partition.flushing.wait_durable()", "pass"),
        needs=_has_fsyncs,
    ),
    _rule(
        "a log that is longer than the leader's does not diverge",
        replica_sessions,
        "diverging_epoch",
        edited(" or end < fetch_offset", ""),
    ),
    _rule(
        "a follower keeps what lies above the end of the leader's epoch",
        partition_module,
        "truncation_offset",
        edited("return min(end, diverging.end_offset, log_end)", "return min(end, log_end)"),
    ),
    _rule(
        "requests sent before a leader led are told of a gap",
        Partition,
        "append",
        edited("raise refusal from None", "raise"),
        seeds_max=1000,
    ),
    _rule(
        "requests behind those that lacked replicas are told of a gap",
        Partition,
        "append",
        edited("self.note_refusal(ErrorCode.NOT_ENOUGH_REPLICAS)", "pass"),
        since=PIPELINED_SINCE,
        seeds_max=300,
    ),
    _rule(
        "a producer that is new to a leader begins anywhere",
        Partition,
        "note_refusal",
        edited("self.log.producers.begin_with_first = True", "pass"),
        since=PIPELINED_SINCE,
        seeds_max=300,
    ),
    _rule(
        "a new leader does not note where its epoch began",
        Partition,
        "_new_leader_state",
        edited("log.leader_epochs.assign(self.leader_epoch, end)", "pass"),
    ),
)

CONTROL_RULES = (
    _rule(
        "AlterPartition is decided without looking at epochs",
        alter_partition,
        "_epoch_error",
        _no_error,
    ),
    _rule(
        "AlterPartition believes a former registration",
        alter_partition,
        "_is_eligible",
        edited("and state.broker_epoch in (_ANY_BROKER_EPOCH, broker.epoch)", ""),
        needs=does("strangers"),
        since=STRANGERS_SINCE,
    ),
    _rule(
        "AlterPartition takes fenced replicas in",
        alter_partition,
        "_is_eligible",
        edited("and broker.is_active", ""),
        needs=does("strangers"),
        since=STRANGERS_SINCE,
    ),
    _rule(
        "a former process of a leader is believed",
        alter_partition,
        "registered_broker",
        edited("broker.epoch != epoch", "False"),
        seeds_max=1000,
    ),
    _rule(
        "an unclean restart stays in sync",
        brokers,
        "broker_leaves",
        edited("frozenset({node_id}) if lost_records else frozenset()", "frozenset()"),
        needs=_loses_power_without_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "an unclean restart stays eligible",
        partition_change,
        "_settle_leader",
        edited("- {*isr, *target.lost}", "- {*isr}"),
        seeds_max=1000,
    ),
    _rule(
        "whoever left the in-sync set below the minimum is not eligible",
        partition_change,
        "_settle_leader",
        edited("{*before.isr, *before.eligible_leader_replicas}", "{*before.isr}"),
        seeds_max=1000,
    ),
    _rule(
        "a broker that was fenced stays a leader",
        broker_liveness,
        "leaves_partition",
        lambda _original: lambda *_arguments, **_named: None,
        seeds_max=1000,
    ),
    _rule(
        "a leader commits what a former epoch's had replicated",
        leading,
        "update_high_watermark",
        edited("candidate <= leader.epoch_start_offset", "candidate < 0"),
        also=(
            (
                fetching,
                "update_high_watermark",
                edited("candidate <= leader.epoch_start_offset", "candidate < 0"),
            ),
        ),
        seeds_max=1000,
    ),
    _rule(
        "a voter fetches on before its fsync",
        following,
        "fetch",
        edited(" or not replica.log.is_flushed", ""),
        seeds_max=1000,
    ),
    _rule(
        "votes are not fsynced",
        QuorumStateFile,
        "write",
        edited("text.encode())", "text.encode(), durable=False)"),
        needs=_has_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "new segments of the metadata log have names that no fsync covers",
        MetadataLog,
        "begin_flush",
        edited("sync_directory(directory)", "pass"),
        needs=lambda profile: (
            profile.loses_power and "metadata.log.segment.bytes" in profile.settings
        ),
        seeds_max=1000,
    ),
    _rule(
        "a commit of a former generation is taken",
        offsets,
        "_check_commit",
        edited("group.check_generation(generation)", "pass"),
        needs=_has_group,
    ),
    _rule(
        "a commit of somebody who is no member is taken",
        offsets,
        "_check_commit",
        edited("group.check_member(request.member_id, request.group_instance_id)", "pass"),
        needs=lambda profile: {"strangers", "group"} <= profile.works,
        since=STRANGERS_SINCE,
    ),
    _rule(
        "commits are acknowledged before they are replicated",
        PartitionOffsetsLog,
        "append",
        edited("await self.wait_committed(Offset(info.last_offset + 1))", "pass"),
        seeds_max=1000,
    ),
)

LOG_RULES = (
    _rule(
        "retention deletes above the high watermark",
        partition_log,
        "removable_segments",
        edited("upper_bound > high_watermark", "upper_bound > log_end_offset"),
        needs=_retains,
    ),
    _rule(
        "retention keeps too little",
        partition_log,
        "removable_segments",
        edited("excess >= segment.size > 0", "excess > 0"),
        nodes=1,
        needs=_retains,
    ),
    _rule(
        "a truncation leaves leader epochs above it",
        LeaderEpochCache,
        "truncate_from_end",
        _nothing,
    ),
    _rule(
        "leader epochs are cut without fsync",
        LeaderEpochCache,
        "truncate_from_end",
        edited("durable=True", "durable=False"),
        needs=_has_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "leader epochs are not fsynced with their batches",
        Flush,
        "_sync",
        edited("(self.epochs, *self.snapshots)", "self.snapshots"),
        needs=_has_fsyncs,
    ),
    _rule(
        "producers' snapshots are not fsynced",
        Flush,
        "_sync",
        edited("(self.epochs, *self.snapshots)", "(self.epochs,)"),
        nodes=1,
        needs=_has_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "segments are not fsynced",
        Flush,
        "_sync",
        edited("segment.sync()", "pass"),
        needs=_has_fsyncs,
    ),
    _rule(
        "a truncation is not fsynced",
        _DEFINES_LOG["_truncate_to"],
        "_truncate_to",
        edited("last.sync()", "pass"),
        needs=_has_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "an fsync vouches for what was appended after a truncation",
        _DEFINES_LOG["finish_flush"],
        "finish_flush",
        edited("flush.truncations != self._truncations", "False"),
        # With one after each append nobody truncates before it has ended.
        needs=_is_tossed_without_fsyncs,
        since=STRANGERS_SINCE,
        seeds_max=1000,
    ),
    _rule(
        "a start keeps leader epochs above a torn tail",
        _DEFINES_LOG["_load"],
        "_load",
        edited("self.leader_epochs.truncate_from_end(self.log_end_offset)", "pass"),
        needs=_has_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "checkpoints are renamed before they are durable",
        checkpoints,
        "replace_file",
        edited("                os.fsync(fd)", "                pass"),
        needs=_has_fsyncs,
        seeds_max=1000,
    ),
    _rule(
        "a former producer epoch writes",
        producer_state,
        "_check_new_epoch",
        _nothing,
    ),
)

RULES = (*REPLICATION_RULES, *CONTROL_RULES, *LOG_RULES)
