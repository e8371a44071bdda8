"""Planted bugs of what a broker takes, repeats, serves and lets go (`invariants.admissions`).

None was found before the rules there were stated a second time, or before somebody spoke who had
no right to: former processes, former coordinators, and a member of a former generation.
"""

from typing import Any

from headrace_broker.coordinator import membership
from headrace_broker.log import cleaner, partition_log, producer_state
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.metadata.brokers import liveness
from headrace_broker.server.api import list_offsets
from headrace_broker.server.fetch.fetch_sessions import FetchSession
from headrace_broker.server.follower.replica_fetcher import FetchedPartitions
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.waiting import CommitWaiters
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.profile import Profile
from simulation.workloads.workload import STRANGERS_SINCE

_ENDS_SINCE = _FORMER_SINCE = 3_000_000

_asks_for_ends = does("ends")

_has_former_processes = does("former processes")


def _has_former_members(profile: Profile) -> bool:
    return _has_former_processes(profile) and "group" in profile.works


_has_group = does("group")


def _compacts(profile: Profile) -> bool:
    return profile.cleanup == "compact"


def _compacts_transactions(profile: Profile) -> bool:
    return _compacts(profile) and "transactions" in profile.works


def _retains_by_time(profile: Profile) -> bool:
    return profile.cleanup == "delete" and profile.topic.get("retention.ms", "-1") != "-1"


def _syncs(profile: Profile) -> bool:
    return profile.has_fsyncs


def _at_once(_original: Any) -> Any:
    return lambda _partition, _offset, acknowledge: acknowledge(None)


_rule = rules_with(nodes=3, seeds_max=100)


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


def _is_trimmed(profile: Profile) -> bool:
    moved = {"reassign", "directories"}
    return "trim" in profile.works and moved.isdisjoint(profile.works)


ADMISSION_MUTANTS = (
    _rule(
        "DeleteRecords is answered before it is durable",
        LogDirectory,
        "checkpoint_log_start_offsets",
        _nothing,
        needs=_is_trimmed,
        seeds_max=60,
    ),
    _rule(
        "acks=all is taken below min.insync.replicas",
        Partition,
        "append",
        edited("(self.is_cut_off or leading.is_under_min_isr)", "self.is_cut_off"),
    ),
    _rule(
        "who is behind stays in sync",
        Partition,
        "shrink_isr",
        edited("if late and leading.pending is None:", "if False:"),
    ),
    _rule(
        "acks=1 is acknowledged before it is durable",
        Partition,
        "when_durable",
        _at_once,
        needs=_syncs,
    ),
    _rule(
        "an acknowledgement does not wait for the last record",
        CommitWaiters,
        "commit",
        edited("heap[0][0] <= end", "heap[0][0] <= end + 1"),
    ),
    _rule(
        "the end that is named is the log's",
        list_offsets,
        "_look_up",
        edited(
            "answer.offset = partition.readable_end(isolation)",
            "answer.offset = partition.log.log_end_offset",
        ),
        needs=_asks_for_ends,
        since=_ENDS_SINCE,
    ),
    _rule(
        "a new leader names an end that went back",
        list_offsets,
        "_look_up",
        edited(
            "    if is_behind:\n            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)\n"
            "        answer.offset",
            "    answer.offset",
        ),
        needs=_asks_for_ends,
        since=_ENDS_SINCE,
    ),
    _rule(
        "only a producer's newest batch is known",
        producer_state,
        "RETAINED_BATCHES",
        lambda _original: 1,
    ),
    _rule(
        "a new producer epoch leaves the batches of the former one",
        ProducerStates,
        "append",
        edited(
            "        state.epoch = header.producer_epoch\n        state.batches.clear()",
            "        state.epoch = header.producer_epoch",
        ),
        seeds_max=1000,
    ),
    _rule(
        "compaction takes the newest record away",
        cleaner.KeyMap,
        "is_newest",
        edited("record.offset >= self._offsets.get", "record.offset < self._offsets.get"),
        needs=_compacts,
    ),
    _rule(
        "tombstones and markers go while a replica is away",
        cleaner.CleanerRules,
        "is_over",
        edited(" and self.is_everywhere", ""),
        needs=_compacts_transactions,
        seeds_max=1000,
    ),
    _rule(
        "who waited for an offset's fsync reports what came after it",
        FetchedPartitions,
        "_add_when_durable",
        edited(" and _is_durable(partition)", ""),
        seeds_max=1000,
    ),
    _rule(
        "retention knows no time",
        partition_log,
        "removable_segments",
        edited("now_ms - segment.largest_timestamp > config.retention_ms", "False"),
        needs=_retains_by_time,
    ),
    _rule(
        "a fetch session keeps what is forgotten",
        FetchSession,
        "update",
        edited("self.partitions.pop((_topic_key(topic), index), None)", "pass"),
        since=STRANGERS_SINCE,
    ),
    _rule(
        "a broker's former process keeps its session",
        liveness,
        "registered_broker",
        edited("broker.epoch != epoch", "False"),
        needs=_has_former_processes,
        since=_FORMER_SINCE,
    ),
    _rule(
        "a broker serves before it has read its registration",
        liveness,
        "_next_state",
        edited(
            "request.current_metadata_offset >= broker.epoch and not request.want_fence",
            "not request.want_fence",
        ),
        needs=_has_former_processes,
        since=_FORMER_SINCE,
    ),
    _rule(
        "a member of a former generation keeps its place",
        membership,
        "decide_heartbeat",
        edited("group.check_generation(request.generation_id)", "pass"),
        needs=_has_former_members,
        since=_FORMER_SINCE,
    ),
    _rule(
        "a member of a former generation hears its assignment",
        membership,
        "decide_sync",
        edited("group.check_generation(request.generation_id)", "pass"),
        needs=lambda profile: {"strangers", "group"} <= profile.works,
        since=STRANGERS_SINCE,
    ),
)
