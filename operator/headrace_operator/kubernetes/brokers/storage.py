"""Volumes of brokers: claims grow with the spec, and templates are made to follow.

A StatefulSet's claim templates cannot change. It is deleted without its pods and recreated; the new
one adopts them, and nothing restarts.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.keeper import includes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["expand_claims", "have_templates_changed", "quantity"]

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
    """Return the number that a Kubernetes quantity is. Raises ArithmeticError or KeyError."""
    text = str(text)
    number = text.rstrip("mkKMGTPEi")
    return Decimal(number) * _SUFFIXES[text[len(number) :]]


def have_templates_changed(live: Object, wanted: Object) -> bool:
    """Whether a StatefulSet has to be recreated: its claims or its selector differ."""
    if live["spec"]["selector"] != wanted["spec"]["selector"]:
        return True
    return not includes(
        _comparable(live["spec"].get("volumeClaimTemplates") or []),
        _comparable(wanted["spec"].get("volumeClaimTemplates") or []),
    )


async def expand_claims(
    client: KubernetesClient, claims: Sequence[Object], size: str | int
) -> list[str]:
    """Ask for larger volumes where they are smaller. Returns what does not go, and what is awaited.

    What a class does not allow is reported, and stops nothing else.
    """
    messages: list[str] = []
    for claim in claims:
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
            try:
                await client.patch(reference, patch)
            except KubernetesError as error:
                messages.append(f"volume {name} cannot grow from {asked} to {size}: {error}")
        elif has is not None and quantity(has) < quantity(size):
            messages.append(f"volume {name} grows from {has} to {size}")
    return messages


def _comparable(templates: list[dict[str, Any]]) -> list[Any]:
    """Return templates with sizes as numbers: the API server writes them in its own way."""
    return [
        {
            "name": each["metadata"]["name"],
            "labels": each["metadata"].get("labels", {}),
            "class": each["spec"].get("storageClassName"),
            "size": quantity(each["spec"]["resources"]["requests"]["storage"]),
        }
        for each in templates
    ]
