"""The group coordinator's settings: the broker's, and those that a group overrides."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from headrace_broker.coordinator.config import (
    ConsumerGroupConfig,
    GroupConfig,
    MigrationPolicy,
    ShareGroupConfig,
)
from headrace_broker.metadata.configs.group_config import effective_group_config
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.batch import HEADER_SIZE

_MESSAGE_MAX_BYTES: Final = 1024 * 1024 + 12  # Kafka's default, if the file does not set it


def group_config(values: Mapping[str, Any]) -> GroupConfig:
    """Return the coordinator's settings from a broker's settings."""
    return GroupConfig(
        session_timeout_ms_min=values["group.min.session.timeout.ms"],
        session_timeout_ms_max=values["group.max.session.timeout.ms"],
        initial_rebalance_delay_ms=values["group.initial.rebalance.delay.ms"],
        group_size_max=values["group.max.size"],
        offset_metadata_bytes_max=values["offset.metadata.max.bytes"],
        offsets_retention_ms=values["offsets.retention.minutes"] * 60_000,
        offsets_retention_check_interval_ms=values["offsets.retention.check.interval.ms"],
        offsets_topic_partitions=values["offsets.topic.num.partitions"],
        commit_timeout_ms=values["offsets.commit.timeout.ms"],
        groups_max=values["headrace.max.groups"],
        record_bytes_max=values.get("message.max.bytes", _MESSAGE_MAX_BYTES) - HEADER_SIZE,
        consumer=ConsumerGroupConfig(
            session_timeout_ms=values["group.consumer.session.timeout.ms"],
            heartbeat_interval_ms=values["group.consumer.heartbeat.interval.ms"],
            size_max=values["group.consumer.max.size"],
            assignors=tuple(map(assignor_name, values["group.consumer.assignors"])),
            migration_policy=MigrationPolicy(values["group.consumer.migration.policy"]),
            regex_refresh_interval_ms=values["group.consumer.regex.refresh.interval.ms"],
        ),
        share=ShareGroupConfig(
            session_timeout_ms=values["group.share.session.timeout.ms"],
            heartbeat_interval_ms=values["group.share.heartbeat.interval.ms"],
            size_max=values["group.share.max.size"],
        ),
    )


def assignor_name(text: str) -> str:
    """Return the name of an assignor that the file gives by name or by Kafka's class."""
    return {
        "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
        "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
    }.get(text, text)


class GroupConfigs:
    """The settings of each group: the broker's, overridden by those of the group."""

    def __init__(
        self, config: GroupConfig, values: Mapping[str, Any], image: Callable[[], MetadataImage]
    ) -> None:
        self.broker = config
        self._values = values
        self._image = image
        self._seen: MetadataImage | None = None
        self._made: dict[str, GroupConfig] = {}

    def of(self, group_id: str) -> GroupConfig:
        """Return a group's present settings."""
        image = self._image()
        if self._seen is None or self._seen.configs is not image.configs:
            self._seen, self._made = image, {}
        made = self._made.get(group_id)
        if made is not None:
            return made
        own = effective_group_config(image, group_id, self._values)
        if not own:
            return self.broker
        made = replace(
            self.broker,
            consumer=replace(
                self.broker.consumer,
                session_timeout_ms=own["consumer.session.timeout.ms"],
                heartbeat_interval_ms=own["consumer.heartbeat.interval.ms"],
            ),
            share=replace(
                self.broker.share,
                session_timeout_ms=own["share.session.timeout.ms"],
                heartbeat_interval_ms=own["share.heartbeat.interval.ms"],
            ),
        )
        self._made[group_id] = made
        return made
