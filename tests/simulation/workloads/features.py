"""`transaction.version` goes up and down while transactions are under way.

An administrator lowers the cluster to 0 or 1 before any transaction begins, and changes the level
until all is over. A producer that knows version 2 speaks it while the newest level that it heard of
is 2, as Java's does: it ends a transaction as it began it, learns before the next, and takes a new
epoch where that one is its first with version 2. Older producers hear of no level.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.metadata.features import TRANSACTION_VERSION_FEATURE, UpgradeType
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import api_versions, update_features
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.profile import Profile
    from simulation.scenario import Scenario

SINCE = 6000
BUMPS_FROM = 2
_EXPECTED = RETRIABLE | {
    ErrorCode.NONE,
    # The level was read from a broker that lags, or another answer was lost.
    ErrorCode.INVALID_UPDATE_VERSION,
}


def changes_levels(profile: "Profile") -> bool:
    """Whether transactions go on while the level changes."""
    return {"features", "transactions"} <= profile.works


class KnownLevel:
    """What one client has heard of the level: it goes by the newest metadata that anybody had."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch = -1
        self.level = 0

    async def ask(self) -> int:
        """Ask a broker, and return the newest level heard of."""
        await self._client.until(self._ask)
        return self.level

    async def _ask(self) -> bool:
        request = api_versions.ApiVersionsRequest(
            client_software_name="simulated", client_software_version="1"
        )
        answer = await self._client.any_call(ApiKey.API_VERSIONS, request)
        if answer.finalized_features_epoch > self._epoch:
            self._epoch = answer.finalized_features_epoch
            levels = {each.name: each.max_version_level for each in answer.finalized_features}
            self.level = levels.get(TRANSACTION_VERSION_FEATURE, 0)
        return True


class Administrator:
    """Raises and lowers the level."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known = KnownLevel(client)
        self._wanted = client.rng.choice((0, 1))

    async def begin(self) -> None:
        """Have the cluster at a former level, whatever it takes."""
        await self._client.until(self._change)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Change it now and then; the last change must be made by a healed cluster."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(1.5))
            self._wanted = rng.choice((0, 1, 2, 2, 2))
            try:
                await self._change()
            except FAILURES:
                continue
        self._wanted = rng.choice((1, 2, 2))
        await self._client.until(self._change)

    async def _change(self) -> bool | None:
        """Ask for the level; return True once a broker has it."""
        level = await self._known.ask()
        if level == self._wanted:
            return True
        is_upgrade = level < self._wanted
        key = update_features.FeatureUpdateKey(
            feature=TRANSACTION_VERSION_FEATURE,
            max_version_level=self._wanted,
            upgrade_type=UpgradeType.UPGRADE if is_upgrade else UpgradeType.SAFE_DOWNGRADE,
        )
        request = update_features.UpdateFeaturesRequest(timeout_ms=1500, feature_updates=[key])
        answer = await self._client.any_call(ApiKey.UPDATE_FEATURES, request)
        code = ErrorCode(answer.error_code)
        if code not in _EXPECTED:
            self._client.history.violate("features", f"to {self._wanted}: {code.name}")
        elif code is ErrorCode.NONE:
            what = "raised" if is_upgrade else "lowered"
            self._client.history.reach(f"the level of transactions is {what}")
        return None


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("levels")
    return [scenario.loop.start_task(process, Administrator(client).run(scenario.is_over))]


FEATURES = Workload(name="features", share=0.4, since=SINCE, start=_start)
