"""Folders of replicas that no longer belong to this broker.

While this broker was down, the topic was deleted or the replica moved to another broker; or a log
directory was missing and the replica was recreated in another one. As in Kafka (KAFKA-14616), such
folders are renamed and kept: no broker reads them, and an administrator may remove them. A folder
without a readable topic id stays as it is, because nothing says which topic it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.types import NodeId, PartitionIndex, TopicId

if TYPE_CHECKING:
    from headrace_broker.log.log_directories import LogDirectories
    from headrace_broker.log.log_directory import LogDirectory
    from headrace_broker.metadata.image import MetadataImage

log = structlog.get_logger()


def set_strays_aside(
    directories: LogDirectories,
    image: MetadataImage,
    node_id: NodeId,
    opened: Container[tuple[UUID, int]],
    on_failure: Callable[[BaseException], None],
) -> None:
    """Rename every stray's folder.

    `image` must be newer than this process's registration. `opened` holds (topic id, index) of
    every open replica: a second folder of the same replica is an outdated one.
    """
    for directory in directories:
        try:
            _set_aside(directory, image, node_id, opened)
        except LogDirectoryFailure as failure:
            on_failure(failure)


def _set_aside(
    directory: LogDirectory,
    image: MetadataImage,
    node_id: NodeId,
    opened: Container[tuple[UUID, int]],
) -> None:
    _forget_futures(directory, image, node_id)
    for topic, index in directory.unopened():
        topic_id = directory.topic_id(topic, index)
        if topic_id is None:
            continue
        if (topic_id, index) in opened or not _is_assigned(image, topic_id, index, node_id):
            target = directory.set_aside(topic, index)
            log.warning(
                "stray replica set aside",
                topic=topic,
                partition=index,
                topic_id=topic_id,
                path=str(target),
            )


def _forget_futures(directory: LogDirectory, image: MetadataImage, node_id: NodeId) -> None:
    """Remove leftover copies of replicas that no longer belong to this broker."""
    for key in list(directory.futures):
        topic = image.topics.get(key.topic)
        if topic is None or not _is_assigned(image, topic.topic_id, key.partition, node_id):
            directory.take_futures(key)


def _is_assigned(image: MetadataImage, topic_id: TopicId, index: int, node_id: NodeId) -> bool:
    topic = image.topics_by_id.get(topic_id)
    partition = topic.partitions.get(PartitionIndex(index)) if topic is not None else None
    return partition is not None and node_id in partition.replicas
