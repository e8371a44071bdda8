"""Which brokers get no new replicas: the dynamic setting `cordoned.log.dirs` (KIP-1066).

As in Apache Kafka from 4.3 on. `*` means the whole broker: the controller places nothing there.
With paths, the broker itself puts new replicas into its other log directories. In both cases
existing replicas stay and are served.
"""

from collections.abc import Iterable

from headrace_broker.metadata.entities import BrokerImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.settings.broker_settings import CORDONED_LOG_DIRS
from headrace_broker.metadata.settings.resources import broker_resource
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NodeId

EVERY_LOG_DIR = "*"


def check_cordon(text: str) -> None:
    """Raise ValueError unless `text` is `*`, absolute paths, or empty.

    Only the broker knows its log directories: other paths have no effect.
    """
    paths = _paths(text)
    if paths and paths != [EVERY_LOG_DIR] and not all(path.startswith("/") for path in paths):
        raise ValueError("must be * (the whole broker), or absolute paths of its log directories")


def _paths(text: str) -> list[str]:
    return [path for path in map(str.strip, text.split(",")) if path]


def cordoned_directories(image: MetadataImage, node_id: NodeId) -> frozenset[str]:
    """Return the paths of a broker's log directories that get no new replicas."""
    text = image.config(broker_resource(node_id)).get(CORDONED_LOG_DIRS, "")
    return frozenset(path.rstrip("/") for path in _paths(text)) - {EVERY_LOG_DIR}


def is_cordoned(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether no new replica may be placed on a broker."""
    return image.config(broker_resource(node_id)).get(CORDONED_LOG_DIRS) == EVERY_LOG_DIR


def cordoned_brokers(image: MetadataImage) -> frozenset[NodeId]:
    """Return the registered brokers that get no new replicas."""
    return frozenset(node_id for node_id in image.brokers if is_cordoned(image, node_id))


def placeable_brokers(image: MetadataImage) -> list[BrokerImage]:
    """Return the active brokers that may get new replicas, by id."""
    return [broker for broker in image.active_brokers() if not is_cordoned(image, broker.node_id)]


def check_not_cordoned(
    image: MetadataImage, new_replicas: Iterable[NodeId], partition: str
) -> None:
    """Raise ApiError(INVALID_REPLICA_ASSIGNMENT) if a new replica is for a cordoned broker."""
    refused = [node for node in new_replicas if is_cordoned(image, node)]
    if refused:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{partition} would get a replica on broker {refused[0]}, which is cordoned "
            f"({CORDONED_LOG_DIRS}): it gets no new ones.",
        )
