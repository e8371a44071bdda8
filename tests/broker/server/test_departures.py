"""Which brokers clients hear of after they were fenced, for how long."""

import asyncio

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
)
from headrace_broker.metadata.views import ClusterView
from headrace_broker.protocol.types import Offset
from headrace_broker.server.membership.departures import LINGER_SECONDS, Departures

_FENCED, _UNFENCED = 1, -1


class _Cluster:
    def __init__(self):
        self.image = MetadataImage()
        self.departures = Departures()

    def change(self, *records):
        offset = Offset(self.image.offset + len(records))
        self.image, delta = self.image.replay_batch(records, offset=offset, epoch=self.image.epoch)
        self.departures.changed(delta, self.image)

    def named(self):
        view = ClusterView(self.image, "PLAINTEXT")
        return [broker.node_id for broker, _ in view.brokers(also=self.departures.recent())]


def _registered(node_id):
    where = BrokerEndpoint(name="PLAINTEXT", host=f"host{node_id}", port=9092)
    return RegisterBrokerRecord(broker_id=node_id, broker_epoch=1, fenced=True, end_points=[where])


def _fencing(node_id, value):
    return BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=1, fenced=value)


def test_a_fenced_broker_is_named_a_little_longer_and_one_that_never_served_is_not():
    async def run():
        cluster = _Cluster()
        cluster.change(*map(_registered, (1, 2, 3)))
        cluster.change(_fencing(1, _UNFENCED), _fencing(2, _UNFENCED))
        assert cluster.named() == [1, 2]
        cluster.change(_fencing(2, _FENCED))
        assert cluster.named() == [1, 2]
        cluster.departures._left_at[2] -= LINGER_SECONDS
        assert cluster.named() == [1]
        cluster.change(_fencing(2, _UNFENCED))
        assert cluster.named() == [1, 2]

    asyncio.run(run())
