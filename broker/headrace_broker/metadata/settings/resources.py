"""Configuration resources: the subjects of ConfigRecords and config requests."""

from enum import IntEnum
from typing import NamedTuple


class ConfigResourceType(IntEnum):
    """Kafka's resource types (`ConfigResource.Type`)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a described value comes from (`DescribeConfigsResponse.ConfigSource`)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigType(IntEnum):
    """The type of a described value (`DescribeConfigsResponse.ConfigType`)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigResource(NamedTuple):
    """One owner of configuration. A broker resource with an empty name is the cluster's default."""

    type: int
    name: str


def topic_resource(name: str) -> ConfigResource:
    """Return the resource of the topic `name`."""
    return ConfigResource(ConfigResourceType.TOPIC, name)


def broker_resource(node_id: int | None) -> ConfigResource:
    """Return the resource of one broker, or with None that of the default of all brokers."""
    return ConfigResource(ConfigResourceType.BROKER, "" if node_id is None else str(node_id))
