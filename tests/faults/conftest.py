"""Brokers of a test's own, to be killed; and brokers behind a proxy."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.processes import LOOPBACK, free_port
from support.tcp_proxy import Plan, TcpProxy

CreateTopic = Callable[..., None]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[HeadraceBroker]:
    """A broker of this test alone."""
    with HeadraceBroker(tmp_path / "broker") as found:
        yield found


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Callable[[Plan], TcpProxy]]:
    """Return a function that starts a broker whose clients go through a proxy with a plan."""
    with ExitStack() as end:

        def start(plan: Plan) -> TcpProxy:
            port = free_port()
            advertised = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
            broker = end.enter_context(HeadraceBroker(tmp_path / "broker", advertised))
            return end.enter_context(TcpProxy(port, broker.bootstrap, plan))

        yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    name: str = request.node.name
    return name.replace("[", "-").replace("]", "")[:200]


@pytest.fixture
def create_topic() -> CreateTopic:
    def create(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)

    return create
