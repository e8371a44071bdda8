"""Planted bugs of kinds that nobody had tried: moves, compaction's passes, snapshots, members.

`docs/simulation.md` says which of them nothing noticed at first, and what does now.
"""

from headrace_broker.coordinator.consumer import fencing, heartbeat
from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.transactions.transaction import Transaction
from headrace_broker.log import cleaner
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.future_log import FutureLog
from headrace_broker.server.quorum.raft_snapshots import RaftSnapshots
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.profile import Profile
from simulation.workloads import directories, share
from simulation.workloads.workload import COMMITTERS_SINCE

_moves = does(directories.NAME)


def _compacts_transactions(profile: Profile) -> bool:
    return profile.cleanup == "compact" and "transactions" in profile.works


def _compacts(profile: Profile) -> bool:
    return profile.cleanup == "compact"


def _makes_snapshots(profile: Profile) -> bool:
    return "metadata.log.max.record.bytes.between.snapshots" in profile.settings


_has_members = does("modern")


def _has_strangers(profile: Profile) -> bool:
    return _has_members(profile) and "strangers" in profile.works


_rule = rules_with(nodes=3, seeds_max=100)

UNTRIED_MUTANTS = (
    # ---- moves between log directories
    _rule(
        "a copy in another directory keeps what its log cut",
        FutureLog,
        "align",
        edited("if self._cut < log.log_end_offset:", "if False:"),
        needs=_moves,
        since=directories.SINCE,
        seeds_max=300,
    ),
    _rule(
        "what marks a finished move is not fsynced",
        FutureLog,
        "prepare",
        edited("sync_file(arriving)", "pass"),
        needs=_moves,
        since=directories.SINCE,
    ),
    # ---- compaction
    _rule(
        "a pass that a truncation overtook takes its segments' place",
        Compaction,
        "_has_sources",
        edited("log.truncations == self.truncations and ", ""),
        needs=_compacts,
        seeds_max=300,
    ),
    _rule(
        "a pass deletes tombstones though a replica has fallen out meanwhile",
        Compaction,
        "finish",
        edited(
            "one_is_behind = self.rules.is_everywhere and not is_everywhere",
            "one_is_behind = False",
        ),
        needs=_compacts_transactions,
        seeds_max=300,
    ),
    _rule(
        "a marker goes while its transaction has records",
        cleaner,
        "_clean_marker",
        edited(
            "is_needed = not rules.open_batches.end(header)",
            "is_needed = rules.open_batches.end(header) and False",
        ),
        needs=_compacts_transactions,
    ),
    # ---- metadata
    _rule(
        "a metadata snapshot is renamed before it is durable",
        RaftSnapshots,
        "_publish",
        edited("sync_file(part)", "pass"),
        needs=_makes_snapshots,
    ),
    # ---- coordinators
    _rule(
        "a member of a consumer group stays with a former epoch",
        heartbeat,
        "_check_epoch",
        edited("is_former and is_subset(request.topic_partitions, member.assigned)", "is_behind"),
        needs=_has_strangers,
        since=COMMITTERS_SINCE,
    ),
    _rule(
        "who was a member reads a consumer group's offsets",
        fencing,
        "check_fetch",
        edited("_check_epoch(group, member_id or NO_MEMBER_ID, epoch)", "return"),
        needs=_has_strangers,
        since=COMMITTERS_SINCE,
    ),
    _rule(
        "what a failed write of share state had is not written again",
        SharePartition,
        "failed",
        edited("run.is_dirty = True", "pass"),
        needs=does("share"),
        since=share.SINCE,
        seeds_max=300,
    ),
    _rule(
        "each partition that joins a transaction begins its time anew",
        Transaction,
        "add",
        edited("start_ms=now_ms if self.status.is_idle else self.start_ms", "start_ms=now_ms"),
        needs=does("transactions"),
    ),
)
