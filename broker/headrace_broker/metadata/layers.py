"""The sources of a broker's settings, from the image: dynamic ones above those in its file."""

from collections.abc import Mapping
from typing import Any

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.settings.resources import (
    ConfigSource,
    broker_resource,
    topic_resource,
)
from headrace_broker.metadata.settings.topic_config import ConfigLayer, effective_topic_config
from headrace_broker.protocol.types import NodeId


def broker_layers(
    image: MetadataImage, node_id: NodeId, static: Mapping[str, str]
) -> tuple[ConfigLayer, ...]:
    """Return the broker's settings by source, the strongest first; `static` is its file's text."""
    return (
        ConfigLayer(
            source=ConfigSource.DYNAMIC_BROKER_CONFIG, texts=image.config(broker_resource(node_id))
        ),
        ConfigLayer(
            source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            texts=image.config(broker_resource(None)),
        ),
        ConfigLayer(source=ConfigSource.STATIC_BROKER_CONFIG, texts=static),
    )


def topic_values(
    image: MetadataImage, topic: str, node_id: NodeId, static: Mapping[str, str]
) -> dict[str, Any]:
    """Return every effective setting of `topic` on the broker `node_id`, typed, by Kafka's name."""
    overrides = image.config(topic_resource(topic))
    return effective_topic_config(overrides, broker_layers(image, node_id, static))
