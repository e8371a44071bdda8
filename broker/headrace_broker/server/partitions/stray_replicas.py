"""Folders of replicas that are none of this broker's any more.

Their topic was deleted, or they were moved to other brokers, while this broker was down; or their
log directory was away, and they were recreated in another. As Kafka does (KAFKA-14616), they are
renamed and kept: nobody reads them, and an operator may remove them. Without a topic id that can be
read nothing says whose a folder is, and it stays as it is.
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

    `image` must be newer than this process's registration. `opened` has (topic id, index) of every
    replica that is open: a second folder of one is of an older time.
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
    """Remove what is left of copies of replicas that are none of this broker's any more."""
    for key in list(directory.futures):
        topic = image.topics.get(key.topic)
        if topic is None or not _is_assigned(image, topic.topic_id, key.partition, node_id):
            directory.take_futures(key)


def _is_assigned(image: MetadataImage, topic_id: TopicId, index: int, node_id: NodeId) -> bool:
    topic = image.topics_by_id.get(topic_id)
    partition = topic.partitions.get(PartitionIndex(index)) if topic is not None else None
    return partition is not None and node_id in partition.replicas
