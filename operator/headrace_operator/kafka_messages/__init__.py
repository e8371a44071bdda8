"""Messages that kafka-python has no schema of yet, in the form of its own: Kafka's JSON.

ConsumerGroupDescribe (KIP-848), ShareGroupDescribe, DescribeShareGroupOffsets and
AlterShareGroupOffsets (KIP-932): without them no group of these kinds is described, nor a share
group moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafka.protocol.api_message import ApiMessage

_GROUPS_AT_ONCE = 100


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Describe consumer groups."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Their descriptions."""


class ShareGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Describe share groups."""


class ShareGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Their descriptions."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Ask where share groups are."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Where they are."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """Have an empty share group begin elsewhere."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]  # kafka-python is not typed
    """The outcome."""


_OffsetGroup = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
_AlterTopic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
_AlterPartition = _AlterTopic.AlterShareGroupOffsetsRequestPartition

Partition = tuple[str, int]


class SharePosition(NamedTuple):
    """Where a share group is with a partition.

    `lag`: the records from there to the end that it is not done with; None where it is not known.
    """

    start_offset: int
    lag: int | None


def describe_consumer_groups(admin: Any, group_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return each group that is of the consumer protocol, as the response has it."""
    return _ask_coordinators(
        admin,
        group_ids,
        lambda names: ConsumerGroupDescribeRequest(
            group_ids=names, include_authorized_operations=False
        ),
    )


def describe_share_groups(admin: Any, group_ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return each share group, as the response has it."""
    return _ask_coordinators(
        admin,
        group_ids,
        lambda names: ShareGroupDescribeRequest(
            group_ids=names, include_authorized_operations=False
        ),
    )


def share_group_offsets(
    admin: Any, group_ids: list[str]
) -> dict[str, dict[Partition, SharePosition]]:
    """Return where each share group is; partitions that it has not begun are left out."""
    found = _ask_coordinators(
        admin,
        group_ids,
        lambda names: DescribeShareGroupOffsetsRequest(
            groups=[_OffsetGroup(group_id=name, topics=None) for name in names]
        ),
    )
    return {
        group_id: {
            (topic["topic_name"], partition["partition_index"]): SharePosition(
                partition["start_offset"], partition["lag"] if partition["lag"] >= 0 else None
            )
            for topic in group["topics"]
            for partition in topic["partitions"]
            if not partition["error_code"] and partition["start_offset"] >= 0
        }
        for group_id, group in found.items()
    }


def alter_share_group_offsets(
    admin: Any, group_id: str, offsets: Mapping[Partition, int]
) -> dict[Partition, tuple[int, str]]:
    """Have an empty share group begin at these offsets; return what was refused, with the code."""
    topics: dict[str, list[Any]] = {}
    for (topic, index), offset in sorted(offsets.items()):
        partition = _AlterPartition(partition_index=index, start_offset=offset)
        topics.setdefault(topic, []).append(partition)
    request = AlterShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[_AlterTopic(topic_name=name, partitions=items) for name, items in topics.items()],
    )
    manager = admin._manager  # noqa: SLF001  the way of all of the client's own requests

    async def send() -> Any:
        node_id = (await admin._find_coordinator_ids([group_id]))[group_id]  # noqa: SLF001
        return await manager.send(request, node_id=node_id)

    response = manager.run(send)
    if response.error_code:
        return dict.fromkeys(offsets, (response.error_code, response.error_message or ""))
    return {
        (topic.topic_name, partition.partition_index): (
            partition.error_code,
            partition.error_message or "",
        )
        for topic in response.responses
        for partition in topic.partitions
        if partition.error_code
    }


def _ask_coordinators(
    admin: Any, group_ids: list[str], make: Callable[[list[str]], Any]
) -> dict[str, dict[str, Any]]:
    """Send a request for some groups to their coordinators; return those without an error."""
    manager = admin._manager  # noqa: SLF001  the way of all of the client's own requests

    async def ask() -> dict[str, dict[str, Any]]:
        by_node: dict[int, list[str]] = {}
        for group_id, node_id in (await admin._find_coordinator_ids(group_ids)).items():  # noqa: SLF001
            by_node.setdefault(node_id, []).append(group_id)
        found: dict[str, dict[str, Any]] = {}
        for node_id, names in by_node.items():
            for start in range(0, len(names), _GROUPS_AT_ONCE):
                request = make(names[start : start + _GROUPS_AT_ONCE])
                response = await manager.send(request, node_id=node_id)
                for group in response.groups:
                    if not group.error_code:
                        found[group.group_id] = group.to_dict()
        return found

    described: dict[str, dict[str, Any]] = manager.run(ask)
    return described
