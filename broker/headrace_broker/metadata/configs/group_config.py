"""Settings of single groups: the GROUP resource of KIP-848 and KIP-932, over the brokers' defaults.

A value must lie within the bounds of the broker's own settings. A group need not exist to be
configured: when it is created, it uses these settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.names import validate_topic_name
from headrace_broker.metadata.settings.broker_settings import DEAD_LETTER_PREFIX
from headrace_broker.metadata.settings.resources import (
    ConfigResource,
    ConfigResourceType,
    ConfigType,
)
from headrace_broker.metadata.settings.setting_types import (
    Bounds,
    Check,
    OneOf,
    ResetPolicy,
    parse_value,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetting:
    """One setting of a group; `synonym` is the broker's setting that is its default."""

    name: str
    type: ConfigType
    doc: str
    synonym: str | None = None
    default: Any = None
    minimum: str | None = None  # the broker's settings that bound it
    maximum: str | None = None
    check: Check | None = None
    is_topic: bool = False
    """Whether the text is the name of a dead-letter topic, or empty."""

    def default_of(self, values: Mapping[str, Any]) -> Any:
        """Return the value if the group does not set it."""
        return self.default if self.synonym is None else values.get(self.synonym, self.default)

    def parse(self, text: str, values: Mapping[str, Any]) -> Any:
        """Return the typed value; raise ValueError saying what is allowed."""
        value = parse_value(text, self.type)
        if self.check is not None:
            self.check.check(value)
        low = values.get(self.minimum) if self.minimum else None
        high = values.get(self.maximum) if self.maximum else None
        if self.is_topic and value:
            problem = dead_letter_topic_problem(value, values)
            if problem is not None:
                raise ValueError(problem)
        if low is not None and value < low:
            raise ValueError(f"{self.name} must be greater than or equal to {self.minimum} ({low})")
        if high is not None and value > high:
            raise ValueError(f"{self.name} must be less than or equal to {self.maximum} ({high})")
        return value


def dead_letter_topic_problem(name: str, values: Mapping[str, Any]) -> str | None:
    """Return why a topic with this name may not receive dead letters, or None."""
    prefix = values.get(DEAD_LETTER_PREFIX, "")
    if name.startswith("__"):
        return "topics whose names begin with '__' are the cluster's own"
    if not name.startswith(prefix):
        return f"the name must begin with '{prefix}' ({DEAD_LETTER_PREFIX})"
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.message
    return None


def _time_ms(kind: str, name: str, doc: str, default: int, low: int = 1) -> GroupSetting:
    """Return a time of `kind`'s groups, which the broker's settings bound from both sides."""
    return GroupSetting(
        name=f"{kind}.{name}",
        type=ConfigType.INT,
        doc=doc,
        synonym=f"group.{kind}.{name}",
        default=default,
        minimum=f"group.{kind}.min.{name}",
        maximum=f"group.{kind}.max.{name}",
        check=Bounds(low=low),
    )


GROUP_SETTINGS: Mapping[str, GroupSetting] = {
    setting.name: setting
    for setting in (
        _time_ms(
            "consumer",
            "session.timeout.ms",
            "How long a member of the consumer protocol may be silent.",
            45_000,
        ),
        _time_ms(
            "consumer",
            "heartbeat.interval.ms",
            "How often a member of the consumer protocol sends a heartbeat.",
            5_000,
        ),
        _time_ms(
            "share",
            "session.timeout.ms",
            "How long a member of a share group may be silent.",
            45_000,
        ),
        _time_ms(
            "share",
            "heartbeat.interval.ms",
            "How often a member of a share group sends a heartbeat.",
            5_000,
        ),
        _time_ms(
            "share",
            "record.lock.duration.ms",
            "How long a member of a share group has a record before another one gets it.",
            30_000,
            low=1000,
        ),
        GroupSetting(
            name="share.auto.offset.reset",
            type=ConfigType.STRING,
            doc="Where a share group begins: latest, earliest or by_duration:PnDTnHnMn.nS.",
            default="latest",
            check=ResetPolicy(),
        ),
        GroupSetting(
            name="share.isolation.level",
            type=ConfigType.STRING,
            doc="Whether a share group gets records of transactions that are open or aborted.",
            default="read_uncommitted",
            check=OneOf(("read_committed", "read_uncommitted")),
        ),
        GroupSetting(
            name="errors.deadletterqueue.topic.name",
            type=ConfigType.STRING,
            doc="Where a share group's records go that are rejected, or delivered as often as they "
            "may be (KIP-1191); empty: nowhere.",
            default="",
            is_topic=True,
        ),
        GroupSetting(
            name="errors.deadletterqueue.copy.record.enable",
            type=ConfigType.BOOLEAN,
            doc="Whether dead letters hold keys and values of their records, or only tell of them.",
            default=False,
        ),
    )
}


def group_resource(group_id: str) -> ConfigResource:
    """Return the resource of a group."""
    return ConfigResource(ConfigResourceType.GROUP, group_id)


def effective_group_config(
    image: MetadataImage, group_id: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return every setting of a group, typed; nothing if it sets none itself.

    A value that is outside of the broker's present bounds is clamped to them (as in Kafka).
    """
    texts = image.config(group_resource(group_id))
    if not texts:
        return {}
    effective: dict[str, Any] = {}
    for name, setting in GROUP_SETTINGS.items():
        value = setting.default_of(values)
        if name in texts:
            value = parse_value(texts[name], setting.type)
            if setting.minimum is not None and setting.maximum is not None:
                value = max(value, values.get(setting.minimum, value))
                value = min(value, values.get(setting.maximum, value))
        effective[name] = value
    return effective


class GroupRules:
    """What a group's configuration may be; `values` are the broker's settings."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def check_name(self, name: str, *, is_set: bool) -> None:
        """Raise ApiError(INVALID_CONFIG) for a setting that groups do not have."""
        if name not in GROUP_SETTINGS and not is_set:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")

    def is_list(self, name: str) -> bool:
        """Return whether the setting's value is a list."""
        return name in GROUP_SETTINGS and GROUP_SETTINGS[name].type is ConfigType.LIST

    def inherited(self, name: str) -> str:
        """Return the text that holds where the group sets nothing."""
        return str(GROUP_SETTINGS[name].default_of(self._values))

    def validate(self, texts: Mapping[str, str]) -> None:
        """Raise ApiError(INVALID_CONFIG) unless the whole configuration is legal."""
        typed: dict[str, Any] = {}
        for name, setting in GROUP_SETTINGS.items():
            try:
                typed[name] = (
                    setting.parse(texts[name], self._values)
                    if name in texts
                    else setting.default_of(self._values)
                )
            except ValueError as error:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Invalid value {texts[name]} for configuration {name}: {error}",
                ) from error
        for kind in ("consumer", "share"):
            if typed[f"{kind}.heartbeat.interval.ms"] >= typed[f"{kind}.session.timeout.ms"]:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms",
                )
