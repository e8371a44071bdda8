"""Settings that a running process takes from the cluster's metadata."""

from typing import Any

from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.layers import broker_layers
from headrace_broker.metadata.settings.broker_settings import LIVE_SETTINGS
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.config.settings import BROKER_SETTINGS


class LiveSettings(dict[str, Any]):
    """A broker's typed settings: those in its file, except a few that follow the metadata."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config.values)
        self._config = config

    def changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply the metadata's broker settings; a deleted one returns to the file's value."""
        if not any(item.type == ConfigResourceType.BROKER for item in delta.configs_changed):
            return
        layers = broker_layers(image, self._config.node_id, self._config.static)
        for name in LIVE_SETTINGS:
            setting = BROKER_SETTINGS[name]
            text = next((layer.texts[name] for layer in layers if name in layer.texts), None)
            try:
                self[name] = setting.default if text is None else setting.parse(text)
            except ValueError:
                self[name] = self._config.values[name]  # an older version accepted it
