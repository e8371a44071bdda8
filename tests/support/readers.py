"""Readers of one partition from its start, in a rack, by clients that are not ours."""

import re
import threading
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from support.kafka_peer import start_tool


class LibrdkafkaReader:
    """confluent-kafka, in a thread."""

    def __init__(self, bootstrap: str, topic: str, rack: str, _: Path) -> None:
        self.offsets: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-librdkafka",
                "client.rack": rack,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._is_running = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._is_running:
            for message in self._consumer.consume(100, timeout=0.2):
                if message.error() is None:
                    self.offsets.append(message.offset())

    def stop(self) -> None:
        self._is_running = False
        self._thread.join()
        self._consumer.close()


class JavaReader:
    """Kafka's console consumer, a process."""

    def __init__(self, bootstrap: str, topic: str, rack: str, directory: Path) -> None:
        self._log = directory / "console-consumer.log"
        self._process = start_tool(
            "console-consumer",
            self._log,
            *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0"),
            *("--offset", "earliest", "--command-property", f"client.rack={rack}"),
            *("--formatter-property", "print.offset=true"),
            *("--formatter-property", "print.value=false"),
        )

    @property
    def offsets(self) -> list[int]:
        """What it printed so far."""
        return [
            int(found)
            for found in re.findall(r"^Offset:(\d+)$", self._log.read_text(), re.MULTILINE)
        ]

    def stop(self) -> None:
        self._process.stop()
