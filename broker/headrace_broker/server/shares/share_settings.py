"""The settings of share groups: the broker's, overridden by those of a group."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_broker.coordinator.share_partition.partition import ShareLimits
from headrace_broker.metadata.configs.group_config import effective_group_config
from headrace_broker.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """One group's settings, as the leaders of its partitions need them."""

    limits: ShareLimits
    reset: str = "latest"
    reads_committed: bool = False
    dead_letter_topic: str = ""
    copies_records: bool = False
    """Whether dead letters include their records' keys and values."""


class ShareConfigs:
    """The current settings of each group."""

    def __init__(self, values: Mapping[str, Any], image: Callable[[], MetadataImage]) -> None:
        self._values = values
        self._image = image
        self._seen: MetadataImage | None = None
        self._made: dict[str, ShareSettings] = {}

    def of(self, group_id: str) -> ShareSettings:
        """Return a group's current settings."""
        image = self._image()
        if self._seen is None or self._seen.configs is not image.configs:
            self._seen, self._made = image, {}
        made = self._made.get(group_id)
        if made is None:
            made = self._made[group_id] = self._make(image, group_id)
        return made

    def _make(self, image: MetadataImage, group_id: str) -> ShareSettings:
        values = self._values
        own = effective_group_config(image, group_id, values)
        dead_letter_topic = own.get("errors.deadletterqueue.topic.name", "")
        lock_ms = own.get("share.record.lock.duration.ms")
        return ShareSettings(
            limits=ShareLimits(
                deliveries_max=values["group.share.delivery.count.limit"],
                locks_max=values["group.share.partition.max.record.locks"],
                lock_ms=lock_ms or values["group.share.record.lock.duration.ms"],
                has_dead_letters=bool(dead_letter_topic),
            ),
            reset=own.get("share.auto.offset.reset", "latest"),
            reads_committed=own.get("share.isolation.level") == "read_committed",
            dead_letter_topic=dead_letter_topic,
            copies_records=own.get("errors.deadletterqueue.copy.record.enable", False),
        )
