"""Two real partitions, leader and follower, joined by hand: no network, no timers."""

from types import SimpleNamespace
from uuid import UUID

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import BrokerImage, PartitionImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from headrace_broker.replication.follower import EpochEnd
from headrace_broker.server.fetch.replica_sessions import ReplicaSession
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from support.log import START_MS, ManualClock, batch_of

TOPIC_ID = UUID(int=7)


def _broker(node, epoch):
    return BrokerImage(
        node_id=node,
        epoch=epoch,
        incarnation_id=UUID(int=node),
        endpoints=(),
        rack=None,
        fenced=False,
    )


class Pair:
    """Brokers 1 and 2, each with a replica; `lead` makes one of them the leader."""

    def __init__(self, directory, min_isr=2):
        self.min_isr = min_isr
        self.now_ms = 1000
        self.partition_epoch = 0
        self.epoch = 0
        self.isr_requests = []
        image = MetadataImage(brokers={1: _broker(1, 10), 2: _broker(2, 20)})
        self.partitions = {}
        for node in (1, 2):
            host = ReplicaHost(node, lag_time_max_ms=100)
            host.image = image
            host.now_ms = lambda: self.now_ms
            host.request_isr_update = self.isr_requests.append
            log = PartitionLog.open(
                directory / str(node), LogConfig(), clock=ManualClock(), was_clean=True
            )
            self.partitions[node] = Partition("t", TOPIC_ID, 0, log, host)
        self.session = None

    def lead(self, node, isr=(1, 2), nodes=(1, 2)):
        """A new leader epoch, which `nodes` learn of."""
        self.epoch += 1
        self.partition_epoch += 1
        image = PartitionImage(
            leader=node,
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
            replicas=(1, 2),
            isr=isr,
        )
        for known in nodes:
            self.partitions[known].apply(image, self.min_isr)
        self.session = None

    def append(self, node, *values, acks=1):
        return self.partitions[node].append(batch_of(*values), acks, START_MS)

    def append_everywhere(self, node, count, value):
        """Append batches of one record each, which the other replica then has, committed."""
        for _ in range(count):
            self.append(node, value)
        for _ in range(3):
            self.fetch(3 - node, node)

    def ask(self, follower, leader):
        """Ask for all of a follower's partition as its session does; return the answer's data."""
        partition = self.partitions[follower]
        if self.session is None:
            replicas = SimpleNamespace(
                partition_by_id=lambda *_: self.partitions[leader],
                host=self.partitions[leader].host,
            )
            self.session = ReplicaSession(1, replicas, follower, follower * 10)
        position = partition.position()
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=follower, replica_epoch=follower * 10),
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        FetchPartition(
                            partition=0,
                            current_leader_epoch=position.leader_epoch,
                            fetch_offset=position.fetch_offset,
                            last_fetched_epoch=position.last_fetched_epoch,
                            log_start_offset=position.log_start_offset,
                            partition_max_bytes=1 << 20,
                        )
                    ],
                )
            ],
        )
        assert self.session.update(request, 10) is ErrorCode.NONE
        topics = self.session.response().responses
        return topics[0].partitions[0] if topics else None

    def fetch(self, follower, leader):
        """One round: ask, and do what the answer says. Raises ApiError of the answer."""
        data = self.ask(follower, leader)
        partition = self.partitions[follower]
        if data is None:
            return
        if data.error_code:
            raise ApiError(ErrorCode(data.error_code))
        if data.diverging_epoch.epoch >= 0:
            end = EpochEnd(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
            partition.truncate(end, data.log_start_offset)
            return
        if data.records:
            partition.append_as_follower(data.records)
        partition.follow_high_watermark(data.high_watermark, data.log_start_offset)

    def ends(self):
        return tuple(int(partition.log.log_end_offset) for partition in self.partitions.values())
