"""Apache Kafka itself, from Maven's jars: the peer to measure against and its tools as clients.

Owns the jar cache (`~/.cache/headrace/kafka-<version>/lib`, or `HEADRACE_KAFKA_JARS`), the nodes it
started and nothing else. Everything listens on loopback.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from support.processes import LOOPBACK, ManagedProcess, free_port
from support.wire import broker_ids

KAFKA_VERSION = "4.2.1"
_LOG4J_VERSION = "2.25.1"
_READY_SECONDS = 120

_LOGGING = (
    f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOG4J_VERSION}",
    f"org.apache.logging.log4j:log4j-core:{_LOG4J_VERSION}",
)
_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    *_LOGGING,
)
# What runs beside a broker: Kafka Streams, and Connect with its connectors of files.
_ENGINES = (
    f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
    "org.apache.kafka:connect-file:4.2.0",  # 4.2.1 was not published
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    *_LOGGING,
)
# Flink with its SQL, its connector and its planner: 140 MB.
_FLINK_VERSION = "2.0.0"
_FLINK = (
    *(
        f"org.apache.flink:{name}:{_FLINK_VERSION}"
        for name in (
            "flink-clients",
            "flink-connector-base",
            "flink-json",
            "flink-table-api-java-bridge",
            "flink-table-planner-loader",
            "flink-table-runtime",
        )
    ),
    "org.apache.flink:flink-connector-kafka:4.0.0-2.0",
    *_LOGGING,
)

_LOG4J = """rootLogger.level=WARN
rootLogger.appenderRefs=c
rootLogger.appenderRef.c.ref=C
appender.c.type=Console
appender.c.name=C
appender.c.target=SYSTEM_ERR
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %c: %m%n
"""

# The heap and collector that Kafka's own start script gives a broker (bin/kafka-server-start.sh,
# bin/kafka-run-class.sh), so that its numbers are the ones a user would see.
BROKER_JVM = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# An administrative tool lives for a second: the second compiler would only cost.
_SHORT_JVM = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOAD_JVM = ("-Xms512M", "-Xmx512M")

_TOOLS = "org.apache.kafka.tools"
TOOL_CLASSES = {
    "producer-perf": f"{_TOOLS}.ProducerPerformance",
    "consumer-perf": f"{_TOOLS}.ConsumerPerformance",
    "e2e-latency": f"{_TOOLS}.EndToEndLatency",
    "topics": f"{_TOOLS}.TopicCommand",
    "groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "get-offsets": f"{_TOOLS}.GetOffsetShell",
    "log-dirs": f"{_TOOLS}.LogDirsCommand",
    "broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "cluster": f"{_TOOLS}.ClusterTool",
    "console-producer": f"{_TOOLS}.ConsoleProducer",
    "console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "verifiable-producer": f"{_TOOLS}.VerifiableProducer",
    "verifiable-consumer": f"{_TOOLS}.VerifiableConsumer",
    "dump-log": "kafka.tools.DumpLogSegments",
    "features": f"{_TOOLS}.FeatureCommand",
    "reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "acls": f"{_TOOLS}.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "storage": "kafka.tools.StorageTool",
    "transactions": f"{_TOOLS}.TransactionsCommand",
    "message-copier": f"{_TOOLS}.TransactionalMessageCopier",
    "console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "verifiable-share-consumer": f"{_TOOLS}.VerifiableShareConsumer",
}
_LOAD_TOOLS = frozenset({"producer-perf", "consumer-perf", "e2e-latency"})


class JavaMissingError(Exception):
    """Java, or Maven where the jars are not cached yet, is not installed."""


def jar_directory() -> Path:
    """Return the directory of Kafka's jars, resolving them through Maven the first time."""
    if given := os.environ.get("HEADRACE_KAFKA_JARS"):
        return Path(given)
    return _maven_jars(f"kafka-{KAFKA_VERSION}", _ARTIFACTS)


def engine_jar_directory() -> Path:
    """Return the directory of the jars of Kafka Streams and Connect; as `jar_directory`."""
    return _maven_jars(f"kafka-engines-{KAFKA_VERSION}", _ENGINES)


#: Flink's table service opens what Java 17 closes (its own `bin/config.sh` has the same).
FLINK_JVM = [
    option
    for package in ("java.lang", "java.util", "java.util.concurrent", "java.time", "java.nio")
    for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
]


def flink_jar_directory() -> Path:
    """Return the directory of Flink's jars; as `jar_directory`."""
    return _maven_jars(f"flink-{_FLINK_VERSION}", _FLINK)


def _maven_jars(name: str, artifacts: Sequence[str]) -> Path:
    if shutil.which("java") is None:
        raise JavaMissingError("Kafka's own tools need a Java 17 runtime (`java`) on the PATH")
    home = Path.home() / ".cache" / "headrace" / name
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:  # several test runs may want the jars at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "lib").exists():
            _resolve_jars(home, artifacts)
        (home / "log4j2.properties").write_text(_LOG4J)
    return home / "lib"


def _resolve_jars(home: Path, artifacts: Sequence[str]) -> None:
    if shutil.which("mvn") is None:
        raise JavaMissingError("Kafka's jars are resolved by Maven: `mvn` is not on the PATH")
    (home / "pom.xml").write_text(_pom(artifacts))
    incoming = home / "lib.incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={incoming}"]
    subprocess.run(command, cwd=home, check=True, timeout=600)
    incoming.rename(home / "lib")


def _pom(artifacts: Sequence[str]) -> str:
    wanted = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "</dependency>\n".format(*artifact.split(":"))
        for artifact in artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>\n"
        "<groupId>headrace</groupId><artifactId>kafka-peer</artifactId><version>1</version>\n"
        f"<dependencies>\n{wanted}</dependencies></project>\n"
    )


def java_command(
    jvm_options: Sequence[str], main_class: str, *arguments: str, jars: Path | None = None
) -> list[str]:
    """Return the command line of one of Kafka's classes, or of a source file that uses them."""
    jars = jars or jar_directory()
    logging = jars.parent / "log4j2.properties"
    options = [f"-Dlog4j2.configurationFile={logging}"] if logging.exists() else []
    return ["java", *jvm_options, *options, "-cp", f"{jars}/*", main_class, *arguments]


def tool_command(tool: str, *arguments: str) -> list[str]:
    """Return the command line of a tool named in `TOOL_CLASSES`."""
    options = _LOAD_JVM if tool in _LOAD_TOOLS else _SHORT_JVM
    return java_command(options, TOOL_CLASSES[tool], *arguments)


class ToolFailedError(Exception):
    """A tool ended with a status other than 0; the message carries what it printed."""


def run_tool(
    tool: str, *arguments: str, timeout_seconds: float = 120, standard_input: str | None = None
) -> str:
    """Run one of Kafka's tools to its end and return what it printed."""
    done = subprocess.run(
        tool_command(tool, *arguments),
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        **({"stdin": subprocess.DEVNULL} if standard_input is None else {"input": standard_input}),
    )
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}"
        raise ToolFailedError(f"{tool} {arguments} ended with {done.returncode}:\n{said}")
    return done.stdout


def start_tool(tool: str, log_path: Path, *arguments: str) -> ManagedProcess:
    """Start a tool that runs on; its output goes to `log_path`."""
    return ManagedProcess(tool_command(tool, *arguments), log_path)


class KafkaPeer:
    """Apache Kafka nodes (combined broker and controller) in one directory."""

    name = "Apache Kafka"

    def __init__(
        self, directory: Path, properties: dict[str, str] | None = None, *, node_count: int = 1
    ) -> None:
        self.directory = directory
        self.properties = properties or {}
        self.node_ids = range(1, node_count + 1)
        self._ports = {node: (free_port(), free_port()) for node in self.node_ids}
        self._nodes: dict[int, ManagedProcess] = {}
        self.ready_seconds = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._ports[1][0]}"

    @property
    def log_directory(self) -> Path:
        """The first node's `log.dirs`."""
        return self.directory / "data1"

    @property
    def pid(self) -> int:
        return self._nodes[1].pid

    def start(self) -> None:
        """Format and start every node and wait until all of them are in the metadata."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for node in self.node_ids:
            path = self._write_properties(node)
            if not (self.directory / f"data{node}").exists():
                run_tool("storage", "format", "-t", "SGVhZHJhY2VQZWVyMDAwMQ", "-c", str(path))
        self._start_processes()

    def _start_processes(self) -> None:
        began = time.monotonic()
        for node in self.node_ids:
            config = str(self.directory / f"{node}.properties")
            command = java_command(BROKER_JVM, "kafka.Kafka", config)
            self._nodes[node] = ManagedProcess(command, self.directory / f"{node}.log")
        wanted = set(self.node_ids)
        for process in self._nodes.values():
            process.wait_ready(lambda: broker_ids(self.bootstrap) == wanted, _READY_SECONDS)
        self.ready_seconds = time.monotonic() - began

    def stop(self) -> None:
        for process in self._nodes.values():
            process.stop(timeout_seconds=30)

    def kill(self) -> None:
        for process in self._nodes.values():
            process.kill()

    def restart(self) -> None:
        """Start every node again with the data and ports it had."""
        self._start_processes()

    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds() for process in self._nodes.values())

    def rss_bytes(self) -> int:
        return sum(process.rss_bytes() for process in self._nodes.values())

    def read_bytes(self) -> int:
        return sum(process.read_bytes() for process in self._nodes.values())

    @property
    def is_running(self) -> bool:
        return all(process.is_running for process in self._nodes.values())

    def _write_properties(self, node: int) -> Path:
        port, controller_port = self._ports[node]
        voters = ",".join(f"{id_}@{LOOPBACK}:{self._ports[id_][1]}" for id_ in self.node_ids)
        copies = str(min(len(self.node_ids), 3))
        in_sync = "2" if len(self.node_ids) > 1 else "1"
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / f"data{node}"),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": "0",
            **self.properties,
        }
        path = self.directory / f"{node}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path
