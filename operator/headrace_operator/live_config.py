"""Dynamic settings (KIP-226): the cluster-wide ones of brokers, without a broker id, and topics'.

kafka-python sends requests about brokers' settings to brokers by id, and makes a dictionary of
every setting that an answer has, some 35 for each topic, which takes three times as long as to read
it. So these requests are sent by hand. Blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["alter_live_config", "observe_live_config", "observe_topic_settings"]

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
DYNAMIC_TOPIC_CONFIG = 1
DYNAMIC_DEFAULT_BROKER_CONFIG = 3
SET, DELETE = 0, 1


def observe_live_config(admin: Any) -> dict[str, str]:
    """Return what is set. `admin`: a `kafka.KafkaAdminClient`. Raises `kafka.errors.KafkaError`."""
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeConfigsRequest

    (result,) = _send(
        admin, DescribeConfigsRequest(resources=[(BROKER_RESOURCE, "", None)])
    ).results
    if result.error_code:
        raise for_code(result.error_code)(result.error_message)
    return {
        each.name: each.value
        for each in sorted(result.configs, key=lambda each: each.name)
        if each.config_source == DYNAMIC_DEFAULT_BROKER_CONFIG
    }


def observe_topic_settings(admin: Any, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what each topic sets itself, in the order of names; a topic that is gone sets nothing.

    `admin`: a `kafka.KafkaAdminClient`. Raises `kafka.errors.KafkaError`.
    """
    from kafka.protocol.admin import DescribeConfigsRequest

    resources = [(TOPIC_RESOURCE, name, None) for name in topics]
    return {
        result.resource_name: {
            each.name: each.value
            for each in sorted(result.configs, key=lambda each: each.name)
            if each.config_source == DYNAMIC_TOPIC_CONFIG
        }
        for result in _send(admin, DescribeConfigsRequest(resources=resources)).results
    }


def alter_live_config(admin: Any, wanted: Mapping[str, str], gone: Sequence[str]) -> str:
    """Set and delete settings; return '' or the brokers' error."""
    from kafka.errors import for_code
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    changes: list[tuple[str, int, str | None]] = [
        (name, SET, value) for name, value in sorted(wanted.items())
    ]
    changes += [(name, DELETE, None) for name in gone]
    request = IncrementalAlterConfigsRequest(
        resources=[(BROKER_RESOURCE, "", changes)], validate_only=False
    )
    (result,) = _send(admin, request).responses
    if not result.error_code:
        return ""
    error = for_code(result.error_code).__name__.removesuffix("Error")
    return f"{error} ({result.error_code}): {result.error_message}"


def _send(admin: Any, request: Any) -> Any:
    manager = admin._manager  # noqa: SLF001 - its public methods insist on a broker's id
    return manager.run(manager.send, request)
