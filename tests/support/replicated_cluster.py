"""A cluster in the small: the controller's decisions, and logs that follow them.

Each broker knows the metadata up to some record, maybe not the last one, and replicates by what it
knows: a leader appends, a follower of the same leader epoch copies, and what all in-sync replicas
that the leader knows of have is committed, if they are at least min.insync.replicas (KIP-966).
A crash may lose the tail of a log. The model says which records must never be missing.
"""

import uuid

from headrace_broker.metadata.alter_partition import decide_alter_partition
from headrace_broker.metadata.brokers.liveness import decide_fence_broker, decide_heartbeat
from headrace_broker.metadata.brokers.registration import (
    Registration,
    decide_register_broker,
    decide_unregister_broker,
)
from headrace_broker.metadata.brokers.sessions import BrokerSessions
from headrace_broker.metadata.configs.alter_configs import decide_incremental_alter_configs
from headrace_broker.metadata.elections import decide_elect_leaders, decide_preferred_leaders
from headrace_broker.metadata.entities import NO_LEADER
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.reassignments import decide_alter_reassignments
from headrace_broker.metadata.records import PartitionChangeRecord, decode_record, encode_record
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.metadata.topics import decide_create_topics
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.types import NodeId
from support.metadata import POLICY, creatable, replayed, seeded_rng

TOPIC = "t"
SESSION_MS = 3000


class Replica:
    """One broker process and its log of the one partition."""

    def __init__(self):
        self.is_running = False
        self.is_stopping = False
        self.broker_epoch = -1
        self.clean_epoch = -1
        self.kept = None  # of its log, once it starts again
        self.view = MetadataImage()
        self.log = []  # (leader epoch, number)

    @property
    def partition(self):
        return self.view.partition(TOPIC, 0)


class ReplicatedCluster:
    """One partition on some brokers. Every step ends in `check`."""

    def __init__(self, brokers, factor, min_isr, *, crashes_lose_records):
        self.crashes_lose_records = crashes_lose_records
        self.image = MetadataImage()
        self.sessions = BrokerSessions(SESSION_MS)
        self.now_ms = 0
        self.committed = []
        self.numbers = iter(range(10**9))
        self.incarnations = iter(range(1, 10**9))
        self.replicas = {NodeId(node): Replica() for node in range(1, brokers + 1)}
        self.proposed = ()
        self.may_lose = False
        for node in self.replicas:
            self.start(node)
            self.learn(node)
            self.heartbeat(node)
        topic = creatable(TOPIC, 1, factor, min_insync_replicas=str(min_isr))
        request = CreateTopicsRequest(topics=[topic])
        self.decide(decide_create_topics(self.image, request, POLICY, seeded_rng()))

    @property
    def partition(self):
        return self.image.partition(TOPIC, 0)

    def decide(self, decision):
        records = [decode_record(encode_record(record)) for record in decision.records]
        before = self.partition
        for record in records:
            # Only inside a batch may a partition be between two legal states.
            assert not isinstance(record, PartitionChangeRecord) or record.partition_id == 0
        self.image = replayed(self.image, records)
        if before is not None and self.partition is not None:
            self._check_step(before, self.partition)
        return decision.response

    # ---- brokers

    def start(self, node):
        replica = self.replicas[node]
        if replica.is_running:
            return
        whole = replica.log
        if self.crashes_lose_records and replica.kept is not None:
            replica.log = whole[: replica.kept]
        registration = Registration(
            node_id=node,
            incarnation_id=uuid.UUID(int=next(self.incarnations)),
            endpoints=[],
            rack=None,
            log_dirs=[],
            previous_broker_epoch=replica.clean_epoch,
        )
        is_alive = self.sessions.was_heard_from(node, self.now_ms)
        try:
            epoch = self.decide(
                decide_register_broker(self.image, registration, POLICY, is_alive=is_alive)
            )
        except ApiError:
            replica.log = whole
            return
        replica.kept = None
        # A process that has not caught up yet acts upon nothing that a former one knew.
        replica.view = MetadataImage()
        replica.is_running, replica.is_stopping = True, False
        replica.broker_epoch, replica.clean_epoch = epoch, -1

    def crash(self, node, kept):
        replica = self.replicas[node]
        if replica.is_running:
            replica.is_running = False
            replica.kept = kept

    def died(self, node):
        """The controller hears that a process is gone, which it may no longer be."""
        if not self.replicas[node].is_running and node in self.image.brokers:
            epoch = self.image.brokers[node].epoch
            self.sessions.declare_dead(node, epoch)
            self.decide(decide_fence_broker(self.image, node, POLICY, epoch))

    def wipe(self, node):
        """The disk of a broker that is down is replaced by an empty one.

        As after a crash, that counts once it starts: a controller that has not heard of it yet
        may still name it, and whoever is down serves nobody.
        """
        replica = self.replicas[node]
        if not replica.is_running and self.crashes_lose_records:
            replica.kept, replica.clean_epoch = 0, -1

    def unregister(self, node):
        """An operator says that the broker, which is down, belongs to the cluster no more."""
        if not self.replicas[node].is_running and node in self.image.brokers:
            self.decide(decide_unregister_broker(self.image, node, POLICY))

    def stop(self, node):
        """Begin a controlled shutdown: from now on heartbeats ask for leave."""
        self.replicas[node].is_stopping = True
        self.heartbeat(node)

    def heartbeat(self, node):
        replica = self.replicas[node]
        if not replica.is_running:
            return
        request = BrokerHeartbeatRequest(
            broker_id=node,
            broker_epoch=replica.broker_epoch,
            current_metadata_offset=replica.view.offset,
            want_shut_down=replica.is_stopping,
        )
        try:
            response = self.decide(
                decide_heartbeat(self.image, request, self.sessions, POLICY, self.now_ms)
            )
        except ApiError:
            replica.is_running = False
            return
        if response.should_shut_down:
            replica.is_running, replica.clean_epoch = False, replica.broker_epoch

    def wait(self, milliseconds):
        for _ in range(milliseconds // 100):
            self.now_ms += 100
            for broker in self.sessions.expired(self.image, self.now_ms):
                self.decide(decide_fence_broker(self.image, broker.node_id, POLICY, broker.epoch))

    def new_controller(self):
        self.sessions = BrokerSessions(SESSION_MS)
        self.sessions.begin(self.image, self.now_ms)

    # ---- replication, by what each broker knows

    def learn(self, node):
        if self.replicas[node].is_running:
            self.replicas[node].view = self.image

    def append(self, node):
        replica = self.replicas[node]
        if replica.is_running and replica.partition and replica.partition.leader == node:
            replica.log.append((replica.partition.leader_epoch, next(self.numbers)))
            self._commit(node)

    def fetch(self, node, source):
        """`node` copies the log of `source` if both are in the same leader epoch."""
        replica, leader = self.replicas[node], self.replicas[source]
        mine, its = replica.partition, leader.partition
        if (
            replica.is_running
            and leader.is_running
            and node != source
            and mine is not None
            and its is not None
            and mine.leader == its.leader == source
            and mine.leader_epoch == its.leader_epoch
            and node in its.replicas
        ):
            replica.log = list(leader.log)
            self._commit(source)

    def _commit(self, node):
        leader = self.replicas[node]
        isr = leader.partition.isr
        size = len(leader.partition.replicas)
        # After an unclean election the former leader may commit on alone: that is what it costs.
        is_former = leader.partition.leader_epoch != self.partition.leader_epoch
        if len(isr) < min(self._min_isr(leader.view), size) or (self.may_lose and is_former):
            return
        logs = [self.replicas[member].log for member in isr]
        in_epoch = all(
            self.replicas[member].partition is not None
            and self.replicas[member].partition.leader_epoch == leader.partition.leader_epoch
            for member in isr
        )
        shared, shortest = 0, min(len(log) for log in logs)
        while shared < shortest and all(log[shared] == leader.log[shared] for log in logs):
            shared += 1
        if in_epoch and shared > len(self.committed):
            assert leader.log[: len(self.committed)] == self.committed
            self.committed = leader.log[:shared]

    @staticmethod
    def _min_isr(image):
        return int(image.config((ConfigResourceType.TOPIC, TOPIC)).get("min.insync.replicas", 1))

    def alter_isr(self, node, wanted, epoch_shift=0):
        """The leader asks for those of `wanted` that have all it has, and itself."""
        replica = self.replicas[node]
        partition = replica.partition
        if not replica.is_running or partition is None or partition.leader != node:
            return
        isr = [node] + [
            other
            for other in sorted(wanted)
            if other != node
            and other in partition.replicas
            and self.replicas[other].is_running
            and self.replicas[other].log == replica.log
        ]
        data = AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch + epoch_shift,
            new_isr_with_epochs=[
                BrokerState(broker_id=other, broker_epoch=self.replicas[other].broker_epoch)
                for other in isr
            ],
        )
        topic = AlterPartitionRequestTopicData(
            topic_id=self.image.topics[TOPIC].topic_id, partitions=[data]
        )
        request = AlterPartitionRequest(
            broker_id=node, broker_epoch=replica.broker_epoch, topics=[topic]
        )
        self.proposed = isr
        try:
            response = self.decide(decide_alter_partition(self.image, request, POLICY))
        except ApiError:
            return
        finally:
            self.proposed = ()
        if response.topics[0].partitions[0].error_code == 0:
            answered = response.topics[0].partitions[0]
            assert answered.isr == list(self.partition.isr)
            assert answered.partition_epoch == self.partition.partition_epoch
            assert answered.leader_epoch == self.partition.leader_epoch

    # ---- operators

    def elect(self, kind):
        if kind == 1:
            self.may_lose = True
        request = ElectLeadersRequest(
            election_type=kind, topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0])]
        )
        self.decide(decide_elect_leaders(self.image, request, POLICY))

    def balance_leaders(self):
        self.decide(decide_preferred_leaders(self.image, POLICY))

    def reassign(self, target):
        replicas = None if target is None else list(target)
        topic = ReassignableTopic(
            name=TOPIC, partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
        )
        request = AlterPartitionReassignmentsRequest(topics=[topic])
        self.decide(decide_alter_reassignments(self.image, request, POLICY))

    def configure(self, name, value):
        if name == "unclean.leader.election.enable" and value == "true":
            self.may_lose = True
        resource = AlterConfigsResource(
            resource_type=ConfigResourceType.TOPIC,
            resource_name=TOPIC,
            configs=[AlterableConfig(name=name, config_operation=0, value=value)],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        settings = BrokerSettings(node_id=NodeId(1))
        self.decide(decide_incremental_alter_configs(self.image, request, settings))

    # ---- invariants

    def _check_step(self, before, after):
        assert after.leader_epoch >= before.leader_epoch
        assert after.partition_epoch >= before.partition_epoch
        if after.leader != before.leader:
            assert after.leader_epoch > before.leader_epoch
        if after != before:
            assert after.partition_epoch > before.partition_epoch
        replicas, isr = set(after.replicas), set(after.isr)
        elr = set(after.eligible_leader_replicas)
        assert len(replicas) == len(after.replicas) > 0
        assert len(isr) == len(after.isr)
        assert isr <= replicas
        assert elr <= replicas
        assert set(after.last_known_elr) <= replicas
        assert not isr & elr
        active = {node for node, broker in self.image.brokers.items() if broker.is_active}
        assert isr <= active
        if after.leader == NO_LEADER:
            assert not isr
            assert not elr & active
            assert elr or after.last_known_elr
        else:
            assert after.leader in isr
            assert not after.last_known_elr
        if len(isr) >= min(self._min_isr(self.image), len(replicas)):
            assert not elr
        if after.leader not in {before.leader, NO_LEADER}:
            self._check_election(before, after)
        assert set(after.adding_replicas) <= replicas
        assert set(after.removing_replicas) <= replicas

    def _check_election(self, before, after):
        # What the leader asks for may complete a reassignment, and the new ISR leads at once.
        eligible = {*before.isr, *before.eligible_leader_replicas, *self.proposed}
        if after.leader not in eligible:
            assert after.leader_recovery_state == 1
            is_last_known = (after.leader,) == before.last_known_elr
            assert is_last_known or self.may_lose
        log = self.replicas[after.leader].log
        if log[: len(self.committed)] != self.committed:
            # Only where every eligible replica may have lost its tail, or an operator said so.
            assert self.may_lose or (self.crashes_lose_records and after.leader_recovery_state == 1)
            shared = 0
            while log[shared : shared + 1] == self.committed[shared : shared + 1] != []:
                shared += 1
            del self.committed[shared:]
