"""Volumes of brokers: claims grow with the spec, and templates follow.

A volume's class never changes: while there are volumes, a new class in the spec is refused, and so
is none where there was one; the pool keeps its class, for new brokers' volumes too. A StatefulSet's
claim templates are immutable as well: the set is deleted without its pods and recreated; the new
set adopts them, and nothing restarts.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.keeper import includes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.keeper import Refusals
    from headrace_operator.resources import Cluster

__all__ = ["expand_claims", "have_templates_changed", "quantity", "with_classes_kept"]

#: How a spec writes that a volume is of no class at all.
NO_CLASS = '""'

_SUFFIXES: dict[str, int | Decimal] = {
    "": 1,
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


def quantity(text: str | int) -> Decimal:
    """Return the value of a Kubernetes quantity. Raises ArithmeticError or KeyError."""
    text = str(text)
    number = text.rstrip("mkKMGTPEi")
    return Decimal(number) * _SUFFIXES[text[len(number) :]]


def have_templates_changed(live: Object, wanted: Object) -> bool:
    """Whether a StatefulSet must be recreated: its claims or its selector differ."""
    if live["spec"]["selector"] != wanted["spec"]["selector"]:
        return True
    return not includes(
        _comparable(live["spec"].get("volumeClaimTemplates") or []),
        _comparable(wanted["spec"].get("volumeClaimTemplates") or []),
    )


def with_classes_kept(
    cluster: Cluster,
    claims: Mapping[str, Sequence[Object]],
    sets: Mapping[str, Object],
) -> tuple[Cluster, str]:
    """Return the Cluster with its volumes' classes, and why; '' if no class differs.

    `claims`: of each pool's brokers; `sets`: of pools that have one. A claim without a volume keeps
    its class too, but holds no data: a user who corrects the class deletes it.
    """
    pools, reasons = [], []
    for pool in cluster.spec.pools:
        wanted = pool.storage.storage_class_name
        has_set = pool.name in sets
        of_set = _class_of(sets[pool.name]) if has_set else None
        # Which class no name stands for is known only where the set named one until now.
        is_named = wanted is not None or of_set is not None
        others = {
            each["metadata"]["name"]: each
            for each in claims.get(pool.name, ())
            if is_named
            and not each["metadata"].get("deletionTimestamp")
            and each["spec"].get("storageClassName") not in (None, wanted)
        }
        says = "no class" if wanted is None else wanted or NO_CLASS
        bound = [name for name, each in sorted(others.items()) if each["spec"].get("volumeName")]
        if bound:
            has = others[bound[0]]["spec"]["storageClassName"]
            another = "the class that you want" if wanted is None else f"class {says}"
            reasons.append(
                f"pool {pool.name}: volume {bound[0]} is of class {has or NO_CLASS} and the spec"
                f" says {says}; that of a volume does not change: add a pool of {another} and then"
                f" remove this one, or write {has or NO_CLASS}"
            )
            # As in the set: if it has none, for the default class, the set is not recreated.
            kept = of_set if has_set else has
            storage = msgspec.structs.replace(pool.storage, storage_class_name=kept)
            pool = msgspec.structs.replace(pool, storage=storage)  # noqa: PLW2901 - the pool as it is
        elif others:
            name = min(others)
            has = others[name]["spec"]["storageClassName"]
            then = "the cluster's default" if wanted is None else says
            reasons.append(
                f"pool {pool.name}: volume {name} was asked for with class {has or NO_CLASS} and is"
                f" not there yet: delete this claim and its pod, and it is asked for with {then}"
            )
        pools.append(pool)
    if not reasons:
        return cluster, ""
    spec = msgspec.structs.replace(cluster.spec, pools=tuple(pools))
    return msgspec.structs.replace(cluster, spec=spec), "; ".join(reasons)


async def expand_claims(
    client: KubernetesClient, claims: Sequence[Object], size: str | int, refusals: Refusals
) -> list[str]:
    """Request larger volumes where they are smaller. Returns pending growth.

    If a class does not allow growth, that is a refusal, and blocks nothing else.
    """
    messages: list[str] = []
    for claim in claims:
        if claim["metadata"].get("deletionTimestamp"):
            continue
        name = claim["metadata"]["name"]
        asked = claim["spec"]["resources"]["requests"]["storage"]
        has = (claim.get("status", {}).get("capacity") or {}).get("storage")
        if quantity(asked) < quantity(size):
            patch = {"spec": {"resources": {"requests": {"storage": str(size)}}}}
            reference = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": claim["metadata"],
            }
            with refusals.recorded(reference):
                try:
                    await client.patch(reference, patch)
                except KubernetesError as error:
                    message = f"it cannot grow from {asked} to {size}: {error.message}"
                    raise KubernetesError(error.status, error.reason, message) from error
        elif has is not None and quantity(has) < quantity(size):
            messages.append(f"volume {name} grows from {has} to {size}")
    return messages


def _class_of(stateful_set: Object) -> str | None:
    templates = stateful_set["spec"].get("volumeClaimTemplates") or [{"spec": {}}]
    found: str | None = templates[0]["spec"].get("storageClassName")
    return found


def _comparable(templates: list[dict[str, Any]]) -> list[Any]:
    """Return templates with sizes as numbers: the API server normalises their text."""
    return [
        {
            "name": each["metadata"]["name"],
            "labels": each["metadata"].get("labels", {}),
            "class": each["spec"].get("storageClassName"),
            "size": quantity(each["spec"]["resources"]["requests"]["storage"]),
        }
        for each in templates
    ]
