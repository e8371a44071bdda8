"""Planted bugs of share groups: each a rule that somebody forgot once, here or elsewhere."""

from typing import Any

from headrace_broker.coordinator.share_partition import partition as share_partition
from headrace_broker.coordinator.share_partition.partition import SharePartition
from headrace_broker.coordinator.share_partition.runs import Run
from headrace_broker.coordinator.share_state import shard as share_state
from headrace_broker.coordinator.share_state.shard import ShareStateShard
from headrace_broker.server.shares import dead_letters, state_coordinator
from headrace_broker.server.shares.dead_letters import DeadLetterWriter
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver
from headrace_broker.server.shares.state_shard import StateShardDriver
from simulation.mutants.edited import edited
from simulation.mutants.mutant import Mutant, Replace, does, rules_with
from simulation.workloads import dead_letters as dead_letter_topic
from simulation.workloads import share, state_epochs

_has_share_groups = does("share")


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


_rule = rules_with(nodes=3, seeds_max=100, since=share.SINCE, needs=_has_share_groups)


LEADER_RULES = (
    _rule(
        "an acknowledgement of a share group is answered before it is durable",
        SharePartitionDriver,
        "acknowledge",
        edited("return durable", "return None"),
    ),
    _rule("no lock of a share group ever times out", SharePartitionDriver, "_arm", _nothing),
    _rule(
        "a renewed lock ends when it would have",
        SharePartition,
        "acknowledge",
        edited("run.deadline_ms = now_ms + limits.lock_ms", "pass"),
    ),
    _rule(
        "a member may acknowledge what another one holds",
        Run,
        "is_held_by",
        edited("and self.member_id == member_id", ""),
        seeds_max=300,
    ),
    _rule(
        "a released record is archived",
        share_partition,
        "_after",
        edited("Outcome(state=RecordState.AVAILABLE", "Outcome(state=RecordState.ARCHIVED"),
    ),
    _rule(
        "the limit of deliveries is not looked at",
        share_partition,
        "_after",
        edited(
            "case AcknowledgeType.RELEASE if count < limits.deliveries_max:",
            "case AcknowledgeType.RELEASE:",
        ),
    ),
    _rule(
        "a delivery that was given back does not count",
        SharePartition,
        "release",
        edited("run.count, limits", "run.count - 1, limits"),
    ),
    _rule(
        "delivery counts are not kept over a leader's end",
        SharePartition,
        "__init__",
        edited("count=batch.delivery_count", "count=0"),
    ),
    _rule(
        "delivery counts are not written",
        SharePartition,
        "take_write",
        edited("delivery_count=count,", "delivery_count=0,"),
    ),
    _rule(
        "a delivery under way is counted in what is written",
        SharePartition,
        "take_write",
        edited("count - 1", "count"),
    ),
    _rule(
        "the start offset passes records that are in flight",
        SharePartition,
        "take_write",
        edited("leading = False", "pass"),
    ),
    _rule(
        "a new leader begins where the group begins",
        SharePartitionDriver,
        "_load",
        edited("if start < 0:", "if start < 10:"),
    ),
)

COORDINATOR_RULES = (
    _rule(
        "share state is answered before it is committed",
        StateShardDriver,
        "submit",
        edited("return await future", "return answer"),
    ),
    _rule(
        "a new share coordinator loads nothing",
        StateShardDriver,
        "_load",
        edited("replay(shard, record, offset)", "pass"),
    ),
    _rule(
        "a snapshot of share state forgets what was before",
        state_coordinator,
        "decide_write",
        edited(
            "batches=overlay(state.batches, change.batches, start)",
            "batches=overlay((), change.batches, start)",
        ),
    ),
    _rule(
        "share state is deleted up to its newest snapshot",
        ShareStateShard,
        "needed_from",
        edited("min(self", "max(self"),
        seeds_max=300,
    ),
    _rule(
        "share state is deleted for a snapshot that is not committed",
        StateShardDriver,
        "prune",
        edited("and self._log.is_committed", ""),
        seeds_max=1000,
    ),
    _rule(
        "a former leader of a share partition is not fenced",
        share_state,
        "_check_leader",
        _nothing,
        since=state_epochs.SINCE,
    ),
    _rule(
        "share state takes a write of a former state epoch",
        state_coordinator,
        "decide_write",
        edited("if state.state_epoch > change.state_epoch:", "if False:"),
        since=state_epochs.SINCE,
    ),
    _rule(
        "share state begins anew with a former state epoch",
        state_coordinator,
        "decide_initialize",
        edited("state is not None and state.state_epoch > state_epoch", "False"),
        since=state_epochs.SINCE,
    ),
    _rule(
        "a group that asks for state again begins it anew",
        state_coordinator,
        "decide_initialize",
        edited("state is not None and start_offset == UNINITIALIZED", "False"),
        since=state_epochs.SINCE,
    ),
    _rule(
        "what is done with may be undone by a write that comes late",
        share_state,
        "_forward",
        lambda _original: lambda _state, change: change,
        since=state_epochs.SINCE,
    ),
)


def _of_dead_letters(
    name: str, owner: Any, attribute: str, replace: Replace, **options: Any
) -> Mutant:
    return _rule(name, owner, attribute, replace, **{"since": dead_letter_topic.SINCE} | options)


DEAD_LETTER_RULES = (
    _of_dead_letters(
        "a record that is rejected is no dead letter",
        share_partition,
        "_after",
        edited("kind is not AcknowledgeType.GAP", "kind is AcknowledgeType.RELEASE"),
    ),
    _of_dead_letters(
        "a record that was delivered too often is no dead letter",
        share_partition,
        "_after",
        edited("kind is not AcknowledgeType.GAP", "kind is AcknowledgeType.REJECT"),
    ),
    _of_dead_letters(
        "a record is archived before its dead letter is written",
        SharePartition,
        "take_write",
        edited(
            "delivery_state=state,",
            "delivery_state=4 if state is RecordState.ARCHIVING else state,",
        ),
    ),
    _of_dead_letters(
        "the start offset passes dead letters that are not written",
        SharePartition,
        "take_write",
        edited("if state.is_final:", "if state.is_final or state is RecordState.ARCHIVING:"),
    ),
    _of_dead_letters(
        "a dead letter is written before it is durable that nobody gets the record",
        SharePartition,
        "dead_letters",
        edited("and not run.is_dirty", ""),
        seeds_max=300,
    ),
    _of_dead_letters(
        "all dead letters count as written with the first",
        SharePartitionDriver,
        "_bury",
        edited(
            "state.archive_dead(item.first, item.last)",
            "state.archive_dead(state.start_offset, state.end_offset)",
        ),
        seeds_max=300,
    ),
    _of_dead_letters(
        "a dead letter is done with before its leader's followers have it",
        DeadLetterWriter,
        "_append_here",
        edited("if committed is not None:", "if False:"),
        also=((dead_letters, "_ACKS_ALL", lambda _original: 1),),
        seeds_max=300,
    ),
    _of_dead_letters(
        "a dead letter that is refused counts as written",
        DeadLetterWriter,
        "_append",
        edited("if result.error_code != ErrorCode.NONE:", "if False:"),
    ),
    _of_dead_letters(
        "the dead letter that does not fit any more is left out",
        DeadLetterWriter,
        "_write_some",
        edited("return offset", "return offset + 1"),
    ),
    _of_dead_letters(
        "an attempt that failed is not made again",
        DeadLetterWriter,
        "write",
        edited("await asyncio.sleep(delay)", "return True"),
    ),
)

SHARE_MUTANTS = (*LEADER_RULES, *COORDINATOR_RULES, *DEAD_LETTER_RULES)
