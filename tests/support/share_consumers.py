"""Share groups over real brokers, with librdkafka's ShareConsumer."""

from collections.abc import Mapping

from confluent_kafka import ShareConsumer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient


def configure_group(bootstrap: str, group: str, settings: Mapping[str, str]) -> None:
    """Set configs of a group."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, dict(settings))])
    finally:
        admin.close()


def explicit_share_consumer(bootstrap: str, group: str, topic: str) -> ShareConsumer:
    """A member that says itself what becomes of each record."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([topic])
    return consumer
