"""Planted bugs of consumer groups (KIP-848), of exhausted epochs, and of registrations."""

from headrace_broker.coordinator.consumer import fencing, migration, reconcile
from headrace_broker.coordinator.transactions import init_producer
from headrace_broker.server.partitions.replica_host import ReplicaHost
from simulation.mutants.edited import edited
from simulation.mutants.mutant import Mutant, does
from simulation.workloads.workload import STRANGERS_SINCE

_has_members = does("modern")

_has_transactions = does("transactions")

_has_both_protocols = does("mixed")


GROUP_MUTANTS = (
    Mutant(
        name="a member of a consumer group commits with a former epoch",
        owner=fencing,
        attribute="_check_epoch",
        replace=edited("if epoch == member.epoch:", "if True:"),
        nodes=3,
        needs=_has_members,
        seeds_max=100,
    ),
    Mutant(
        name="a partition is given before its owner gave it up",
        owner=reconcile,
        attribute="_next",
        replace=edited(
            "if goal.owner_of(topic_id, item) in {NO_OWNER, member.member_id}", "if True"
        ),
        nodes=3,
        needs=_has_members,
        seeds_max=100,
    ),
    Mutant(
        name="a member of a consumer group need not say what it gave up",
        owner=reconcile,
        attribute="_next",
        replace=edited("if to_revoke and _still_owns(goal, to_revoke):", "if False:"),
        nodes=3,
        needs=_has_members,
        seeds_max=200,
    ),
    Mutant(
        name="a producer id goes on when its epochs are exhausted",
        owner=init_producer,
        attribute="_next",
        replace=edited("if found.is_exhausted:", "if False:"),
        nodes=1,
        needs=_has_transactions,
        seeds_max=100,
        since=STRANGERS_SINCE,
    ),
    Mutant(
        name="a process leads what its predecessor led",
        owner=ReplicaHost,
        attribute="may_lead",
        replace=lambda _original: property(lambda _host: True),
        nodes=3,
        seeds_max=100,
    ),
    Mutant(
        name="a group that leaves the classic protocol forgets who has what",
        owner=migration,
        attribute="_assigned_to",
        replace=edited("return _by_id(assignment.partitions, topics)", "return {}"),
        nodes=1,
        needs=_has_both_protocols,
        since=5_000_000,
        seeds_max=100,
    ),
    Mutant(
        name="a group that goes back to the classic protocol begins at generation 0",
        owner=migration,
        attribute="_to_classic_group",
        replace=edited("Generation(group.epoch)", "Generation(0)"),
        nodes=1,
        needs=_has_both_protocols,
        since=5_000_000,
        seeds_max=100,
    ),
    Mutant(
        name="who is left in a group that goes back need not join again",
        owner=migration,
        attribute="downgrade",
        replace=edited(
            'prepare_rebalance(rebalance, "the last member of the consumer protocol is gone")',
            "pass",
        ),
        nodes=1,
        needs=_has_both_protocols,
        since=5_000_000,
        seeds_max=100,
    ),
)
