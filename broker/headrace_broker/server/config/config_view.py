"""The broker's own table of settings, as the metadata layer describes and alters it."""

from headrace_broker.metadata.settings.broker_settings import BrokerSetting, BrokerSettings
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.config.settings import BROKER_SETTINGS

_KNOWN = {
    setting.name: BrokerSetting(
        name=setting.name,
        type=setting.type,
        default=setting.default,
        doc=setting.doc,
    )
    for setting in BROKER_SETTINGS.values()
}


def broker_settings(config: BrokerConfig) -> BrokerSettings:
    """Return this broker's settings for DescribeConfigs and for changes of configuration."""
    return BrokerSettings(
        node_id=config.node_id, static=config.static, known=_KNOWN, values=config.values
    )
