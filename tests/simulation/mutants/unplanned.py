"""Planted bugs of rules that no other planted bug breaks: ballots, controllers, ends, restarts.

`docs/simulation.md` says which of them nothing noticed at first, and what does now.
"""

from headrace_broker.coordinator import shard as group_shard
from headrace_broker.coordinator import transactional_offsets
from headrace_broker.coordinator.consumer import loading
from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.transactions import end
from headrace_broker.log import producer_recovery
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.segments import swap
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.raft import fetching, leading, node
from headrace_broker.raft.replica import Replica
from headrace_broker.replication.leader import LeaderState
from headrace_broker.server.api import write_txn_markers
from headrace_broker.server.groups import group_transactions
from headrace_broker.server.partitions import marker_writes
from headrace_broker.server.partitions.isr_updates import IsrUpdates
from headrace_broker.server.quorum.controller import ControllerDriver
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.profile import Profile
from simulation.workloads import directories
from simulation.workloads.workload import REPEATERS_SINCE


def _syncs(profile: Profile) -> bool:
    return profile.has_fsyncs


def _has_groups(profile: Profile) -> bool:
    return bool(profile.works & {"group", "modern"})


_has_transactions = does("transactions")

_has_shares = does("share")


def _compacts(profile: Profile) -> bool:
    return profile.cleanup == "compact"


def _cuts_power(profile: Profile) -> bool:
    return profile.loses_power and profile.has_fsyncs


_rule = rules_with(nodes=3, seeds_max=100)

UNPLANNED_MUTANTS = (
    # ---- the quorum
    _rule(
        "votes of a former ballot count", Replica, "enter", edited("self.in_flight.clear()", "pass")
    ),
    _rule(
        "a fetch whose log parts from the leader's counts",
        node,
        "_REQUESTS",
        # The table has the function itself: one that was planted beside it would never be called.
        lambda original: (
            original
            | {
                FetchRequest: edited("        if verdict is None:", "        if True:")(
                    fetching.handle_fetch
                )
            }
        ),
    ),
    _rule(
        "the quorum's leader counts itself before its fsync",
        leading,
        "update_high_watermark",
        edited("replica.log.flushed_end", "replica.log.end_offset"),
    ),
    # ---- the controller
    _rule(
        "a controller goes on with what it decided when it led before",
        ControllerDriver,
        "_activate",
        edited(
            "self._speculative = self._loader.image",
            "self._speculative = "
            "self._speculative if self._speculative.offset >= 0 else self._loader.image",
        ),
    ),
    _rule(
        "a controller decides before it knows what was decided before it",
        ControllerDriver,
        "became_leader",
        edited("self._loader.wait_for(epoch_start_offset)", "self._loader.wait_for(Offset(-1))"),
    ),
    _rule(
        "a refusal does not wait for what it rests on",
        ControllerDriver,
        "_decide",
        edited(
            "self._loader.wait_for(self._speculative.offset)", "self._loader.wait_for(Offset(-1))"
        ),
    ),
    # ---- replication
    _rule(
        "an in-sync set is given up when newer metadata is on its way",
        IsrUpdates,
        "_take_one",
        edited("elif code in _NOT_APPLIED and", "elif code != ErrorCode.NONE and"),
        nodes=5,
    ),
    _rule(
        "a follower's progress never goes back",
        LeaderState,
        "record_fetch",
        edited(
            "progress.fetch_offset = fetch_offset",
            "progress.fetch_offset = max(progress.fetch_offset, fetch_offset)",
        ),
        # A process that lost records comes back with less than it had.
        needs=lambda profile: profile.loses_power and not profile.has_fsyncs,
    ),
    # ---- the log
    _rule(
        "the mark of a clean end stays",
        LogDirectory,
        "_take_clean_marker",
        edited("remove_quietly(marker)", "pass"),
    ),
    _rule(
        "that the mark of a clean end is gone is not fsynced",
        LogDirectory,
        "_take_clean_marker",
        edited("sync_directory(self.path)", "pass"),
        needs=lambda profile: profile.loses_power,
    ),
    _rule(
        "one log directory's clean end vouches for the others",
        LogDirectories,
        "__init__",
        edited("if failed or len(marks) > 1 else marks.pop()", "if failed else max(marks)"),
        needs=does(directories.NAME),
    ),
    _rule(
        "a replica that may be in a failed directory is created anew",
        LogDirectories,
        "place",
        edited("(is_new and assigned", "(assigned"),
        needs=lambda profile: profile.disk_errors,
        nodes=5,
        seeds_max=1000,
    ),
    _rule(
        "lost entries of aborted transactions are not made again",
        producer_recovery,
        "rebuild_producers",
        edited("if reindex_from < start:", "if False:"),
        needs=_has_transactions,
    ),
    _rule(
        "a compacted segment that a kill left beside its sources is removed",
        swap,
        "finish_swaps",
        edited("[name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]", "[]"),
        needs=lambda profile: _compacts(profile) and _cuts_power(profile),
        since=REPEATERS_SINCE,
    ),
    # ---- coordinators
    _rule(
        "a transaction's offset takes the place of a later commit",
        transactional_offsets,
        "replay_marker",
        edited("if commits and not pending.is_overwritten:", "if commits:"),
        needs=_has_transactions,
        since=REPEATERS_SINCE,
    ),
    _rule(
        "a new coordinator waits for no member that died",
        group_shard,
        "finish_loading",
        edited("for member in rebuilt.members.values()", "for member in ()"),
        also=(
            (
                loading,
                "finish_loading_modern_groups",
                edited("in group.members.items():", "in ():"),
            ),
        ),
        needs=_has_groups,
    ),
    _rule(
        "a marker is answered before it is committed",
        write_txn_markers,
        "_write",
        edited("return partition.wait_committed(end)", "return None"),
        needs=_has_transactions,
    ),
    _rule(
        "a transaction's offsets are written out of turn",
        group_transactions,
        "commit_transactional",
        edited("await driver.take_turn(TxnOffsetCommitResponse, write)", "await write()"),
        needs=_has_transactions,
    ),
    _rule(
        "a transaction's offsets are answered before its marker is committed",
        group_transactions,
        "write_group_marker",
        edited("await driver.log.wait_committed(end)", "pass"),
        needs=_has_transactions,
    ),
    _rule(
        "an older client's marker leaves what may begin the next transaction",
        marker_writes,
        "write_marker",
        edited("partition.log.producers.verifications.end(marker.producer_id)", "pass"),
        needs=_has_transactions,
    ),
    _rule(
        "a repeated end ends the next transaction",
        end,
        "_check_epoch",
        edited("raise fenced(found)\n    if", "return\n    if"),
        needs=_has_transactions,
        since=REPEATERS_SINCE,
    ),
    # ---- share groups
    _rule(
        "a late acknowledgement is answered before its record is durably done with",
        SharePartition,
        "acknowledge",
        edited("item.first < self.start_offset", "False"),
        needs=_has_shares,
        nodes=5,
        seeds_max=1000,
    ),
)
