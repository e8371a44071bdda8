"""Writes what is around a driver: its settings, its Service, its account with its permissions.

An object with a wanted name that belongs to another owner is neither changed nor deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.kubernetes.api.client import FIELD_MANAGER
from headrace_operator.kubernetes.owners import ForeignObjectError, check_owner
from headrace_operator.render.spark import render_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.render.spark_submission import Submission

__all__ = ["access_of", "keep_objects"]


async def keep_objects(client: KubernetesClient, objects: Sequence[Object]) -> None:
    """Write the objects, or nothing if one of them belongs to another owner.

    Raises ForeignObjectError and KubernetesError.
    """
    present = [await _is_present(client, obj) for obj in objects]
    for obj, is_present in zip(objects, present, strict=True):
        (owner,) = obj["metadata"]["ownerReferences"]
        # A separate field manager: each application adds itself as an owner and removes none.
        is_shared = not owner.get("controller")
        manager = f"headrace-spark-{owner['name']}" if is_shared else FIELD_MANAGER
        # Another client may create it at this very moment: nothing is forced.
        await client.apply(obj, field_manager=manager, force=is_present)


async def access_of(client: KubernetesClient, submission: Submission) -> Sequence[Object]:
    """Return the driver's account and permissions; () if the account belongs to another owner."""
    access = render_access(submission)
    name, namespace = submission.service_account, submission.namespace
    live = await client.get("v1", "ServiceAccount", namespace, name)
    try:
        if live is not None:
            check_owner(live, access[0])
    except ForeignObjectError:
        return ()
    return access


async def _is_present(client: KubernetesClient, obj: Object) -> bool:
    kind, metadata = obj["kind"], obj["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    live = await client.get(obj["apiVersion"], kind, namespace, name)
    if live is None:
        return False
    try:
        check_owner(live, obj)
    except ForeignObjectError as error:
        raise ForeignObjectError(f"{kind} {name}: {error}") from error
    return True
