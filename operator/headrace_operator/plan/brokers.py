"""Plans a Cluster's brokers: which to start, to stop, to reconfigure. Pure.

`pools` plans which brokers there are. New settings roll out one broker at a time and only while
every partition is fully in sync, so that they never cost availability (`rolling`). Dynamic settings
are set for all brokers at once. `voters` plans who votes in the metadata quorum.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace_operator.plan.actions import (
    AlterClusterConfig,
    MoveReplicas,
    RefillBroker,
    StartBroker,
    UnregisterBroker,
)
from headrace_operator.plan.features import plan_features
from headrace_operator.plan.losses import plan_losses
from headrace_operator.plan.model import (
    Action,
    Desired,
    Observed,
    Problem,
    Waiting,
)
from headrace_operator.plan.moves import moves_left, next_moves, plan_end_of_throttle, plan_throttle
from headrace_operator.plan.pools import compare_pools
from headrace_operator.plan.refilling import plan_refills
from headrace_operator.plan.removal import plan_removal
from headrace_operator.plan.rolling import (
    config_changes,
    is_yet_to_begin,
    outdated_brokers,
    plan_roll,
    restart,
)
from headrace_operator.plan.voters import plan_voters
from headrace_operator.resources import Cluster, Reason
from headrace_operator.resources.broker_settings import LIVE_BROKER_SETTINGS
from headrace_operator.resources.ignored_settings import IGNORED_BROKER_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, kw_only=True)
class BrokerPlan:
    """Actions for the brokers."""

    actions: tuple[Action, ...]
    waiting: tuple[Waiting, ...]
    problems: tuple[Problem, ...] = ()
    #: Everything to be done, including restarts that wait for their turn.
    proposal: tuple[Action, ...] = ()


def plan_brokers(observed: Observed, desired: Desired, cluster: Cluster) -> BrokerPlan:
    """Compare pools with brokers; `desired` has the Topics, which say how many replicas to keep."""
    if problem := unsafe(cluster):
        return BrokerPlan(actions=(), waiting=(), problems=(problem,))
    config = _start_config(observed, cluster)
    pools = compare_pools(observed, cluster, config)
    actions: list[Action] = list(pools.starts)
    leaving = {broker.node_id for broker in pools.surplus}
    voting = list(
        plan_voters(cluster, observed.cluster, leaving, are_followed=bool(pools.successors))
    )
    outcomes: list[Action | Problem | Waiting] = [
        *plan_removal(observed, desired, pools, config),
        *(each for each in voting if isinstance(each, Action)),
        *_departed(observed, cluster),
        *_plan_live_config(observed, cluster),
    ]
    losses = list(plan_losses(observed, cluster))
    refills = list(plan_refills(observed, cluster))
    # A waiting one does not block the rest: it may wait for a restart.
    late = [each for each in refills if not isinstance(each, RefillBroker)]
    if not any(isinstance(each, MoveReplicas) for each in outcomes):
        outcomes += [each for each in refills if each not in late]
    # Neither a refused drain nor a broker that waits for its address blocks new settings.
    is_settled = not _begin_now(observed, pools.starts)
    if is_settled and all(isinstance(each, Problem) for each in outcomes):
        outcomes += plan_roll(observed, cluster, config) or _plan_balance(observed, cluster)
    if observed.cluster is not None:
        if not any(isinstance(each, MoveReplicas | Waiting) for each in outcomes):
            outcomes += plan_end_of_throttle(cluster, observed.cluster)
        outcomes += plan_throttle(cluster, observed.cluster)
        busy = [each for each in (*actions, *outcomes) if not isinstance(each, Problem)]
        outcomes += plan_features(cluster, observed.cluster, is_settled=not busy)
    # Nor does a change of voters that waits for a broker, which may need these settings.
    outcomes += [*late, *(each for each in voting if isinstance(each, Waiting))]
    # First, because everything else waits for these.
    outcomes = [*losses, *outcomes]
    actions += [each for each in outcomes if isinstance(each, Action)]
    restarts = [
        restart(cluster, each, config) for each in outdated_brokers(observed, cluster, config)
    ]
    return BrokerPlan(
        actions=tuple(actions),
        # The backend's waits are what blocks the actions: conditions report them first.
        waiting=(
            *_pending(observed, cluster),
            *(each for each in outcomes if isinstance(each, Waiting)),
        ),
        problems=tuple(each for each in outcomes if isinstance(each, Problem)),
        proposal=(*actions, *(each for each in restarts if each not in actions)),
    )


def _begin_now(observed: Observed, starts: Iterable[StartBroker]) -> bool:
    """Whether a broker begins for the first time, or one that has served starts again."""
    seen = observed.cluster
    known = {each.node_id: each for each in seen.brokers} if seen else {}
    return any(
        seen is None or each.node_id not in known or not is_yet_to_begin(seen, known[each.node_id])
        for each in starts
    )


def unsafe(cluster: Cluster) -> Problem | None:
    """Refuse to serve without the protection that a listener requires."""
    for listener in cluster.spec.listeners:
        if listener.tls.enabled or listener.authentication.type != "None":
            message = (
                f"listener {listener.name} asks for TLS or authentication, which brokers do not"
                " offer yet; nothing is started that would serve it in the clear"
            )
            return Problem(resource=cluster.key, reason=Reason.NOT_SUPPORTED, message=message)
    return None


def target_of(cluster: Cluster) -> str:
    """Return a name for the state that this spec leads to: the same until the spec changes.

    A user who writes it into `approvedPlan` approves all steps to that state, and nothing else.
    """
    spec = cluster.spec
    relevant: tuple[object, ...] = (
        *(spec.pools, spec.listeners, sorted(spec.config.items()), spec.version),
        # Only if set: plans approved before these fields existed stay approved.
        *((spec.image,) if spec.image else ()),
        *(spec.image_pull_secrets or ()),
        *((sorted(spec.features.items()),) if spec.features else ()),
        *(spec.replace_volumes or ()),
        *((sorted(spec.remove_brokers),) if spec.remove_brokers else ()),
    )
    return hashlib.sha256(msgspec.json.encode(relevant, order="deterministic")).hexdigest()[:16]


def _departed(observed: Observed, cluster: Cluster) -> Iterator[UnregisterBroker]:
    for node_id in observed.cluster.departed if observed.cluster else ():
        yield UnregisterBroker(resource=cluster.key, node_id=node_id)


def _start_config(observed: Observed, cluster: Cluster) -> dict[str, str]:
    """Return the settings that brokers are started with."""
    is_live = observed.cluster is not None and observed.cluster.has_live_config
    return {
        key: text
        for key, text in config_texts(cluster).items()
        if not (is_live and key in LIVE_BROKER_SETTINGS)
    }


def _plan_live_config(observed: Observed, cluster: Cluster) -> Iterator[AlterClusterConfig]:
    seen = observed.cluster
    if seen is None or not seen.has_live_config or seen.live_config is None:
        return
    wanted = {
        key: config_text(value)
        for key, value in cluster.spec.config.items()
        if key in LIVE_BROKER_SETTINGS
    }
    current = {
        key: seen.live_config[key] for key in seen.live_config if key in LIVE_BROKER_SETTINGS
    }
    changes = config_changes(current, wanted)
    if changes:
        yield AlterClusterConfig(
            resource=cluster.key,
            set={key: value for key, value in wanted.items() if current.get(key) != value},
            delete=tuple(sorted(current.keys() - wanted.keys())),
            changes=changes,
        )


def _plan_balance(observed: Observed, cluster: Cluster) -> list[Action | Waiting]:
    """Give brokers that joined their share, a limited number of partitions at a time."""
    seen = observed.cluster
    moves = moves_left(seen) if seen is not None else {}
    if seen is None or not moves:
        return []
    if seen.reassigning:
        message = f"replicas of {len(seen.reassigning)} partitions are on their way to new brokers"
        return [Waiting(resource=cluster.key, reason=Reason.RECONCILING, message=message)]
    return [*next_moves(cluster, seen, moves, ())]


def _pending(observed: Observed, cluster: Cluster) -> list[Waiting]:
    return [
        Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
        for message in (observed.cluster.pending if observed.cluster else ())
    ]


def config_texts(cluster: Cluster) -> dict[str, str]:
    """Return the spec's settings in the broker's text form, without those that have no effect.

    A setting that means nothing to brokers must not restart them.
    """
    return {
        key: config_text(value)
        for key, value in sorted(cluster.spec.config.items())
        if key not in IGNORED_BROKER_SETTINGS
    }


def config_text(value: str | int) -> str:
    """Return a setting in the broker's text form."""
    return str(value).strip()
