"""What running brokers of a cluster advertise, asked of each itself."""

import asyncio

from headrace_operator.admin import BrokerAdmin
from support.headrace_cluster import HeadraceCluster
from support.operator_resources import desired


def test_a_broker_that_came_after_the_operator_had_connected_is_asked_too(tmp_path):
    async def scenario(cluster, late):
        others = [node.node_id for node in cluster.nodes if node is not late]
        async with BrokerAdmin(cluster.nodes[0].bootstrap) as admin:
            await admin.observe(desired(), now_ms=0)
            before = await admin.advertised([*others, late.node_id])
            late.start()
            await asyncio.to_thread(cluster.wait_complete)
            return before, await admin.advertised([*others, late.node_id])

    with HeadraceCluster(tmp_path) as cluster:
        late = cluster.nodes[2]
        late.stop()
        before, after = asyncio.run(scenario(cluster, late))
    assert sorted(before) == [1, 2]
    assert sorted(after) == [1, 2, 3]
    assert late.bootstrap in after[3].values()
