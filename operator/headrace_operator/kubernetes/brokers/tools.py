"""What passes over Clusters' objects use, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.brokers.identity import Identities
    from headrace_operator.kubernetes.brokers.keeper import ObjectKeeper
    from headrace_operator.kubernetes.brokers.zones import Zones

__all__ = ["Tools"]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a pass uses."""

    client: KubernetesClient
    store: Store
    identities: Identities
    keeper: ObjectKeeper
    zones: Zones
