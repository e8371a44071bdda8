"""The topics that a consumer's join metadata names (`ConsumerProtocolSubscription`, KIP-429).

The metadata belongs to the clients: the coordinator reads only the topics, and treats metadata that
it cannot parse as "unknown" and not as an error.
"""

from typing import Final

from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)

_VERSION_PREFIX_SIZE: Final = 2
_EVERY_VERSION_STARTS_AS: Final = 0


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics in the metadata; None if its format is unknown."""
    try:
        subscription, _ = decode(
            ConsumerProtocolSubscription, metadata, _EVERY_VERSION_STARTS_AS, _VERSION_PREFIX_SIZE
        )
    except DecodeError:
        return None
    return frozenset(subscription.topics)
