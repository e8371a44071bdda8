"""Dynamic settings (KIP-226): the cluster-wide ones of brokers, without a broker id, and topics'.

kafka-python sends requests about brokers' settings to brokers by id, and makes a dictionary of
every setting that an answer has, some 35 for each topic, which takes three times as long as to read
it. So these requests are sent by hand. Blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "alter_live_config",
    "alter_topic_settings",
    "observe_live_config",
    "observe_topic_settings",
]

#: The brokers' error code, 0 for success, and their message.
Refusal: TypeAlias = "tuple[int, str | None]"

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


def alter_live_config(admin: Any, wanted: Mapping[str, str], gone: Sequence[str]) -> Refusal:
    """Set and delete settings; return the brokers' error code, 0 for success, and message."""
    return _alter(admin, BROKER_RESOURCE, {"": (wanted, gone)})[""]


def alter_topic_settings(
    admin: Any, changes: Mapping[str, tuple[Mapping[str, str], Sequence[str]]]
) -> dict[str, Refusal]:
    """Set and delete settings of topics; return the error code and message for each topic."""
    return _alter(admin, TOPIC_RESOURCE, changes)


def _alter(
    admin: Any, kind: int, changes: Mapping[str, tuple[Mapping[str, str], Sequence[str]]]
) -> dict[str, Refusal]:
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    resources = []
    for resource, (wanted, gone) in changes.items():
        entries: list[tuple[str, int, str | None]] = [
            (name, SET, value) for name, value in sorted(wanted.items())
        ]
        entries += [(name, DELETE, None) for name in gone]
        resources.append((kind, resource, entries))
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    return {
        each.resource_name: (each.error_code, each.error_message)
        for each in _send(admin, request).responses
    }


def _send(admin: Any, request: Any) -> Any:
    manager = admin._manager  # noqa: SLF001 - its public methods insist on a broker's id
    return manager.run(manager.send, request)
