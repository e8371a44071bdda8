"""One broker for all conformance tests: ours, or Apache Kafka as the tests' own check.

`HEADRACE_CONFORMANCE_PEER=kafka` runs the suite against Apache Kafka (what it must say is right);
`HEADRACE_CONFORMANCE_BOOTSTRAP=HOST:PORT` against a broker that runs already.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from support.headrace_broker import HeadraceBroker
from support.kafka_peer import KafkaPeer
from support.members import Member
from support.peer import GivenPeer, Peer
from support.processes import wait_until
from support.wire import RawConnection

NewTopicOf = Callable[..., str]


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    directory = tmp_path_factory.mktemp("broker")
    found: Peer
    if address := os.environ.get("HEADRACE_CONFORMANCE_BOOTSTRAP"):
        found = GivenPeer("given", address)
    elif os.environ.get("HEADRACE_CONFORMANCE_PEER") == "kafka":
        found = KafkaPeer(directory)
    else:
        found = HeadraceBroker(directory)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def bootstrap(peer: Peer) -> str:
    return peer.bootstrap


@pytest.fixture
def connection(bootstrap: str) -> Iterator[RawConnection]:
    with RawConnection(bootstrap) as found:
        yield found


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def new_topic(admin: AdminClient) -> Iterator[NewTopicOf]:
    """Return a function that creates a topic with a name of its own; all are deleted after."""
    created: list[str] = []

    def create(partitions: int = 1, **config: str) -> str:
        name = f"conformance-{uuid.uuid4().hex[:10]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        created.append(name)
        wait_until(lambda: _is_led(admin, name, partitions), what=f"topic {name}'s leaders")
        return name

    yield create
    for future in admin.delete_topics(created).values() if created else ():
        future.exception(30)


def _is_led(admin: AdminClient, name: str, partitions: int) -> bool:
    """Whether every partition answers: metadata may name a leader before it leads."""
    queries = {TopicPartition(name, index): OffsetSpec.latest() for index in range(partitions)}
    answers = admin.list_offsets(queries, request_timeout=10).values()
    return all(answer.exception(30) is None for answer in answers)


@pytest.fixture
def new_group() -> Callable[[], str]:
    return lambda: f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def join(bootstrap: str, new_group: Callable[[], str]) -> Iterator[Callable[..., Member]]:
    """Return a function that starts a member of one group; all are stopped after the test."""
    group = new_group()
    members: list[Member] = []

    def start(topic: str, **settings: Any) -> Member:
        member = Member(bootstrap, group, topic, **settings)
        members.append(member)
        return member

    start.group = group  # type: ignore[attr-defined]
    yield start
    for member in members:
        if member.is_running:
            member.stop()
