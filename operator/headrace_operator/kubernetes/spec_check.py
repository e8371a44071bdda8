"""Checks what no schema can check in a Cluster's spec: errors that prevent a broker's start.

CRDs reject most of them before they are stored. A Cluster that is older than these rules, or has a
typo in a setting's name, is caught here, before anything is rendered from it. Pure.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_operator.plan import Desired, Plan, Problem, Waiting
from headrace_operator.render.names import RESERVED_NAMES, RESERVED_PORTS
from headrace_operator.resources import Reason
from headrace_operator.resources.quantities import parse_quantity
from headrace_operator.validation.settings import check_broker_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.resources import Cluster

__all__ = ["cluster_spec_problems", "with_spec_checked"]

#: The same as in the CRD.
OFFERED_VERSION = re.compile(r"4\.2(\.[0-9]+)?")
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}")
LABEL_VALUE = re.compile(rf"({_LABEL_NAME})?")


def cluster_spec_problems(cluster: Cluster) -> tuple[str, ...]:
    """Return the errors, one sentence each with the field; () if there are none."""
    return tuple(_problems(cluster))


def with_spec_checked(
    planned: Plan, desired: Desired, held_back: tuple[Problem | Waiting, ...]
) -> Plan:
    """Hold back actions that would give brokers a spec that they cannot start with.

    `held_back`: why `desired` differs from the Cluster's spec; () if it does not.
    """
    cluster = desired.cluster
    if cluster is None or cluster.key in desired.deleted or cluster.spec.paused:
        return planned
    problems = [each for each in held_back if isinstance(each, Problem)]
    planned = replace(planned, problems=(*problems, *planned.problems))
    if waits := tuple(each for each in held_back if isinstance(each, Waiting)):
        actions = tuple(each for each in planned.actions if each.resource != cluster.key)
        planned = replace(planned, actions=actions, waiting=(*waits, *planned.waiting))
    if any(each.reason is Reason.ROLLED_BACK for each in held_back):
        return planned
    found = cluster_spec_problems(cluster)
    if not found:
        return planned
    problem = Problem(resource=cluster.key, reason=Reason.INVALID_SPEC, message="; ".join(found))
    return replace(
        planned,
        actions=tuple(each for each in planned.actions if each.resource != cluster.key),
        waiting=tuple(each for each in planned.waiting if each.resource != cluster.key),
        problems=(problem, *planned.problems),
    )


def _problems(cluster: Cluster) -> Iterator[str]:
    spec = cluster.spec
    if not OFFERED_VERSION.fullmatch(spec.version):
        yield f"spec.version: {spec.version}: these brokers offer the features of 4.2; write 4.2"
    for problem in check_broker_settings(spec.config):
        yield f"spec.config: {problem.path[-1]}: {problem.reason}"
    labels = spec.allowed_topics.namespaces.selector.match_labels
    for key, value in sorted(labels.items()):
        if not (LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value)):
            where = "spec.allowedTopics.namespaces.selector.matchLabels"
            yield f"{where}: {key}: {value!r}: no namespace can have this label"
    for listener in spec.listeners:
        where = f"spec.listeners: {listener.name}"
        if listener.port in RESERVED_PORTS:
            yield f"{where}: port {listener.port} is the brokers' own"
        if listener.name.lower() in RESERVED_NAMES:
            yield f"{where}: the brokers' own listener or port has this name"
        if "--" in listener.name:
            yield f"{where}: a port's name has no two hyphens in a row"
    for pool in spec.pools:
        where = f"spec.pools: {pool.name}"
        yield from _quantities(f"{where}: storage", {"size": pool.storage.size})
        yield from _quantities(f"{where}: resources.requests", pool.resources.requests)
        yield from _quantities(f"{where}: resources.limits", pool.resources.limits)


def _quantities(where: str, amounts: Mapping[str, str | int]) -> Iterator[str]:
    for name, amount in amounts.items():
        try:
            parse_quantity(str(amount))
        except ValueError:
            yield f"{where}.{name}: {amount!r} is no quantity (640Mi, 1.5Gi, 500m)"
