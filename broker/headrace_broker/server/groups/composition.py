"""Makes this node's group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.server.groups.group_driver import GroupCoordinator
from headrace_broker.server.groups.group_settings import GroupConfigs, group_config
from headrace_broker.server.groups.topics_view import TopicsOfImage

if TYPE_CHECKING:
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.groups.group_driver_shard import Initialize


class Node(Protocol):
    """The parts of the node that the coordinator is built from."""

    config: BrokerConfig
    clock: Clock

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""


def compose_groups(node: Node, initialize: Initialize) -> GroupCoordinator:
    """Return the node's coordinator; `initialize` creates the state of share partitions."""
    values = node.config.values
    groups = GroupConfigs(group_config(values), values, lambda: node.metadata)
    topics = TopicsOfImage()
    return GroupCoordinator(
        groups.broker,
        node.clock,
        config_of=groups.of,
        topics=lambda: topics.view(node.metadata),
        initialize=initialize,
    )
