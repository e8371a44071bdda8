"""What every resource shares: metadata, conditions, references, and the base classes.

The CRDs (`crds/`) define the API; these classes are the same specs, typed.
`tests/operator/test_crds_and_models_agree.py` checks that neither has more than the other.
Unknown fields are ignored here, as Kubernetes clients must: only validation is strict.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

GROUP = "headrace.dev"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"

#: A Kafka setting in a manifest: `retention.ms: 60000` or `"60000"`.
ConfigValue = str | int

DeletionPolicy = Literal["Retain", "Delete", "Protect"]


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of everything inside a resource: camelCase in manifests."""


class ObjectMeta(Spec, frozen=True, kw_only=True):
    """The part of Kubernetes' ObjectMeta that is used here."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class Reference(Spec, frozen=True, kw_only=True):
    """A reference to a resource, by default in the referrer's own namespace."""

    name: str
    namespace: str | None = None


class ConditionType(StrEnum):
    """Types of conditions: kstatus' three. A type is never a state."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    #: For ConsumerGroups with a lagPolicy.
    LAG_WITHIN_TARGET = "LagWithinTarget"


class Reason(StrEnum):
    """All reasons of conditions and problems."""

    # Progress
    PENDING = "Pending"
    RECONCILED = "Reconciled"
    RECONCILING = "Reconciling"
    PLANNED = "Planned"
    WAITING_FOR_CLUSTER = "WaitingForCluster"
    WAITING_FOR_BROKERS = "WaitingForBrokers"
    WAITING_FOR_TOPICS = "WaitingForTopics"
    WAITING_FOR_EMPTY_GROUP = "WaitingForEmptyGroup"
    WAITING_FOR_DRAIN = "WaitingForDrain"
    WAITING_FOR_VOTERS = "WaitingForVoters"
    WAITING_FOR_FORMER = "WaitingForFormer"
    PAUSED = "Paused"
    LAG_WITHIN_TARGET = "LagWithinTarget"
    LAG_ABOVE_TARGET = "LagAboveTarget"
    LAG_UNKNOWN = "LagUnknown"
    PARTITIONS_OFFLINE = "PartitionsOffline"
    DRIFT_REPORTED = "DriftReported"
    VOLUME_FULL = "VolumeFull"
    SETTING_WITHOUT_EFFECT = "SettingWithoutEffect"
    DELETION_PROTECTED = "DeletionProtected"
    # Problems that only a change of the spec or of the cluster can end
    CLUSTER_NOT_FOUND = "ClusterNotFound"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    DUPLICATE_TOPIC = "DuplicateTopic"
    DUPLICATE_GROUP = "DuplicateGroup"
    GROUP_TYPE_DIFFERS = "GroupTypeDiffers"
    PARTITIONS_CANNOT_SHRINK = "PartitionsCannotShrink"
    STORAGE_CLASS_DIFFERS = "StorageClassDiffers"
    TOO_FEW_BROKERS = "TooFewBrokers"
    TOPIC_NOT_FOUND = "TopicNotFound"
    DRAIN_REFUSED = "DrainRefused"
    REPLACEMENT_REFUSED = "ReplacementRefused"
    INVALID_RESET = "InvalidReset"
    TARGET_NOT_FOUND = "TargetNotFound"
    TARGET_NOT_ALLOWED = "TargetNotAllowed"
    NOT_SUPPORTED = "NotSupported"
    INVALID_SPEC = "InvalidSpec"
    BROKERS_FAILING = "BrokersFailing"
    QUORUM_LOST = "QuorumLost"
    ROLLED_BACK = "RolledBack"
    APPLY_FAILED = "ApplyFailed"


class Condition(Spec, frozen=True, kw_only=True):
    """metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of every resource.

    `document` is the original manifest: it keeps what is not typed here, and code that passes a
    resource on (to Kubernetes, to spark-submit) passes the document.
    """

    api_version: str
    kind: str
    metadata: ObjectMeta
    document: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, namespace and name: unique in one set of manifests."""
        return (self.kind, self.metadata.namespace, self.metadata.name)

    @property
    def title(self) -> str:
        """Its name in messages: `Topic default/cpu-load`."""
        return f"{self.kind} {self.metadata.namespace}/{self.metadata.name}"


class OpaqueObject(Object, frozen=True, kw_only=True):
    """A resource that Headrace does not interpret (a ConfigMap, a Service…)."""
