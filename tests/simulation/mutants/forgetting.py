"""Planted bugs of committed offsets that go: deleted, or expired (KIP-211, KIP-229, KIP-496)."""

from headrace_broker.coordinator import admin, expiry, offsets, shard
from simulation.mutants.edited import edited
from simulation.mutants.mutant import does, rules_with
from simulation.profile import Profile
from simulation.workloads.forgetting import CHECK_INTERVAL, NAME
from simulation.workloads.workload import FORGETTING_SINCE

_forgets = does(NAME)

_has_transactions = does("transactions")


def _expires(profile: Profile) -> bool:
    return _forgets(profile) and CHECK_INTERVAL in profile.settings


_rule = rules_with(nodes=3, needs=_forgets, since=FORGETTING_SINCE, seeds_max=100)

FORGETTING_MUTANTS = (
    _rule(
        "a group with members is deleted",
        admin,
        "decide_delete_group",
        edited("if not is_empty:", "if False:"),
    ),
    _rule(
        "a deleted group leaves its offsets",
        admin,
        "decide_delete_group",
        edited("for where in sorted(shard.known_offsets_of(group_id))", "for where in ()"),
    ),
    _rule(
        "an offset that a member uses is deleted",
        offsets,
        "decide_offset_delete",
        edited("if topic.name in subscribed:", "if False:"),
    ),
    _rule(
        "a deletion leaves the last offset",
        offsets,
        "decide_offset_delete",
        edited(
            "for item in topic.partitions\n                if",
            "for item in topic.partitions[:-1] if",
        ),
    ),
    _rule(
        "the end of a group of the consumer protocol takes its offsets along",
        shard,
        "_replay_consumer_group",
        edited(
            "if ended is not None and group_id in shard.offsets:",
            "if shard.offsets.pop(group_id, None):",
        ),
    ),
    _rule(
        "a classic group's end takes its offsets along",
        shard,
        "_replay_group",
        edited(
            "if group is not None and group_id in shard.offsets:",
            "if shard.offsets.pop(group_id, None):",
        ),
    ),
    _rule(
        "a committed offset stays when it is deleted beside others",
        shard,
        "_replay_offset",
        edited("offsets.pop(where, None)", "len(offsets) > 1 or offsets.pop(where, None)"),
    ),
    _rule(
        "a deletion leaves what an open transaction commits",
        shard.GroupShard,
        "known_offsets_of",
        edited("*self.pending_offsets.get(group_id, ())", ""),
        needs=_has_transactions,
    ),
    _rule(
        "an offset expires before its time",
        expiry,
        "_is_expired",
        edited("return now_ms >= value.expire_timestamp", "return True"),
        needs=_expires,
    ),
    _rule(
        "an offset's own time never ends",
        expiry,
        "_is_expired",
        edited("return now_ms >= value.expire_timestamp", "return False"),
        needs=_expires,
        nodes=1,
    ),
    _rule(
        "an offset that a classic member uses expires",
        expiry,
        "_expired",
        edited("if where[0] not in in_use and _is", "if _is"),
        needs=_expires,
        nodes=1,
    ),
    _rule(
        "an offset that a member of a consumer group uses expires",
        expiry,
        "_expiry_of",
        edited("if where[0] not in in_use\n        and where", "if where"),
        needs=_expires,
        nodes=1,
    ),
    _rule(
        "offsets that a group in the middle of a rebalance uses expire",
        expiry,
        "_expired",
        edited("return []", "in_use = frozenset()"),
        needs=_expires,
        nodes=1,
    ),
)
