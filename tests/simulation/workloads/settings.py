"""An administrator changes settings of topics under load (KIP-339): what was answered is in force.

In the end every replica goes by the newest settings (`invariants.calm`). A change that nobody heard
an answer to may be among these, though another one was asked for and answered later.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import incremental_alter_configs as messages
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.profile import Profile
    from simulation.scenario import Scenario

SINCE = 6_000_000
_TOPIC_RESOURCE = 2
_VALUES = {
    "segment.ms": ("300", "700", "2000", "604800000"),
    "index.interval.bytes": ("0", "300", "4096"),
    "file.delete.delay.ms": ("0", "1000"),
    "min.insync.replicas": ("1", "2"),
}


class Administrator:
    """One who changes one setting of one topic at a time."""

    def __init__(self, client: Client, profile: "Profile") -> None:
        self._client = client
        self._topics = sorted(profile.topics)
        # What is promised without fsyncs needs two machines at least.
        is_fixed = profile.loses_power and not profile.has_fsyncs
        self._values = {
            name: values
            for name, values in _VALUES.items()
            if name != "min.insync.replicas" or not (is_fixed or profile.replicas < 2)
        }

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Change settings until it is over, and once more when all must be served."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(2))
            name = rng.choice(sorted(self._values))
            try:
                await self._set(rng.choice(self._topics), name, rng.choice(self._values[name]))
            except FAILURES:
                continue
        for topic in self._topics:
            for name, values in self._values.items():
                value = rng.choice(values)

                async def attempt(
                    topic: str = topic, name: str = name, value: str = value
                ) -> bool | None:
                    return await self._set(topic, name, value)

                await self._client.until(attempt)
                self._client.history.settings[topic, name] = value

    async def _set(self, topic: str, name: str, value: str) -> bool | None:
        """Ask for one setting; return True where it was taken."""
        client = self._client
        resource = messages.AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=topic,
            configs=[messages.AlterableConfig(name=name, value=value)],
        )
        request = messages.IncrementalAlterConfigsRequest(resources=[resource])

        def may_be_late() -> None:
            client.history.may_set(topic, name, value)

        response = await client.any_call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, request, on_unanswered=may_be_late
        )
        code = ErrorCode(response.responses[0].error_code)
        if code is ErrorCode.NONE:
            client.history.reach("a topic's setting is changed under load")
            return True
        if code not in RETRIABLE:
            client.history.violate("settings", f"{name} of {topic}: {code.name}")
        may_be_late()
        return None


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("settings")
    administrator = Administrator(client, scenario.profile)
    return [scenario.loop.start_task(process, administrator.run(scenario.is_over))]


SETTINGS = Workload(name="settings", share=0.4, since=SINCE, start=_start)
