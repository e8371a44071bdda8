"""Planted bugs of transactions: each a rule that somebody forgot once, here or elsewhere."""

from typing import Any

from headrace_broker.coordinator import transactional_offsets
from headrace_broker.coordinator.transactions import end, expiry
from headrace_broker.coordinator.transactions import partitions as added_partitions
from headrace_broker.coordinator.transactions.shard import TransactionShard
from headrace_broker.coordinator.transactions.transaction import Transaction
from headrace_broker.log import compaction, producer_snapshot
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.log.segments.transaction_index import TransactionIndex
from headrace_broker.log.verification import TRUSTED
from headrace_broker.server.api import txn_offset_commit, write_txn_markers
from headrace_broker.server.follower.replica_fetcher import FetchedPartitions
from headrace_broker.server.groups import group_driver, group_driver_log, group_transactions
from headrace_broker.server.partitions import marker_writes
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.transactions import (
    coordinator,
    marker_sender,
    shard_driver,
    transactional_produce,
)
from headrace_broker.server.transactions.shard_driver import ShardDriver
from simulation.mutants.edited import edited
from simulation.mutants.mutant import Mutant, Replace, does, rules_with
from simulation.profile import Profile
from simulation.workloads.features import changes_levels
from simulation.workloads.zombies import OVERTAKEN_SINCE

_has_transactions = does("transactions")


def _expires(profile: Profile) -> bool:
    expiration = profile.settings.get("transactional.id.expiration.ms", "")
    return _has_transactions(profile) and expiration == "1500"


def _compacts(profile: Profile) -> bool:
    return _has_transactions(profile) and profile.cleanup == "compact"


def _syncs(profile: Profile) -> bool:
    return profile.has_fsyncs


def _level(name: str, owner: Any, attribute: str, replace: Replace, **options: Any) -> Mutant:
    return _rule(name, owner, attribute, replace, **{"needs": changes_levels} | options)


def _trusted(_original: Any) -> Any:
    return lambda *_arguments: TRUSTED


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


_rule = rules_with(nodes=3, seeds_max=100, needs=_has_transactions)


_write_again = edited("if marker.bumped_epoch and partition", "if False and partition")
COORDINATOR_RULES = (
    _rule(
        "markers are sent before the decision is committed",
        ShardDriver,
        "_append",
        edited(
            "self._log.append(batch, partial(self._settle, record, settled))",
            "self._log.append(batch, partial(self._settle, record, settled)); "
            "record.transaction and record.transaction.status.is_prepared and "
            "self._host.send_markers(self, record.transaction, record.transaction.partitions)",
        ),
    ),
    _rule(
        "a coordinator serves what it read before that is committed",
        ShardDriver,
        "_replay",
        edited("await self._log.wait_committed()", "pass"),
        seeds_max=400,
    ),
    _rule(
        "a coordinator that takes over sends no markers",
        ShardDriver,
        "_replay",
        edited("in list(shard.prepared())", "in []"),
    ),
    _rule(
        "a fenced epoch ends a transaction",
        end,
        "_check_epoch",
        edited("if identity.epoch != found.epoch:", "if False:"),
    ),
    _rule(
        "a fenced epoch adds partitions",
        added_partitions,
        "_check_identity",
        edited("if identity.epoch != found.epoch:", "if False:"),
        seeds_max=200,
    ),
    _rule(
        "the epoch stays when a transaction takes too long",
        expiry,
        "decide_timeout",
        edited(
            "record_of(fence(found, circumstances))",
            "record_of(found.prepare(circumstances.now_ms, type(found.client_version)(1), "
            "commits=False))",
        ),
    ),
    _rule(
        "the epoch stays at a transaction's end",
        Transaction,
        "prepare",
        edited("bumps = client_version.bumps_epochs", "bumps = False"),
        seeds_max=200,
    ),
    _rule(
        "no transaction ever takes too long",
        shard_driver,
        "timed_out",
        lambda _original: lambda *_arguments: [],
    ),
    _rule(
        "expiry forgets open transactions",
        expiry,
        "decide_expiry",
        edited("transaction.status.is_idle\n        and ", ""),
        also=(
            (
                shard_driver,
                "decide_expiry",
                edited("transaction.status.is_idle\n        and ", ""),
            ),
        ),
        needs=_expires,
    ),
    _rule(
        "the first marker completes a transaction",
        TransactionShard,
        "note_marked",
        edited("return not left", "left.clear(); return True"),
    ),
    _rule(
        "a marker that was not written counts as written",
        shard_driver.ShardDriver,
        "wants_markers",
        edited("is transaction", "is None"),
    ),
)

PARTITION_RULES = (
    _rule(
        "no partition asks whether a transaction is open",
        transactional_produce,
        "admission",
        _trusted,
        also=((txn_offset_commit, "admission", _trusted),),
    ),
    _rule(
        "readers of what is committed read up to the high watermark",
        Partition,
        "readable_end",
        edited("isolation == ISOLATION_READ_COMMITTED", "False"),
    ),
    _rule(
        "the last stable offset forgets markers that are not committed",
        ProducerStates,
        "first_unstable_offset",
        lambda _original: lambda states: min(states.ongoing.values(), default=None),
    ),
    _rule(
        "a new leader takes every marker in its log for committed",
        PartitionLog,
        "recheck_markers",
        _nothing,
    ),
    _rule(
        "the aborted transactions of the next segments are left out",
        PartitionLog,
        "aborted_transactions",
        edited("if complete:", "if True:"),
        seeds_max=300,
    ),
    _rule(
        "the index of aborted transactions is not truncated",
        TransactionIndex,
        "truncate",
        _nothing,
        seeds_max=300,
    ),
    _rule(
        "a snapshot of producers forgets open transactions",
        producer_snapshot,
        "encode_snapshot",
        edited("state.txn_first_offset,", "-1,"),
    ),
    _rule(
        "a marker that is there already is written again",
        marker_writes,
        "write_marker",
        _write_again,
        also=(
            (write_txn_markers, "write_marker", _write_again),
            (group_driver_log, "write_marker", _write_again),
        ),
        seeds_max=400,
    ),
    _rule(
        "a former coordinator's marker is taken",
        ProducerStates,
        "is_marked",
        edited("if coordinator_epoch < state.coordinator_epoch:", "if False:"),
        also=(
            (
                ProducerStates,
                "check_marker",
                edited("if coordinator_epoch < state.coordinator_epoch:", "if False:"),
            ),
        ),
        seeds_max=1000,
    ),
    _rule(
        "a marker of a former epoch is taken",
        ProducerStates,
        "is_marked",
        edited("if epoch < state.epoch or state.txn_first_offset >= 0:", "if False:"),
        also=(
            (
                ProducerStates,
                "check_marker",
                edited("if header.producer_epoch < state.epoch:", "if False:"),
            ),
        ),
        seeds_max=1000,
    ),
    _rule(
        "compaction goes above the last stable offset",
        compaction,
        "_cleanable_segments",
        edited("min(log.high_watermark, log.last_stable_offset)", "log.high_watermark"),
        needs=_compacts,
        seeds_max=300,
    ),
    _rule(
        "a follower says what it has before its fsync, for another partition",
        FetchedPartitions,
        "take",
        edited("self.state.hold(key)", "pass"),
        needs=_syncs,
        seeds_max=400,
        seed_known=51,
    ),
)

OFFSET_RULES = (
    _rule(
        "a transaction's offsets are readable at once",
        group_transactions,
        "replay_transactional",
        lambda _original: (
            lambda shard, _producer_id, record: transactional_offsets.replay(shard, record)
        ),
    ),
    _rule(
        "a transaction's offsets stay after its abort",
        transactional_offsets,
        "replay_marker",
        edited("if commits and not", "if not"),
        also=((group_transactions, "replay_marker", edited("if commits and not", "if not")),),
    ),
    _rule(
        "a transaction's offsets are lost with its coordinator",
        group_transactions,
        "replay_batches",
        edited(
            "if header.is_transactional:\n                replay",
            "if header.is_transactional:\n                continue\n                replay",
        ),
    ),
    _rule(
        "a transaction commits offsets whatever the generation",
        group_driver,
        "decide_txn_commit",
        edited(
            "=request.generation_id,\n        member_id=request.member_id,",
            "=-1,\n        member_id='',",
        ),
    ),
)

LEVEL_RULES = (
    _level(
        "a transaction ends with the cluster's version, not its client's",
        end,
        "decide_end",
        edited("now_ms, client_version, commits", "now_ms, circumstances.version, commits"),
        also=(
            (
                coordinator,
                "decide_end",
                edited("now_ms, client_version, commits", "now_ms, circumstances.version, commits"),
            ),
        ),
    ),
    _level(
        "markers are sent with the cluster's version, not their transaction's",
        marker_sender._Outcome,
        "message",
        edited("=transaction.client_version", "=self.shard._host.version"),
    ),
    _level(
        "an end of an older client is taken for the one that moved the epoch",
        end,
        "_is_retry",
        edited("if not found.client_version.bumps_epochs:", "if False:"),
        needs=lambda profile: _has_transactions(profile) and not changes_levels(profile),
        since=OVERTAKEN_SINCE,
        seeds_max=50,
    ),
    _level(
        "below version 2 a transaction that takes too long leaves its epoch",
        Transaction,
        "fence",
        edited("if version.bumps_epochs", "if True"),
        seeds_max=200,
    ),
)

TRANSACTION_MUTANTS = (*COORDINATOR_RULES, *PARTITION_RULES, *OFFSET_RULES, *LEVEL_RULES)
