"""Kafka Connect with exactly.once.source.support: a file through a topic into a file, and kills.

`HEADRACE_CONFORMANCE_PEER=kafka` runs it against Apache Kafka.
"""

import http.client
import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KafkaPeer, engine_jar_directory, java_command
from support.processes import LOOPBACK, ManagedProcess, free_port, wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ONE_BROKER = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
}
TOPIC = "lines"
LINES_OF_A_STEP = 2000
LINES_OF_A_POLL = 20
#: What the source may keep back: it reads 1,024 characters, and no further until more can be read.
LINES_KEPT_BACK = 200
#: The Java producer may send an EndTxn before its transaction's first records: `Sender` asks the
#: accumulator whether there are any, and only then takes the lock in which the application puts
#: both. Kafka refuses that, too; an administrator starts the task again.
CLIENT_RACE = "InvalidTxnStateException"
SECONDS = 180
JVM = ["-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


class Worker:
    """A distributed worker of Kafka Connect; the same one after a kill."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.directory = directory
        self._address = f"{LOOPBACK}:{free_port()}"
        self._config = directory / "worker.properties"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "listeners": f"http://{self._address}",
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            # A killed worker's transaction holds the next one up at its start until this is over.
            "producer.transaction.timeout.ms": "3000",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "service_load",
            "offset.flush.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "3000",
            "heartbeat.interval.ms": "500",
            **{
                f"{name}.storage.{key}": value
                for name in ("config", "offset", "status")
                for key, value in (("topic", f"connect-{name}"), ("replication.factor", "1"))
            },
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process = self._start()

    def _start(self) -> ManagedProcess:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = java_command(JVM, main, str(self._config), jars=engine_jar_directory())
        return ManagedProcess(command, self.directory / "worker.log")

    def kill(self) -> None:
        self._process.kill()

    def start_again(self) -> None:
        self._process = self._start()

    def stop(self) -> None:
        self._process.stop()

    def configure(self, connector: str, **settings: str) -> None:
        """Make a connector; a worker that is starting or joining is asked again."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        path = f"/connectors/{connector}/config"
        wait_until(
            lambda: self._ask("PUT", path, config) is not None, SECONDS, f"connector {connector}"
        )

    def check(self, *connectors: str) -> None:
        """Raise where a task has failed, and not by its client's own doing."""
        assert self._process.is_running, self._process.output_tail()
        for connector in connectors:
            status = self._ask("GET", f"/connectors/{connector}/status") or {"tasks": []}
            failed = [task["trace"] for task in status["tasks"] if task["state"] == "FAILED"]
            if not failed:
                continue
            assert CLIENT_RACE in failed[0], f"{failed[0]}\n{self._process.output_tail()}"
            self._ask("POST", f"/connectors/{connector}/restart?includeTasks=true&onlyFailed=true")

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """Return the answer, None where there is none yet."""
        connection = http.client.HTTPConnection(self._address, timeout=30)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        # Not joined yet, or the status is not read back yet.
        assert answer.status < 400 or answer.status in (404, 409, 500, 503), said
        return json.loads(said) if answer.status < 400 else None


class Committed:
    """Reads the topic from its start, what is committed only."""

    def __init__(self, bootstrap: str) -> None:
        self.lines: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def read(self, timeout_seconds: float = 0.2) -> int:
        """Take what has come; return how many lines there are by now."""
        for message in self._consumer.consume(1000, timeout_seconds):
            assert message.error() is None, message.error()
            self.lines.append(message.value().decode())
        return len(self.lines)

    def close(self) -> None:
        self._consumer.close()


def append_lines(path: Path, step: int) -> None:
    with path.open("a") as file:
        for number in range(LINES_OF_A_STEP * step, LINES_OF_A_STEP * (step + 1)):
            file.write(f"line {number}\n")


def make_broker(directory: Path) -> HeadraceBroker | KafkaPeer:
    if os.environ.get("HEADRACE_CONFORMANCE_PEER") == "kafka":
        return KafkaPeer(directory, ONE_BROKER)
    return HeadraceBroker(directory, ONE_BROKER)


def test_connect_delivers_each_line_once_though_worker_and_broker_are_killed(tmp_path: Path):
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    wanted = [f"line {number}" for number in range(LINES_OF_A_STEP * 4)]
    append_lines(source, 0)
    with make_broker(tmp_path / "broker") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        committed = Committed(broker.bootstrap)
        worker = Worker(broker.bootstrap, tmp_path)

        def wait_for(count: int) -> None:
            def is_there() -> bool:
                worker.check("source", "sink")
                return committed.read() >= count

            wait_until(is_there, SECONDS, f"{count} committed lines")

        def is_in_sink() -> bool:
            worker.check("sink")
            return set(sink.read_text().splitlines()) >= set(committed.lines)

        try:
            worker.configure(
                "source",
                connector_class="org.apache.kafka.connect.file.FileStreamSourceConnector",
                topic=TOPIC,
                file=str(source),
                batch_size=str(LINES_OF_A_POLL),
                exactly_once_support="required",
                transaction_boundary="poll",
            )
            worker.configure(
                "sink",
                connector_class="org.apache.kafka.connect.file.FileStreamSinkConnector",
                topics=TOPIC,
                file=str(sink),
            )
            for step, (kills_worker, kills_broker) in enumerate(
                ((True, False), (False, True), (True, True)), start=1
            ):
                wait_for(LINES_OF_A_STEP * (2 * step - 1) // 2)
                append_lines(source, step)
                if kills_worker:
                    worker.kill()
                if kills_broker:
                    broker.kill()
                    broker.restart()
                if kills_worker:
                    worker.start_again()
            wait_for(len(wanted) - LINES_KEPT_BACK)
            committed.read(5)
            wait_until(is_in_sink, SECONDS, "what is committed in the sink's file")
        finally:
            worker.stop()
            committed.close()
    assert committed.lines == wanted[: len(committed.lines)]
    # A sink's file knows no transactions: what came after its last committed offset comes again.
    assert set(sink.read_text().splitlines()) == set(committed.lines)
