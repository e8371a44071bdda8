"""What a controller says that does not know that it was replaced."""

import asyncio
import uuid
from dataclasses import replace

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from simulation.client import Client
from simulation.cluster import Cluster
from simulation.history import History
from simulation.profile import draw_profile


def test_a_controller_that_is_cut_off_does_not_say_that_a_topic_is_gone(tmp_path):
    """Its successor may have made it; a client that believes it would leave it behind for ever."""
    profile = replace(draw_profile(1, 3), loses_power=False, disk_errors=False, slow_disks=False)
    cluster = Cluster(1, tmp_path, profile)
    history = History(now_ms=lambda: 0)
    unknown = DeleteTopicsRequest(
        topics=[DeleteTopicState(topic_id=uuid.UUID(int=7))], timeout_ms=5000
    )

    def client(name: str, address: tuple[str, int]) -> Client:
        return Client(name, [address], history, cluster.fork(name))

    async def answer_of(who: Client) -> ErrorCode:
        response = await who.any_call(ApiKey.DELETE_TOPICS, unknown)
        return ErrorCode(response.responses[0].error_code)

    async def run() -> None:
        for node in cluster.nodes:
            node.start()
        first = client("first", cluster.nodes[0].address)
        await first.create_topic("topic", 1, 3, {})
        active = next(node for node in cluster.nodes if node.broker.controller.is_active)
        asked = client("asked", active.address)
        assert await answer_of(asked) is ErrorCode.UNKNOWN_TOPIC_ID
        for node in cluster.nodes:
            if node is not active:
                cluster.network.block(active.address[0], node.address[0])
                cluster.network.block(node.address[0], active.address[0])
        assert active.broker.controller.is_active
        assert await answer_of(asked) is not ErrorCode.UNKNOWN_TOPIC_ID
        assert not active.broker.controller.is_active
        cluster.network.heal()
        await asyncio.sleep(5)
        assert await answer_of(asked) is ErrorCode.UNKNOWN_TOPIC_ID

    with cluster.installed():
        cluster.loop.run(run(), limit_seconds=60)
        for node in cluster.nodes:
            node.disk.close()
