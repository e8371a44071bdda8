"""Damage in what an fsync had covered, on real files: never served, and healed from a good copy.

Between a clean stop and the next start a bit flips, or a page turns to zeros, in one replica's log.
Readers are processes of their own: librdkafka may abort on what it is served.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from faults.workload import create_topic
from support.headrace_broker import HeadraceBroker
from support.headrace_cluster import HeadraceCluster
from support.metrics import scrape, wait_metrics
from support.processes import wait_until

_SECONDS = 60
_BATCHES = 40
_RECORD = 500
_HEADER_BYTES = 61
_READERS = ("confluent-kafka", "kafka-python")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, 1, 1, config={"index.interval.bytes": "2000"})
    admin.create_topics([new])[topic].result(20)


def _fill(bootstrap: str, topic: str) -> list[bytes]:
    """Write one batch for each record."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    values = [b"%06d" % number + b"x" * _RECORD for number in range(_BATCHES)]
    for value in values:
        producer.produce(topic, value, partition=0)
        assert producer.flush(_SECONDS) == 0
    return values


def _read(reader: str, bootstrap: str, topic: str, first: int, count: int) -> str:
    """Read with one client, in a process of its own; return what it says."""
    command = [sys.executable, "-m", "faults.read_values", reader, bootstrap, topic]
    done = subprocess.run(
        [*command, str(first), str(count)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=_SECONDS * 2,
        check=False,
    )
    return f"{done.stdout.strip()} {done.stderr.strip()[-400:] if done.returncode else ''}".strip()


def _batch_positions(log: Path) -> list[int]:
    data, found, at = log.read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return found


def _flip_a_record(log: Path) -> None:
    _change(log, _batch_positions(log)[7] + _HEADER_BYTES + 100)


def _flip_an_offset(log: Path) -> None:
    """No checksum covers it."""
    _change(log, _batch_positions(log)[7] + 6)


def _zero_a_header(log: Path) -> None:
    _change(log, _batch_positions(log)[7], 600)


def _zero_the_tail(log: Path) -> None:
    _change(log, _batch_positions(log)[-3], 20)


def _change(log: Path, position: int, zeros: int = 0) -> None:
    with log.open("r+b") as file:
        file.seek(position)
        damaged = bytes(zeros) if zeros else bytes([file.read(1)[0] ^ 1])
        file.seek(position)
        file.write(damaged)


def _log_of(directory: Path, topic: str) -> Path:
    return next(directory.rglob(f"{topic}-0/{0:020d}.log"))


def _lead(cluster: HeadraceCluster, topic: str, node_id: int) -> None:
    """Have the first replica lead."""

    def leads() -> bool:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(20)
        return cluster.leader(topic).node_id == node_id

    wait_until(leads, _SECONDS, "the first replica to lead")


@pytest.mark.cluster
@pytest.mark.parametrize(
    "damage", [_flip_a_record, _flip_an_offset, _zero_a_header, _zero_the_tail]
)
def test_a_damaged_leader_serves_no_damage_and_is_healed(tmp_path, damage):
    with HeadraceCluster(tmp_path) as cluster:
        create_topic(cluster, "t", 1, assignment=[[1, 2, 3]], index_interval_bytes="2000")
        values = _fill(cluster.bootstrap, "t")
        first = cluster.node(1)
        first.stop()
        log = _log_of(first.log_directory, "t")
        whole = log.read_bytes()
        damage(log)
        first.start()
        cluster.wait_complete()
        # It may find the damage by itself, or when it is read; whoever leads then is asked.
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wait_until(lambda: len(cluster.partitions("t")[0].isr) == 3, _SECONDS, "all in sync")
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)])
        for reader in _READERS:
            said = _read(reader, cluster.bootstrap, "t", 0, len(values))
            assert said == f"{len(values)} values, in order from 0", (reader, said)
        wait_until(lambda: log.read_bytes() == whole, _SECONDS, "the damage to be healed")
        text = (first.directory / "broker.log").read_text()
        assert "records are damaged" in text
        cluster.wait_in_sync("t", _SECONDS)
        _lead(cluster, "t", 1)
        for reader in _READERS:
            said = _read(reader, cluster.bootstrap, "t", 0, len(values))
            assert said == f"{len(values)} values, in order from 0", (reader, said)


@pytest.mark.parametrize("damage", [_flip_a_record, _zero_a_header])
def test_without_a_good_copy_the_error_names_the_offsets_and_the_others_are_served(
    tmp_path, damage
):
    with HeadraceBroker(tmp_path / "broker") as broker:
        _create(broker.bootstrap, "t")
        values = _fill(broker.bootstrap, "t")
        broker.stop()
        damage(_log_of(broker.log_directory, "t"))
        broker.restart()
        for reader in _READERS:
            said = _read(reader, broker.bootstrap, "t", 0, len(values))
            assert said.startswith("7 values, in order from 0"), (reader, said)
        text = (broker.directory / "broker.log").read_text()
        line = next(line for line in text.splitlines() if "records are damaged" in line)
        assert "topic=t" in line
        assert "partition=0" in line
        assert "first_offset=7" in line
        next_offset = int(line.partition("next_offset=")[2].split()[0])
        assert next_offset in (8, 9)
        for reader in _READERS:
            rest = _BATCHES - next_offset
            said = _read(reader, broker.bootstrap, "t", next_offset, rest)
            assert said == f"{rest} values, in order from {next_offset}", (reader, said)


def test_the_scrub_finds_what_nobody_reads(tmp_path):
    settings = {"headrace.log.scrub.interval.ms": "500"}
    with HeadraceBroker(tmp_path / "broker", settings) as broker:
        _create(broker.bootstrap, "t")
        _fill(broker.bootstrap, "t")
        broker.stop()
        _flip_a_record(_log_of(broker.log_directory, "t"))
        broker.restart()
        wait_metrics(broker.http_port)

        def values(name: str) -> list[float]:
            samples = scrape(broker.http_port)
            return [each.value for each in samples if each.name == f"headrace_broker_log_{name}"]

        wait_until(lambda: values("damaged_ranges") == [1], _SECONDS, "the scrub to find it")
        assert values("scrub_bytes_total")[0] > 0
        assert values("scrub_damage_total") == [1]
