"""A small asynchronous client of the Kubernetes API, with plain dicts: what an operator needs.

Every write first checks the fence (leadership must be held) and is counted. Children and statuses
are written by server-side apply: the field manager owns exactly the fields that it sends.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace_operator.kubernetes.api.transport import (
    FencedError,
    KubernetesError,
    Object,
    ResourceType,
    Transport,
    Write,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FIELD_MANAGER",
    "FencedError",
    "KubernetesClient",
    "KubernetesError",
    "Object",
    "ResourceType",
    "Versions",
    "Write",
]

FIELD_MANAGER = "headrace"
#: Status and spec have different field managers, so applying one never removes the other.
STATUS_MANAGER = "headrace-status"
LIST_LIMIT = 500
#: What the API server takes of an Event: 253 characters of its name, of which ours are 17, and
#: 1,024 bytes of its note.
NAME_LENGTH, NOTE_BYTES = 253 - 17, 1024
_TOO_MANY_REQUESTS = 429
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Versions(NamedTuple):
    """Uid and resourceVersion by namespace and name, and the version of the list itself."""

    versions: dict[tuple[str, str], tuple[str, int]]
    resource_version: int


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class _Item(msgspec.Struct):
    metadata: _Metadata


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMetadata
    #: null if there are none.
    items: list[_Item] | None


class KubernetesClient(Transport):
    """Asynchronous access to the API. Close it, or use it with `async with`."""

    # Reading

    async def get(
        self, api_version: str, kind: str, namespace: str | None, name: str
    ) -> Object | None:
        """Return an object, or None if it (or its kind) does not exist."""
        try:
            where = await self.resource_type(api_version, kind)
            return await self.read(where.path(namespace, name))
        except KubernetesError as error:
            if error.is_not_found:
                return None
            raise

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        label_selector: str | None = None,
        *,
        field_selector: str | None = None,
    ) -> list[Object]:
        """Return all objects of a kind, in one namespace or in all, read in pages."""
        where = await self.resource_type(api_version, kind)
        query: dict[str, str] = {"limit": str(LIST_LIMIT)}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        items: list[Object] = []
        while True:
            page = await self.read(where.path(namespace), query)
            # Items of a list lack apiVersion and kind.
            items += [{"apiVersion": api_version, "kind": kind, **each} for each in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return items
            query["continue"] = token

    async def list_versions(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        label_selector: str | None = None,
    ) -> Versions:
        """List only the metadata, which shows whether objects have changed (KEP-2334)."""
        where = await self.resource_type(api_version, kind)
        query: dict[str, str] = {"limit": str(LIST_LIMIT)}
        if label_selector:
            query["labelSelector"] = label_selector
        versions: dict[tuple[str, str], tuple[str, int]] = {}
        while True:
            page = msgspec.json.decode(
                await self.read_bytes(where.path(namespace), query, accept=_METADATA_ONLY),
                type=_Page,
            )
            for each in page.items or ():
                found = each.metadata
                versions[found.namespace, found.name] = (found.uid, int(found.resource_version))
            if not page.metadata.continue_:
                return Versions(versions, int(page.metadata.resource_version or 0))
            query["continue"] = page.metadata.continue_

    async def serves(self, api_version: str, kind: str) -> bool:
        """Whether the API server has this kind; asked each time: a CRD may come later."""
        self.forget_type(api_version, kind)
        try:
            await self.resource_type(api_version, kind)
        except KubernetesError as error:
            if error.is_not_found:
                return False
            raise
        return True

    # Writing

    async def apply(
        self, obj: Object, *, field_manager: str = FIELD_MANAGER, force: bool = True
    ) -> Object:
        """Server-side apply: create the object, or own and set exactly the fields in `obj`."""
        return await self._apply(obj, None, field_manager, force=force)

    async def apply_status(
        self, obj: Object, *, field_manager: str = STATUS_MANAGER, force: bool = True
    ) -> Object:
        """Server-side apply of `obj`'s status. `obj` needs apiVersion, kind, metadata, status.

        metadata.uid, if set, keeps the write from changing another object with the same name.
        """
        return await self._apply(obj, "status", field_manager, force=force)

    async def create(self, obj: Object, *, is_dry_run: bool = False) -> Object:
        """Create an object; `metadata.generateName` is fine. Raises KubernetesError (Conflict).

        A dry run goes through validation and admission, and stores nothing.
        """
        where = await self.resource_type(obj["apiVersion"], obj["kind"])
        path = where.path(obj["metadata"].get("namespace"))
        query = {"fieldManager": FIELD_MANAGER}
        if is_dry_run:
            query["dryRun"] = "All"
        return await self.write("POST", path, obj["kind"], body=obj, query=query)

    async def evict(
        self, namespace: str, name: str, *, uid: str | None = None, grace_period: int | None = None
    ) -> bool:
        """Evict a pod as PodDisruptionBudgets allow; False: one forbids it, or it is gone."""
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        options: Object = {}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if options:
            body["deleteOptions"] = options
        where = await self.resource_type("v1", "Pod")
        try:
            await self.write("POST", where.path(namespace, name, "eviction"), "Pod", body=body)
        except KubernetesError as error:
            if error.is_not_found or error.status == _TOO_MANY_REQUESTS:
                return False
            raise
        return True

    async def replace(self, obj: Object) -> Object:
        """PUT an object; its resourceVersion must be current, else KubernetesError (Conflict)."""
        metadata = obj["metadata"]
        where = await self.resource_type(obj["apiVersion"], obj["kind"])
        path = where.path(metadata.get("namespace"), metadata["name"])
        query = {"fieldManager": FIELD_MANAGER}
        return await self.write("PUT", path, obj["kind"], body=obj, query=query)

    async def patch(
        self,
        reference: Mapping[str, Any],
        patch: Any,
        *,
        patch_type: str = "merge",
        subresource: str | None = None,
    ) -> Object | None:
        """Patch the object that `reference` (apiVersion, kind, metadata) names; None: it is gone.

        `patch_type` is merge, json or strategic. A merge patch with metadata.resourceVersion fails
        (Conflict) if the object has changed since.
        """
        metadata = reference["metadata"]
        try:
            where = await self.resource_type(reference["apiVersion"], reference["kind"])
            return await self.write(
                "PATCH",
                where.path(metadata.get("namespace"), metadata["name"], subresource or ""),
                reference["kind"],
                body=patch,
                query={"fieldManager": FIELD_MANAGER},
                content_type=_PATCH_TYPES[patch_type],
            )
        except KubernetesError as error:
            if error.is_not_found:
                return None
            raise

    async def delete(
        self,
        reference: Mapping[str, Any],
        *,
        uid: str | None = None,
        propagation: str = "Background",
        grace_period: int | None = None,
        is_dry_run: bool = False,
    ) -> bool:
        """Delete the object that `reference` names; False: there was none (or with another uid)."""
        metadata = reference["metadata"]
        options: Object = {"propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        if is_dry_run:
            options["dryRun"] = ["All"]
        try:
            where = await self.resource_type(reference["apiVersion"], reference["kind"])
            path = where.path(metadata.get("namespace"), metadata["name"])
            await self.write("DELETE", path, reference["kind"], body=options)
        except KubernetesError as error:
            if error.is_not_found or (uid is not None and error.is_conflict):
                return False
            raise
        return True

    async def get_scale(
        self, api_version: str, kind: str, namespace: str, name: str
    ) -> Object | None:
        """Return an object's autoscaling/v1 Scale, or None."""
        try:
            where = await self.resource_type(api_version, kind)
            return await self.read(where.path(namespace, name, "scale"))
        except KubernetesError as error:
            if error.is_not_found:
                return None
            raise

    async def set_scale(
        self, reference: Mapping[str, Any], replicas: int, *, resource_version: str | None = None
    ) -> Object | None:
        """Write spec.replicas of the object's /scale; None: it is gone."""
        body: Object = {"spec": {"replicas": replicas}}
        if resource_version is not None:
            body["metadata"] = {"resourceVersion": resource_version}
        return await self.patch(reference, body, subresource="scale")

    async def event(
        self, regarding: Mapping[str, Any], *, reason: str, message: str, kind: str = "Normal"
    ) -> None:
        """Record an Event (kind Normal or Warning); a failure to record it is ignored.

        A namespace that is being deleted accepts no new Events.
        """
        metadata = regarding["metadata"]
        namespace = metadata.get("namespace") or "default"
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name'][:NAME_LENGTH].rstrip('.-')}.{uuid.uuid4().hex[:16]}",
                "namespace": namespace,
            },
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace"),
                "uid": metadata.get("uid"),
            },
            "type": kind,
            "reason": reason,
            "action": reason,
            "note": message.encode()[:NOTE_BYTES].decode(errors="ignore"),
            "eventTime": now,
            "reportingController": "headrace.dev/operator",
            "reportingInstance": "headrace-operator",
        }
        try:
            await self.create(body)
        except KubernetesError:
            return

    # Inside

    async def _apply(
        self, obj: Object, subresource: str | None, field_manager: str, *, force: bool
    ) -> Object:
        metadata = obj["metadata"]
        where = await self.resource_type(obj["apiVersion"], obj["kind"])
        path = where.path(metadata.get("namespace"), metadata["name"], subresource or "")
        return await self.write(
            "PATCH",
            path,
            obj["kind"],
            body=obj,
            query={"fieldManager": field_manager, "force": str(force).lower()},
            content_type=_PATCH_TYPES["apply"],
        )
