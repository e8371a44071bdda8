"""The advertised addresses of running brokers: fixed at their start, asked from each broker.

Blocking and read-only, like `observe`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["observe_advertised"]

ADVERTISED_LISTENERS = "advertised.listeners"
BROKER_RESOURCE = 4


def observe_advertised(admin: Any, node_ids: Collection[int]) -> dict[int, dict[str, str]]:
    """Return `host:port` by listener (as Kafka writes its name) and by broker.

    All are asked at once; a broker that does not answer is left out.
    `admin`: a `kafka.KafkaAdminClient`.
    """
    from kafka.errors import KafkaError
    from kafka.protocol.admin import DescribeConfigsRequest

    manager = admin._manager  # noqa: SLF001 - its public methods fail for all when one broker is away

    async def ask_all() -> dict[int, dict[str, str]]:
        if any(manager.cluster.broker_metadata(node_id) is None for node_id in node_ids):
            # It knows the brokers at the time of its last query; others have joined since.
            with suppress(KafkaError):
                await manager.cluster.refresh_metadata()
        sent = {}
        for node_id in node_ids:
            request = DescribeConfigsRequest(
                resources=[(BROKER_RESOURCE, str(node_id), [ADVERTISED_LISTENERS])]
            )
            try:
                sent[node_id] = manager.send(request, node_id=node_id)
            except KafkaError:
                continue
        found = {}
        for node_id, answer in sent.items():
            try:
                (result,) = (await answer).results
            except KafkaError:
                continue
            for setting in result.configs:
                if setting.name == ADVERTISED_LISTENERS and setting.value:
                    found[node_id] = _by_listener(setting.value)
        return found

    return manager.run(ask_all)  # type: ignore[no-any-return]  # kafka-python has no types


def _by_listener(text: str) -> dict[str, str]:
    """Read `NAME://host:port,…`."""
    entries = (entry.strip().partition("://") for entry in text.split(","))
    return {name: address for name, _, address in entries}
