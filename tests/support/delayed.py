"""A connection for delayed operations, which keeps what it is given."""

from typing import Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.server.network.api_entry import ApiEntry
from headrace_broker.server.network.delayed import DelayedOperation


class KeptAnswers:
    """Stands where a connection stands: operations take their places here."""

    def __init__(self, key: ApiKey) -> None:
        self.entry = ApiEntry(key, lambda *_: None, cancel_on_disconnect=False)
        self.settled: list[Any] = []
        self.failed: list[tuple[Any, Exception]] = []

    def admit(self, operation: Any) -> Any:
        operation.join(self, self.entry, 0.0)
        return operation

    def settle(self, slot: Any) -> None:
        self.settled.append(slot)

    def fail(self, operation: DelayedOperation, error: Exception) -> None:
        self.failed.append((operation, error))
