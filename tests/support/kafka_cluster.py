"""Several Apache Kafka nodes as one cluster: the peer of `headrace_cluster`."""

from pathlib import Path

from support.clusters import Cluster, ClusterNode
from support.kafka_peer import BROKER_JVM, KafkaPeer, java_command, run_tool

CLUSTER_ID = "SGVhZHJhY2VQZWVyMDAwMQ"


class KafkaNode(ClusterNode):
    """A node with the heap and collector of Kafka's own start script."""

    def command(self) -> list[str]:
        return java_command(BROKER_JVM, "kafka.Kafka", str(self.write_properties()))


class KafkaCluster(Cluster):
    """`size` combined nodes, formatted before the first start; node ids from 1."""

    name = KafkaPeer.name
    ready_seconds_max = 120.0

    def __init__(
        self, directory: Path, size: int = 3, properties: dict[str, str] | None = None
    ) -> None:
        nodes = [KafkaNode(number, directory / str(number)) for number in range(1, size + 1)]
        super().__init__(list(nodes))
        copies, in_sync = str(min(3, size)), "2" if size > 1 else "1"
        voters = ",".join(f"{node.node_id}@{node.controller_address}" for node in nodes)
        for node in nodes:
            node.settings = {
                "process.roles": "broker,controller",
                "node.id": str(node.node_id),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://{node.controller_address}",
                "advertised.listeners": f"PLAINTEXT://{node.bootstrap}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(node.log_directory),
                "default.replication.factor": copies,
                "min.insync.replicas": in_sync,
                "offsets.topic.replication.factor": copies,
                "transaction.state.log.replication.factor": copies,
                "transaction.state.log.min.isr": in_sync,
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": in_sync,
                "group.initial.rebalance.delay.ms": "0",
                **(properties or {}),
            }

    def start(self) -> None:
        """Format what was never started, then start all."""
        for node in self.nodes:
            config = str(node.write_properties())
            if not node.log_directory.exists():
                run_tool("storage", "format", "-t", CLUSTER_ID, "-c", config)
        super().start()
