"""Which dynamic configuration a broker may have, and which only the whole cluster may have."""

from collections.abc import Mapping, Sequence

from headrace_broker.metadata.configs.balance_settings import check_balance, is_piece
from headrace_broker.metadata.configs.config_effects import CLUSTER_WIDE
from headrace_broker.metadata.cordons import check_cordon
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.settings.broker_settings import (
    BALANCE_CONCURRENT_MOVES,
    BALANCE_LAST,
    BALANCE_PLAN,
    BALANCE_SETTINGS,
    BALANCE_THROTTLE,
    CLUSTER_SETTINGS,
    CORDONED_LOG_DIRS,
    DEAD_LETTER_AUTO_CREATE,
    DEAD_LETTER_PREFIX,
    DRAINED_BROKERS,
    DYNAMIC_BROKER_SETTINGS,
    LIVE_SETTINGS,
    MOVES_THROTTLE,
    REPLICATION_THROTTLES,
    BrokerSettings,
)
from headrace_broker.metadata.settings.kafka_names import (
    FIXED_KAFKA_SETTINGS,
    READ_ONLY_KAFKA_SETTINGS,
)
from headrace_broker.metadata.settings.resources import ConfigSource, ConfigType, broker_resource
from headrace_broker.metadata.settings.setting_types import (
    LONG_MAX,
    Bounds,
    TopicNamePrefix,
    format_value,
    parse_value,
)
from headrace_broker.metadata.settings.topic_config import (
    ConfigLayer,
    invalid_value,
    parse_broker_text,
    validate_topic_config,
)
from headrace_broker.metadata.settings.topic_settings import BROKER_SYNONYMS
from headrace_broker.protocol.errors import ApiError, ErrorCode

_OF_THE_CLUSTER = frozenset(
    {DRAINED_BROKERS, MOVES_THROTTLE, DEAD_LETTER_PREFIX, DEAD_LETTER_AUTO_CREATE}
)
_LIVE_BOUNDS = Bounds(low=1, high=LONG_MAX)
_BOUNDS: Mapping[str, Bounds] = {
    **dict.fromkeys(REPLICATION_THROTTLES, Bounds(low=0, high=LONG_MAX)),
    BALANCE_THROTTLE: Bounds(low=1, high=LONG_MAX),
    MOVES_THROTTLE: Bounds(low=1, high=LONG_MAX),
    BALANCE_CONCURRENT_MOVES: Bounds(low=1, high=1000),
}


class BrokerRules:
    """The rules of one broker's configuration or of the cluster-wide one; `weaker` is below it."""

    def __init__(
        self,
        image: MetadataImage,
        source: ConfigSource,
        weaker: Sequence[ConfigLayer],
        settings: BrokerSettings,
    ) -> None:
        self._image = image
        self._source = source
        self._weaker = weaker
        self._settings = settings

    @property
    def _is_of_one_broker(self) -> bool:
        return self._source is ConfigSource.DYNAMIC_BROKER_CONFIG

    def check_name(self, name: str, *, is_set: bool) -> None:
        """Raise ApiError for a setting that needs a restart, or that only the cluster may have."""
        is_clusters = name in BALANCE_SETTINGS or name in _OF_THE_CLUSTER or is_piece(name)
        if self._is_of_one_broker and (name in CLUSTER_WIDE or is_clusters):
            # The controller and all leaders must agree on it, or the ELR is wrong (KIP-966).
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Broker-level {name} cannot be altered; set it for the topic or the cluster",
            )
        if name == CORDONED_LOG_DIRS and not self._is_of_one_broker:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"{name} is set for one broker, not for the cluster"
            )
        if name == BALANCE_LAST:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is what the controller writes")
        if name in DYNAMIC_BROKER_SETTINGS or is_piece(name) or is_set:
            return
        if name in self._settings.all():
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: {name}; only the broker's file sets it",
            )
        if name in FIXED_KAFKA_SETTINGS or name in READ_ONLY_KAFKA_SETTINGS:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}"
            )
        # A setting without effect here, or an unknown name: Kafka accepts and keeps both.

    def is_list(self, name: str) -> bool:
        """Return whether the setting's value is a list."""
        if name in CLUSTER_SETTINGS:
            return CLUSTER_SETTINGS[name].type is ConfigType.LIST
        return name in BROKER_SYNONYMS and BROKER_SYNONYMS[name][0].type is ConfigType.LIST

    def inherited(self, name: str) -> str:
        """Return the value if this layer does not set it."""
        for layer in self._weaker:
            if name in layer.texts:
                return layer.texts[name]
        if name in CLUSTER_SETTINGS:
            return format_value(CLUSTER_SETTINGS[name].default) or ""
        return format_value(BROKER_SYNONYMS[name][0].default) or ""

    def validate(self, texts: Mapping[str, str]) -> None:
        """Raise ApiError(INVALID_CONFIG) unless all values are legal, also for topics."""
        for name, text in texts.items():
            try:
                if name in BROKER_SYNONYMS:
                    parse_broker_text(*BROKER_SYNONYMS[name], text)
                elif name in _BOUNDS:
                    _BOUNDS[name].check(parse_value(text, CLUSTER_SETTINGS[name].type))
                elif name == CORDONED_LOG_DIRS:
                    check_cordon(text)
                elif name in LIVE_SETTINGS:
                    value = parse_value(text, LIVE_SETTINGS[name])
                    if LIVE_SETTINGS[name] is ConfigType.LONG:
                        _LIVE_BOUNDS.check(value)
                    elif name == DEAD_LETTER_PREFIX:
                        TopicNamePrefix().check(value)
            except ValueError as error:
                raise invalid_value(name, text, error) from error
        if not self._is_of_one_broker:
            try:
                check_balance(self._image, self._image.config(broker_resource(None)), texts)
            except ValueError as error:
                raise invalid_value(BALANCE_PLAN, texts.get(BALANCE_PLAN, ""), error) from error
        validate_topic_config({}, [ConfigLayer(source=self._source, texts=texts), *self._weaker])
