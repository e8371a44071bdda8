"""DeleteRecords under load: what is asked for goes, nothing else, and it stays away."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.log.checkpoints import TopicPartition, read_offsets
from headrace_broker.log.log_directory import LOG_START_NAME
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import delete_records
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE
from simulation.workloads.workload import POWER_CUTS_SINCE, Workload

if TYPE_CHECKING:
    from simulation.cluster import Node
    from simulation.scenario import Scenario

_HIGH_WATERMARK = -1
_BEYOND = 1 << 40
# From this seed on somebody asks for offsets that no log has.
_IMPOSSIBLE_SINCE = 6_000_000


class Trimmer:
    """Deletes the beginnings of logs, as far as somebody has read."""

    def __init__(
        self,
        client: Client,
        partitions: Sequence[tuple[str, int]],
        nodes: "Sequence[Node]",
        impossible: random.Random | None,
        *,
        knows_segments: bool,
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._nodes = nodes
        self._impossible = impossible
        """Draws when somebody asks for what no log has yet."""
        self._knows_segments = knows_segments
        """Whether it hits upon the beginnings of segments: no checkpoint names such a log start."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Trim now and then until it is over."""
        client, rng = self._client, self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(1.5))
            key = rng.choice(self._partitions)
            seen = client.history.logs.get(key)
            if not seen:
                continue
            offset = rng.choice(sorted(seen))
            if rng.random() < 0.1:
                offset = _HIGH_WATERMARK
            elif self._knows_segments and rng.random() < 0.6:
                bases = [base for base in self._bases(*key) if base <= max(seen)]
                offset = rng.choice(bases) if bases else offset
            await self._trim(key, offset)
            if self._impossible is not None and self._impossible.random() < 0.3:
                await self._trim_what_is_not_there(key)

    async def _trim(self, key: tuple[str, int], offset: int) -> None:
        client = self._client
        client.history.may_trim(key, offset)
        result = await self._ask(key, offset)
        if result is None:
            return
        code = ErrorCode(result.error_code)
        client.heard(*key, code)
        if code is ErrorCode.NONE:
            client.history.reach("records are deleted by request")
            if result.low_watermark < offset:
                client.history.violate(
                    "delete-records", f"{key}: {offset} was asked, {result.low_watermark} answered"
                )
            if not self._is_kept(*key, result.low_watermark):
                client.history.violate(
                    "deletion-not-kept", f"{key}: {result.low_watermark} is on nobody's disk"
                )
        # A new leader may not know yet that all that was read is committed.
        elif code is not ErrorCode.OFFSET_OUT_OF_RANGE and code not in RETRIABLE:
            client.history.violate("delete-records", f"{key}: {code.name}")

    async def _trim_what_is_not_there(self, key: tuple[str, int]) -> None:
        result = await self._ask(key, _BEYOND)
        if result is not None and result.error_code == ErrorCode.NONE:
            self._client.history.violate(
                "delete-records", f"{key}: {_BEYOND} was asked, and {result.low_watermark} answered"
            )

    async def _ask(self, key: tuple[str, int], offset: int) -> Any:
        """Return a partition's result, None where there is no answer."""
        client = self._client
        request = delete_records.DeleteRecordsRequest(
            topics=[
                delete_records.DeleteRecordsTopic(
                    name=key[0],
                    partitions=[
                        delete_records.DeleteRecordsPartition(partition_index=key[1], offset=offset)
                    ],
                )
            ],
            timeout_ms=1500,
        )
        try:
            caller, _ = await client.leader(*key)
            response = await client.call(caller, ApiKey.DELETE_RECORDS, request)
        except FAILURES:
            client.forget(*key)
            return None
        return response.topics[0].partitions[0]

    def _bases(self, topic: str, index: int) -> list[int]:
        """Return where segments begin on any disk."""
        folders = [
            each / f"{topic}-{index}" for node in self._nodes for each in node.log_directories
        ]
        return sorted({int(path.stem) for each in folders for path in each.glob("*.log")})

    def _is_kept(self, topic: str, index: int, start: int) -> bool:
        """Whether some disk says that the log begins there, or holds no segment below."""
        for directory in (each for node in self._nodes for each in node.log_directories):
            segments = (directory / f"{topic}-{index}").glob("*.log")
            bases = [int(path.stem) for path in segments]
            kept = read_offsets(directory / LOG_START_NAME).get(TopicPartition(topic, index), 0)
            if bases and (min(bases) >= start or kept >= start):
                return True
        return not self._nodes


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("trims")
    # Who answered may have given its replica away by the time at which the answer is heard.
    is_moved = not {"reassign", "directories"}.isdisjoint(scenario.profile.works)
    nodes = [] if is_moved else scenario.cluster.nodes
    cluster = scenario.cluster
    impossible = cluster.fork("impossible trims") if cluster.seed >= _IMPOSSIBLE_SINCE else None
    knows_segments = cluster.seed >= POWER_CUTS_SINCE
    places = scenario.profile.places
    trimmer = Trimmer(client, places, nodes, impossible, knows_segments=knows_segments)
    return [scenario.loop.start_task(process, trimmer.run(scenario.is_over))]


TRIMS = Workload(
    name="trim", share=0.2, start=_start, needs=lambda profile: profile.cleanup == "none"
)
