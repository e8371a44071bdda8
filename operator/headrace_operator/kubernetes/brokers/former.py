"""What is left of a former Cluster with the same name, and is going. Pure.

Nothing of a new Cluster is made beside it: a set that is being deleted takes the brokers that were
adopted with it, and a claim that is being deleted names a broker whose data will not be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.kubernetes.brokers.observed import is_owned
from headrace_operator.kubernetes.owners import owners_of_kind
from headrace_operator.render.pods import DELETION_ANNOTATION
from headrace_operator.resources import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.resources import Cluster

__all__ = ["remains_of_former"]


def remains_of_former(
    cluster: Cluster, sets: Sequence[Object], claims: Sequence[Object]
) -> list[str]:
    """Return what a new Cluster must see gone, among objects with its labels, by kind and name.

    A set with retained claims is none of it, unless it is being deleted already: it is adopted.
    """
    if any(is_owned(each, cluster.metadata.uid) for each in sets):
        # It is not new: its brokers run, and claims of theirs may be deleted one by one.
        return []
    going = [
        *(each for each in sets if _is_set_going(each)),
        *(each for each in claims if _is_claim_going(each, cluster.metadata.uid)),
    ]
    return [f"{each['kind']} {each['metadata']['name']}" for each in going]


def _is_set_going(stateful_set: Object) -> bool:
    if stateful_set["metadata"].get("deletionTimestamp"):
        return True
    if not any(owners_of_kind(stateful_set, API_VERSION, "Cluster")):
        # Restored from a backup, or orphaned on purpose.
        return False
    spec = stateful_set["spec"]
    policy = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    annotations = stateful_set["metadata"].get("annotations") or {}
    return (
        not spec.get("volumeClaimTemplates")
        or annotations.get(DELETION_ANNOTATION) == "Delete"
        # Of an older operator.
        or policy.get("whenDeleted") == "Delete"
    )


def _is_claim_going(claim: Object, cluster_uid: str) -> bool:
    """Whether a claim is being deleted, now or with what owns it. A retained one has no owner."""
    owners = [
        *owners_of_kind(claim, API_VERSION, "Cluster"),
        *owners_of_kind(claim, "apps/v1", "StatefulSet"),
    ]
    is_deleted = bool(claim["metadata"].get("deletionTimestamp"))
    return is_deleted or any(each["uid"] != cluster_uid for each in owners)
