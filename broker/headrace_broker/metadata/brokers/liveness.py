"""Decides what follows from heartbeats and failures: fencing, unfencing, controlled shutdown.

A fenced broker, or one that shuts down, leads nothing and is in no ISR; where it was the last
in-sync replica, the partition has no leader and the broker stays eligible (KIP-966). The records of
the broker and of all its partitions are one batch.
"""

from collections.abc import Collection
from dataclasses import replace
from enum import Enum, auto
from uuid import UUID

from headrace_broker.metadata.brokers.sessions import BrokerSessions
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import NO_LEADER, BrokerImage, TopicImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import PartitionTarget, without
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from headrace_broker.metadata.replication_rules import ReplicationRules, partitions_of
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, Offset, PartitionIndex

# BrokerRegistrationChangeRecord's values.
_FENCED, _UNFENCED = 1, -1
_IN_CONTROLLED_SHUTDOWN = 1


def decide_fence_broker(
    image: MetadataImage,
    node_id: NodeId,
    policy: TopicPolicy,
    epoch: BrokerEpoch | None = None,
) -> MetadataDecision[bool]:
    """Decide that a broker is gone (silent too long, or dead); answer whether it was fenced now.

    With `epoch` only that registration is fenced: the report may be older than its successor.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.fenced or epoch not in (None, broker.epoch):
        return MetadataDecision(records=[], response=False)
    return MetadataDecision(records=_fencing(image, broker, policy), response=True)


def decide_lost_broker(
    image: MetadataImage, node_id: NodeId, policy: TopicPolicy
) -> MetadataDecision[bool]:
    """Decide that a broker's disk is lost: it leads nothing, and is no longer eligible anywhere."""
    records = broker_leaves(image, node_id, policy, lost_records=True)
    return MetadataDecision(records=records, response=bool(records))


def decide_heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeatRequest,
    sessions: BrokerSessions,
    policy: TopicPolicy,
    now_ms: int,
) -> MetadataDecision[BrokerHeartbeatResponse]:
    """Decide what a heartbeat changes; `sessions` is updated at once.

    Raises ApiError(BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH): the broker registers again.
    """
    node_id, epoch = NodeId(request.broker_id), BrokerEpoch(request.broker_epoch)
    broker = registered_broker(image, node_id, epoch)
    sessions.touch(node_id, epoch, Offset(request.current_metadata_offset), now_ms)
    # The epoch is the offset of the registration: having read that far, it knows all before it.
    is_caught_up = request.current_metadata_offset >= broker.epoch
    now, then = _state(broker), _next_state(image, broker, request, sessions)
    records: list[MetadataRecord] = []
    failed = set(broker.log_dirs).intersection(request.offline_log_dirs)
    if failed:
        # Its other requests are in its next heartbeat, too.
        then, records = now, directories_failed(image, broker, failed, policy)
    elif then is not now:
        if then is _State.UNFENCED:
            records = _unfencing(image, broker, policy)
        elif then is _State.SHUTTING_DOWN:
            records = _shutting_down(image, broker, policy)
            sessions.begin_shutdown(node_id, Offset(image.offset + len(records)))
        elif not broker.fenced:
            records = _fencing(image, broker, policy)
    response = BrokerHeartbeatResponse(
        is_caught_up=is_caught_up,
        is_fenced=then in {_State.FENCED, _State.STOPPED},
        should_shut_down=then is _State.STOPPED,
    )
    return MetadataDecision(records=records, response=response)


class _State(Enum):
    """KRaft's BrokerControlState."""

    FENCED = auto()
    UNFENCED = auto()
    SHUTTING_DOWN = auto()
    STOPPED = auto()


def _state(broker: BrokerImage) -> _State:
    if broker.fenced:
        return _State.FENCED
    return _State.SHUTTING_DOWN if broker.in_controlled_shutdown else _State.UNFENCED


def _next_state(
    image: MetadataImage,
    broker: BrokerImage,
    request: BrokerHeartbeatRequest,
    sessions: BrokerSessions,
) -> _State:
    now, node_id = _state(broker), broker.node_id
    if now is _State.FENCED or request.want_fence:
        if request.want_shut_down:
            return _State.STOPPED
        # A broker that was allowed to stop does so: only a new registration brings it back.
        is_ready = request.current_metadata_offset >= broker.epoch and not request.want_fence
        is_welcome = is_ready and not broker.in_controlled_shutdown
        return _State.UNFENCED if is_welcome else _State.FENCED
    if now is _State.UNFENCED and not request.want_shut_down:
        return now
    if _leads(image, node_id):
        return _State.SHUTTING_DOWN
    return _State.STOPPED if sessions.shutdown_is_known(image, node_id) else now


def _leads(image: MetadataImage, node_id: NodeId) -> bool:
    return any(partition.leader == node_id for _, _, partition in partitions_of(image))


def registered_broker(image: MetadataImage, node_id: NodeId, epoch: BrokerEpoch) -> BrokerImage:
    """Return the broker; raises ApiError where it is not registered with that epoch."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise ApiError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered with us"
        )
    if broker.epoch != epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {node_id} is not registered with epoch {epoch}"
        )
    return broker


def _fencing(
    image: MetadataImage, broker: BrokerImage, policy: TopicPolicy
) -> list[MetadataRecord]:
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.node_id, broker_epoch=broker.epoch, fenced=_FENCED
    )
    return [record, *broker_leaves(image, broker.node_id, policy)]


def _unfencing(
    image: MetadataImage, broker: BrokerImage, policy: TopicPolicy
) -> list[MetadataRecord]:
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.node_id, broker_epoch=broker.epoch, fenced=_UNFENCED
    )
    return [record, *broker_comes(image, broker.node_id, policy)]


def _shutting_down(
    image: MetadataImage, broker: BrokerImage, policy: TopicPolicy
) -> list[MetadataRecord]:
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.node_id,
        broker_epoch=broker.epoch,
        in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN,
    )
    return [record, *broker_leaves(image, broker.node_id, policy)]


def directories_failed(
    image: MetadataImage, broker: BrokerImage, failed: Collection[UUID], policy: TopicPolicy
) -> list[MetadataRecord]:
    """Return the records that take a broker's log directories, and their replicas, offline.

    A broker without any directory is gone. The replicas lose leadership and leave the in-sync sets
    (KIP-858).
    """
    online = [directory for directory in broker.log_dirs if directory not in failed]
    if not online:
        return [] if broker.fenced else _fencing(image, broker, policy)
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(
            broker_id=broker.node_id, broker_epoch=broker.epoch, log_dirs=online
        )
    ]
    rules = ReplicationRules(image, policy, failed=failed)
    for topic, index, partition in partitions_of(image):
        if partition.directory_of(broker.node_id) in failed:
            record = leaves_partition(rules, topic, index, broker.node_id)
            records += [] if record is None else [record]
    return records


def leaves_partition(
    rules: ReplicationRules,
    topic: TopicImage,
    index: PartitionIndex,
    node_id: NodeId,
    target: PartitionTarget | None = None,
) -> PartitionChangeRecord | None:
    """Return the record that removes a replica as leader and from the in-sync set."""
    partition = topic.partitions[index]
    if node_id not in partition.isr and partition.leader != node_id:
        return None if target is None else rules.change(topic, index, target)
    target = replace(
        target or PartitionTarget(),
        isr=without(partition.isr, (node_id,)),
        election=rules.election(topic.name),
    )
    return rules.change(topic, index, target)


def broker_leaves(
    image: MetadataImage, node_id: NodeId, policy: TopicPolicy, *, lost_records: bool = False
) -> list[MetadataRecord]:
    """Return the records that remove the broker as leader and from ISRs.

    With `lost_records` (an unclean shutdown) it is no longer eligible to lead either (KIP-966).
    """
    rules = ReplicationRules(image, policy, leaving=node_id)
    lost = frozenset({node_id}) if lost_records else frozenset()
    records: list[MetadataRecord] = []
    for topic, index, partition in partitions_of(image):
        is_concerned = (
            node_id in partition.isr
            or partition.leader == node_id
            or (lost_records and node_id in partition.eligible_leader_replicas)
        )
        if is_concerned:
            target = PartitionTarget(
                isr=without(partition.isr, (node_id,)),
                lost=lost,
                election=rules.election(topic.name),
            )
            record = rules.change(topic, index, target)
            if record is not None:
                records.append(record)
    return records


def broker_comes(
    image: MetadataImage, node_id: NodeId, policy: TopicPolicy
) -> list[MetadataRecord]:
    """Return the records that elect leaders for leaderless partitions: the broker is back."""
    rules = ReplicationRules(image, policy, coming=node_id)
    records: list[MetadataRecord] = []
    for topic, index, partition in partitions_of(image):
        if partition.leader == NO_LEADER and node_id in partition.replicas:
            target = PartitionTarget(election=rules.election(topic.name))
            record = rules.change(topic, index, target)
            if record is not None:
                records.append(record)
    return records
