"""`headrace consume --follow` as a long-running consumer outlives what comes late."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.headrace_broker import HeadraceBroker
from support.processes import ManagedProcess, wait_until

pytestmark = pytest.mark.cluster

HEADRACE = str(Path(sys.executable).parent / "headrace")


def headrace(broker: HeadraceBroker, *arguments: str, stdin: str = "") -> None:
    subprocess.run(
        [HEADRACE, *arguments, "--bootstrap-server", broker.bootstrap],
        input=stdin,
        text=True,
        check=True,
        capture_output=True,
        timeout=120,
    )


def consumer(broker: HeadraceBroker, log: Path) -> ManagedProcess:
    command = [HEADRACE, "consume", "late", "--follow", "--from", "earliest", "--group", "app"]
    return ManagedProcess([*command, "--bootstrap-server", broker.bootstrap], log)


def test_it_waits_for_brokers_and_for_its_topic(tmp_path: Path) -> None:
    broker = HeadraceBroker(tmp_path / "broker", {"auto.create.topics.enable": "false"})
    log = tmp_path / "consumer.log"
    reader = consumer(broker, log)
    try:
        wait_until(lambda: "no answer" in log.read_text() or not reader.is_running, 60)
        assert reader.is_running, log.read_text()
        with broker:
            wait_until(lambda: "does not exist" in log.read_text() or not reader.is_running, 60)
            assert reader.is_running, log.read_text()
            create_topic(broker, "late", partitions=6)
            records = [f"order-{number}" for number in range(20)]
            headrace(broker, "produce", "late", stdin="".join(f"{each}\n" for each in records))
            wait_until(lambda: set(records) <= set(log.read_text().split("\n")), 90, "the records")
            assert reader.is_running
    finally:
        reader.stop()


def create_topic(broker: HeadraceBroker, name: str, *, partitions: int) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        admin.close()
