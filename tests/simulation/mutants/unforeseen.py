"""Planted bugs of kinds that the simulator could not find before somebody tried them.

Each needed something new of it: a client, a setting, or an invariant, which its comment names.
"""

from headrace_broker.coordinator import offsets
from headrace_broker.coordinator.group import Group
from headrace_broker.server.fetch.replica_sessions import ReplicaSession
from headrace_broker.server.quorum import raft_driver
from simulation.mutants.edited import edited
from simulation.mutants.mutant import Mutant, does
from simulation.profile import SMALL_ANSWERS_SINCE, Profile
from simulation.workloads.churn import COMMITS_SINCE
from simulation.workloads.members import STATIC_SINCE


def _makes_snapshots(profile: Profile) -> bool:
    return "metadata.log.max.record.bytes.between.snapshots" in profile.settings


def _has_limits(profile: Profile) -> bool:
    return "replica.fetch.response.max.bytes" in profile.settings


_has_static_members = does("static")

_has_churn = does("churn")


UNFORESEEN_MUTANTS = (
    # Whole images are compared at each offset, and a producer id has one owner.
    Mutant(
        name="a metadata snapshot forgets which producer ids are given away",
        owner=raft_driver,
        attribute="snapshot_records",
        replace=edited("if image.next_producer_id:", "if False:"),
        nodes=3,
        needs=_makes_snapshots,
        seeds_max=60,
    ),
    # Followers may be sent a few batches of a few partitions only.
    Mutant(
        name="what did not fit into a follower's answer is forgotten",
        owner=ReplicaSession,
        attribute="take",
        replace=edited("            break", "            self.dirty.clear(); break"),
        nodes=3,
        needs=_has_limits,
        since=SMALL_ANSWERS_SINCE,
        seeds_max=100,
    ),
    # Two processes fight for a static member's place.
    Mutant(
        name="a static member's former process is not fenced",
        owner=Group,
        attribute="check_member",
        replace=edited("if current != member_id:", "if False:"),
        also=(
            (
                Group,
                "replace_static_member",
                edited(
                    "self.static_members[instance_id] = member_id", "self.members[old_id] = old"
                ),
            ),
        ),
        nodes=3,
        needs=_has_static_members,
        since=STATIC_SINCE,
        seeds_max=60,
    ),
    # A group commits offsets of a topic that is created again and again.
    Mutant(
        name="a topic made again inherits its predecessor's committed offsets",
        owner=offsets,
        attribute="_is_of_a_former_topic",
        replace=lambda _original: lambda *_arguments: False,
        nodes=3,
        needs=_has_churn,
        since=COMMITS_SINCE,
        seeds_max=100,
    ),
)
