"""Keeps what is around a driver: its settings, its Service, its account with its permissions.

All of it is written before a driver is made. While one runs, what was deleted or edited is put
right: without its permissions a driver gets no executors. An object with a wanted name that belongs
to another owner is neither changed nor deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.api.cache import trim
from headrace_operator.kubernetes.api.client import FIELD_MANAGER, KubernetesError
from headrace_operator.kubernetes.brokers.keeper import includes
from headrace_operator.kubernetes.owners import ForeignObjectError, check_owner
from headrace_operator.render.spark import render_access, render_submission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.render.spark_submission import Submission

__all__ = ["Surroundings", "access_of", "keep_objects"]

#: Lists that are compared as a whole: a rule with one field more says something else.
_WHOLE = ("rules", "subjects", "roleRef")


async def keep_objects(client: KubernetesClient, objects: Sequence[Object]) -> None:
    """Write the objects, or nothing if one of them belongs to another owner.

    Raises ForeignObjectError and KubernetesError.
    """
    present = [await _is_present(client, obj) for obj in objects]
    for obj, is_present in zip(objects, present, strict=True):
        await _write(client, obj, is_present=is_present)


async def _write(client: KubernetesClient, obj: Object, *, is_present: bool) -> Object:
    (owner,) = obj["metadata"]["ownerReferences"]
    # A separate field manager: each application adds itself as an owner and removes none.
    is_shared = not owner.get("controller")
    manager = f"headrace-spark-{owner['name']}" if is_shared else FIELD_MANAGER
    # Another client may create it at this very moment: nothing is forced.
    return await client.apply(obj, field_manager=manager, force=is_present)


async def access_of(client: KubernetesClient, submission: Submission) -> Sequence[Object]:
    """Return the driver's account and permissions; () if the account belongs to another owner."""
    access = render_access(submission)
    name, namespace = submission.service_account, submission.namespace
    live = await client.get("v1", "ServiceAccount", namespace, name)
    return access if live is None or _is_ours(live, access[0]) else ()


class Surroundings:
    """Puts right what is around a driver that runs. What is as it should be costs no request."""

    def __init__(self, client: KubernetesClient, store: Store) -> None:
        """The store gets the result of each write at once."""
        self._client = client
        self._store = store
        #: What others add to (a port of a Service) stays as it is: what was written then, and the
        #: version after it.
        self._settled: dict[tuple[str, str], tuple[Object, str]] = {}

    async def keep(self, submission: Submission, *, is_alive: bool) -> list[str]:
        """Keep all of it; return what could not be kept, and why.

        Of a driver that has ended only the Service. Raises KubernetesError if that is not about a
        single object.
        """
        settings, service, _ = render_submission(submission)
        objects = [service]
        if is_alive:
            access = render_access(submission)
            account = await self._find(access[0])
            if account is None or _is_ours(account, access[0]):
                objects += access
            # One that is there is what the driver was started with, maybe by another version.
            if await self._find(settings) is None:
                objects.append(settings)
        problems = []
        for obj in objects:
            try:
                await self._keep(obj)
            except (ForeignObjectError, KubernetesError) as error:
                if isinstance(error, KubernetesError) and not error.is_about_object:
                    raise
                problems.append(f"{obj['kind']} {obj['metadata']['name']}: {error}")
        return problems

    async def _keep(self, obj: Object) -> None:
        live = await self._find(obj)
        if live is not None:
            check_owner(live, obj)
            settled = (obj, live["metadata"]["resourceVersion"])
            if _has(live, obj) or self._settled.get(_key(live, obj)) == settled:
                return
        written = trim(await _write(self._client, obj, is_present=live is not None))
        if not _has(written, obj):
            self._settled[_key(written, obj)] = (obj, written["metadata"]["resourceVersion"])
        self._store.learn(written)

    async def _find(self, obj: Object) -> Object | None:
        kind, metadata = obj["kind"], obj["metadata"]
        known = self._store.get(kind, metadata["namespace"], metadata["name"])
        if known is not None:
            return known
        # One without our labels is not watched, and an event may still be on the way.
        namespace, name = metadata["namespace"], metadata["name"]
        return await self._client.get(obj["apiVersion"], kind, namespace, name)


def _key(live: Object, obj: Object) -> tuple[str, str]:
    (owner,) = obj["metadata"]["ownerReferences"]
    return live["metadata"]["uid"], owner["uid"]


def _has(live: Object, obj: Object) -> bool:
    """Whether a live object is as wanted, beside what others have added: an owner, a label."""
    metadata = dict(obj["metadata"])
    (owner,) = metadata.pop("ownerReferences")
    content: dict[str, Any] = {key: obj[key] for key in obj if key != "metadata"}
    return (
        any(includes(each, owner) for each in live["metadata"].get("ownerReferences") or [])
        and includes(live["metadata"], metadata)
        and includes(live, content)
        and all(live.get(key) == obj[key] for key in _WHOLE if key in obj)
    )


def _is_ours(live: Object, obj: Object) -> bool:
    try:
        check_owner(live, obj)
    except ForeignObjectError:
        return False
    return True


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
