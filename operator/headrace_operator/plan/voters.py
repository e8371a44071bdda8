"""Plans the voters of the metadata quorum (KIP-853): one change at a time. Pure.

The pools say who should vote: all controller-only nodes, else up to three combined nodes, always an
odd number. A joining node gets its vote before another loses its own. A leaving node loses its vote
after its replicas have moved away, the active controller last. No change is planned that would
leave the voters without a caught-up majority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import AddVoter, RemoveVoter
from headrace_operator.plan.model import Waiting
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from headrace_operator.plan.model import (
        ObservedBroker,
        ObservedCluster,
        ObservedQuorum,
        ObservedReplica,
    )
    from headrace_operator.resources import Cluster

__all__ = ["VOTERS_MAX", "count_voters", "plan_voters", "wanted_voters"]

#: Three voters survive the loss of one; more only slow down each metadata change.
VOTERS_MAX = 3
#: A replica that fetches catches up every half second; one that has not for this long is stopped,
#: cut off, or far behind.
BEHIND_MS_MAX = 5_000


def count_voters(cluster: Cluster) -> int:
    """Return how many nodes of these pools should vote.

    All controller-only nodes; else as many combined nodes as possible, up to three, and an odd
    number: two voters stop when either of them does.
    """
    pools = cluster.spec.pools
    dedicated = sum(pool.replicas for pool in pools if pool.roles == ("controller",))
    if dedicated:
        return dedicated
    return _odd(min(VOTERS_MAX, sum(pool.replicas for pool in pools if "controller" in pool.roles)))


def wanted_voters(
    cluster: Cluster,
    staying: Sequence[ObservedBroker],
    quorum: ObservedQuorum,
    *,
    is_odd: bool = True,
) -> tuple[int, ...]:
    """Return which of the staying brokers should vote; present voters come first."""
    able = [broker for broker in staying if "controller" in broker.roles]
    dedicated = [broker.node_id for broker in able if "broker" not in broker.roles]
    if dedicated:
        return tuple(sorted(dedicated))
    ranked = sorted(
        (broker.node_id for broker in able),
        key=lambda node_id: (not quorum.votes(node_id), node_id),
    )
    count = min(count_voters(cluster), len(ranked))
    return tuple(sorted(ranked[: _odd(count) if is_odd else count]))


def plan_voters(
    cluster: Cluster,
    seen: ObservedCluster | None,
    leaving: Collection[int],
    *,
    are_followed: bool = False,
) -> Iterator[AddVoter | RemoveVoter | Waiting]:
    """Plan the next change of the voters, if one is due; `leaving`: brokers that no pool wants.

    `are_followed`: others begin in their places soon, and vote. Two copies of the metadata until
    then are more than the one that an odd number would leave.
    """
    quorum = seen.quorum if seen is not None else None
    if seen is None or quorum is None:
        return
    brokers = {broker.node_id: broker for broker in seen.brokers}
    staying = [broker for broker in seen.brokers if broker.node_id not in leaving]
    wanted = wanted_voters(cluster, staying, quorum, is_odd=not are_followed)
    if not wanted:
        return
    emptied = [voter for voter in quorum.voters if _is_replaced(voter, quorum)]
    joining = [node_id for node_id in wanted if not quorum.votes(node_id)]
    # A node that this backend does not know belongs to another one, and keeps its vote.
    surplus = [
        voter for voter in quorum.voters if voter.node_id in brokers and voter.node_id not in wanted
    ]
    if emptied:
        yield from _removal(cluster, quorum, emptied[0], "its disk was replaced")
    elif returned := [voter for voter in quorum.voters if _has_another_disk(voter, quorum)]:
        yield _wait(
            cluster,
            f"broker {returned[0].node_id} came back with another disk; it votes again when it has"
            " all of the metadata log, and its former vote is gone",
        )
    elif joining:
        # Voters with a leader have a majority; adding a caught-up voter keeps it.
        yield from _addition(cluster, quorum, brokers[joining[0]])
    else:
        going = [voter for voter in surplus if voter.node_id in leaving]
        # Staying surplus voters come after the leaving ones, which may have to stay, too.
        ready = [
            each for each in going or surplus if not (going and brokers[each.node_id].replicas)
        ]
        if ready:
            last = max(ready, key=lambda each: (each.node_id != quorum.leader_id, each.node_id))
            yield from _removal(cluster, quorum, last, "no pool needs it to vote")


def _removal(
    cluster: Cluster, quorum: ObservedQuorum, voter: ObservedReplica, reason: str
) -> Iterator[RemoveVoter | Waiting]:
    left = [each for each in quorum.voters if each != voter]
    if not left:
        return
    if not _has_majority(left):
        late = [each.node_id for each in left if not _is_current(each)]
        yield _wait(
            cluster,
            f"broker {voter.node_id} votes until the others could decide without it: broker"
            f" {_ids(late)} does not follow the metadata log",
        )
        return
    yield RemoveVoter(
        resource=cluster.key,
        node_id=voter.node_id,
        directory_id=voter.directory_id,
        reason=reason,
    )
    yield _wait(cluster, f"broker {voter.node_id} is to vote no more in the metadata quorum")


def _addition(
    cluster: Cluster, quorum: ObservedQuorum, broker: ObservedBroker
) -> Iterator[AddVoter | Waiting]:
    found = [
        each
        for each in quorum.observers
        if each.node_id == broker.node_id and _is_current(each) and each.directory_id.int
    ]
    if not found or not broker.is_running or not broker.controller_address:
        message = f"broker {broker.node_id} votes when it has all of the metadata log"
        yield _wait(cluster, message)
        return
    joining = min(found, key=lambda each: each.behind_ms or 0)
    yield AddVoter(
        resource=cluster.key,
        node_id=broker.node_id,
        directory_id=joining.directory_id,
        address=broker.controller_address,
    )
    yield _wait(cluster, f"broker {broker.node_id} is to vote in the metadata quorum")


def _is_replaced(voter: ObservedReplica, quorum: ObservedQuorum) -> bool:
    """Whether the node is back with another disk, so that this disk never returns."""
    return not _is_current(voter) and any(
        each.node_id == voter.node_id and each.directory_id != voter.directory_id
        for each in quorum.observers
        if _is_current(each)
    )


def _has_another_disk(voter: ObservedReplica, quorum: ObservedQuorum) -> bool:
    """Whether the node returns with another disk than the one that votes.

    Its former disk, which no longer votes, stays listed as a silent observer for some minutes.
    """
    others = [
        each
        for each in quorum.observers
        if each.node_id == voter.node_id and each.directory_id != voter.directory_id
    ]
    if not _is_current(voter):
        return bool(others)
    return any(_is_current(each) or each.behind_ms is None for each in others)


def _is_current(replica: ObservedReplica) -> bool:
    return replica.behind_ms is not None and replica.behind_ms <= BEHIND_MS_MAX


def _has_majority(voters: Sequence[ObservedReplica]) -> bool:
    return sum(map(_is_current, voters)) > len(voters) // 2


def _odd(count: int) -> int:
    return count - (count % 2 == 0 and count > 0)


def _ids(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, node_ids))


def _wait(cluster: Cluster, message: str) -> Waiting:
    return Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_VOTERS, message=message)
