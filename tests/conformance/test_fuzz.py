"""Mutants of real clients' requests: the broker lives, its memory stays, and none finds a bug.

HEADRACE_FUZZ_MUTANTS   how many; thousands without it, `make fuzz` takes more
HEADRACE_FUZZ_SEED      which; printed with every failure
HEADRACE_FUZZ_CORPUS    the frames to change, from a file that a failure names: with the seed
                        they replay it. Without it librdkafka, kafka-python and aiokafka are
                        recorded through a proxy, and Java's tools too in the long form.
"""

import asyncio
import os
import random
import uuid
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from support.fuzz import Corpus, send_all
from support.headrace_broker import HeadraceBroker
from support.hostile import unharmed
from support.kafka_peer import run_tool
from support.processes import free_port
from support.records import CONSUMERS, PRODUCERS, Sent
from support.tcp_proxy import Fate, TcpProxy

_MUTANTS_SHORT = 4000
_MUTANTS = int(os.environ.get("HEADRACE_FUZZ_MUTANTS", _MUTANTS_SHORT))
_SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
_CORPUS = os.environ.get("HEADRACE_FUZZ_CORPUS")
_CHUNK = 2000
_BUG = "level=error"
_KEPT = Path(__file__).parents[2] / "build" / "fuzz"


def _record(bootstrap: str, topic: str, *, java: bool) -> None:
    """Do with every client what clients do."""
    records = [
        Sent(key=b"key", value=b"value" * number, headers=(("name", b"header"),))
        for number in range(20)
    ]
    for client in ("confluent-kafka", "aiokafka", "kafka-python"):
        for codec in ("none", "gzip"):
            PRODUCERS[client](bootstrap, topic, records, codec)
        CONSUMERS[client](bootstrap, topic, 10)
    _administer(bootstrap)
    _join(bootstrap, topic)
    if java:
        where = ["--bootstrap-server", bootstrap]
        run_tool("console-producer", *where, "--topic", topic, standard_input="a\nb\n")
        read = ["--from-beginning", "--max-messages", "5", "--group", "java"]
        run_tool("console-consumer", *where, "--topic", topic, *read)
        run_tool("topics", *where, "--describe")
        run_tool("groups", *where, "--describe", "--all-groups")


def _administer(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = f"fuzz-{uuid.uuid4().hex[:8]}"
    asked = [
        *admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "1000"})]).values(),
    ]
    for future in asked:
        future.result(20)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    for futures in (
        admin.create_partitions([NewPartitions(name, 2)]),
        admin.describe_configs([resource]),
        admin.delete_records([TopicPartition(name, 0, 0)]),
        admin.delete_topics([name]),
    ):
        for future in futures.values():
            future.exception(20)
    admin.list_consumer_groups().exception(20)
    admin.describe_cluster().exception(20)


def _join(bootstrap: str, topic: str) -> None:
    import kafka

    group = f"fuzz-{uuid.uuid4().hex[:8]}"
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    try:
        assert consumer.poll(20_000)
        consumer.commit()
        consumer.offsets_for_times({kafka.TopicPartition(topic, 0): 0})
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A broker that advertises a proxy, so that clients stay on it; few partitions are many."""
    limits = {"headrace.max.partitions": "600", "headrace.max.partitions.per.topic": "60"}
    port = free_port()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with HeadraceBroker(tmp_path_factory.mktemp("fuzz"), limits | advertised) as broker:
        broker.proxy_port = port
        yield broker


@pytest.fixture(scope="module")
def corpus(peer):
    """The frames of a run; kept where a failure's replay finds them."""
    frames = []

    def record(request):
        frames.append(request.frame)
        return Fate.PASS, 0

    with TcpProxy(peer.proxy_port, peer.bootstrap, record) as proxy:
        topic = f"fuzz-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": proxy.address})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
        if _CORPUS:
            yield Corpus.read(Path(_CORPUS))
            return
        _record(proxy.address, topic, java=_MUTANTS > _MUTANTS_SHORT)
        found = Corpus(frames)
        found.write(_KEPT / f"{_SEED}.json")
        yield found


def _log(peer):
    return (peer.directory / "broker.log").read_text(errors="replace")


@pytest.mark.timeout(3600)
def test_no_mutant_of_a_clients_request_finds_a_bug(peer, corpus):
    assert len(corpus.frames) > 20
    outcomes = {}
    replay = f"HEADRACE_FUZZ_SEED={_SEED} HEADRACE_FUZZ_CORPUS={_KEPT / f'{_SEED}.json'}"
    healthy = f"healthy-{uuid.uuid4().hex[:8]}"
    AdminClient({"bootstrap.servers": peer.bootstrap}).create_topics([NewTopic(healthy, 1, 1)])
    with unharmed(peer, healthy):
        for first in range(0, _MUTANTS, _CHUNK):
            numbers = range(first, min(first + _CHUNK, _MUTANTS))
            found = asyncio.run(send_all(peer.bootstrap, corpus.mutants(_SEED, numbers)))
            for how, count in found.items():
                outcomes[how] = outcomes.get(how, 0) + count
            assert peer.is_running, f"{replay}, among {numbers}: {peer.output_tail()}"
            assert _BUG not in _log(peer), _culprits(peer, corpus, numbers, replay)
    print(f"{_MUTANTS} mutants of {len(corpus.frames)} requests, seed {_SEED}: {outcomes}")  # noqa: T201 - what a long run did
    assert outcomes["answered"] > _MUTANTS // 10


def _culprits(peer, corpus, numbers, replay):
    """Send a chunk's mutants one after the other, and name those that the broker logs."""
    told = []
    for number, mutant in corpus.mutants(_SEED, numbers):
        before = _log(peer).count(_BUG)
        asyncio.run(send_all(peer.bootstrap, iter([(number, mutant)])))
        if _log(peer).count(_BUG) > before:
            told.append(f"mutant {number}: {mutant.hex()}")
    lines = [line for line in _log(peer).splitlines() if _BUG in line]
    return "\n".join([replay, *told, *lines[-5:]])
