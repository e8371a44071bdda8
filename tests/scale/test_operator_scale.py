"""Thousands of Topics and many Clusters, of which few answer, on an API server of the test's own.

The operator, etcd, kube-apiserver and the brokers are processes; no pod is needed. The short form
is what the defaults say; `make scale` runs the long one. Figures go to `build/figures/scale.json`:
they are worth something on a machine that does nothing else. What is asserted holds on a busy one.
"""

import json
import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from support.control_plane import own_api_server
from support.headrace_broker import HeadraceBroker
from support.kube import ROOT, condition, kubectl, resource
from support.kube_api import GROUP_VERSION, Api
from support.kube_process import OperatorProcess
from support.processes import LOOPBACK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

TOPICS = int(os.environ.get("HEADRACE_SCALE_TOPICS", "1000"))
CLUSTERS = int(os.environ.get("HEADRACE_SCALE_CLUSTERS", "20"))
REACHABLE = int(os.environ.get("HEADRACE_SCALE_REACHABLE", "2"))
NAMESPACE = "scale"
CHANGED = 200
_FIGURES = ROOT / "build/figures/scale.json"
_MEMORY_BYTES_MAX = 512 * 2**20
_PASSES = "headrace_operator_reconcile_duration_seconds"


@dataclass
class World:
    """What is there: an API server, an operator, brokers."""

    api: Api
    operator: OperatorProcess
    brokers: dict[str, HeadraceBroker]
    silent: dict[str, socket.socket]
    figures: dict[str, float] = field(default_factory=dict)

    def note(self, **figures: float) -> None:
        """Write figures down."""
        self.figures |= {name: round(value, 4) for name, value in figures.items()}
        _FIGURES.parent.mkdir(parents=True, exist_ok=True)
        _FIGURES.write_text(json.dumps(self.figures, indent=1, sort_keys=True) + "\n")

    def path(self, name: str = "") -> str:
        base = f"{GROUP_VERSION}/namespaces/{NAMESPACE}/topics"
        return f"{base}/{name}" if name else base

    def count_topics(self) -> int:
        """Count what the brokers have."""
        return sum(
            len([name for name in topics_of(broker) if not name.startswith("__")])
            for broker in self.brokers.values()
        )

    def wait_ready(self, count: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (ready := self.api.count_ready(NAMESPACE, "topics")) < count:
            assert time.monotonic() < deadline, f"{ready} of {count} Topics are ready"
            time.sleep(1)


def topics_of(broker: HeadraceBroker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics)


def topic(cluster: str, name: str) -> dict[str, Any]:
    reference = {"name": cluster}
    return resource(
        "Topic", NAMESPACE, name, clusterRef=reference, partitions=1, deletionPolicy="Delete"
    )


def cluster_document(name: str) -> dict[str, Any]:
    pools = [{"name": "a", "replicas": 1, "storage": {"type": "Ephemeral"}}]
    config = {"default.replication.factor": "1"}
    return resource("Cluster", NAMESPACE, name, pools=pools, config=config)


def hole() -> socket.socket:
    """Return a server that takes connections and never answers."""
    return socket.create_server((LOOPBACK, 0), backlog=1024)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("scale")
    with ExitStack() as stack:
        stack.enter_context(own_api_server(folder))
        kubectl("create", "namespace", NAMESPACE)
        names = [f"c-{number}" for number in range(CLUSTERS)]
        brokers = {
            name: stack.enter_context(HeadraceBroker(folder / name)) for name in names[:REACHABLE]
        }
        silent = {name: stack.enter_context(hole()) for name in names[REACHABLE:]}
        reach = {f"{NAMESPACE}/{name}": broker.bootstrap for name, broker in brokers.items()}
        for name, listening in silent.items():
            reach[f"{NAMESPACE}/{name}"] = f"{LOOPBACK}:{listening.getsockname()[1]}"
        api = Api()
        stack.callback(api.close)
        api.create_all([cluster_document(name) for name in names])
        operator = stack.enter_context(OperatorProcess(folder, [NAMESPACE], reach))
        found = World(api, operator, brokers, silent)
        found.note(topics=TOPICS, clusters=CLUSTERS, reachable=REACHABLE)
        yield found


def names_of(world: World) -> dict[str, str]:
    """Return the Topics, each with its Cluster, spread over those that answer."""
    clusters = list(world.brokers)
    return {f"t-{number}": clusters[number % len(clusters)] for number in range(TOPICS)}


def test_all_topics_become_ready_while_most_clusters_do_not_answer(world: World) -> None:
    began = time.monotonic()
    world.api.create_all([topic(cluster, name) for name, cluster in names_of(world).items()])
    created = time.monotonic() - began
    world.wait_ready(TOPICS, 120 + TOPICS * 0.3)
    world.note(
        created_seconds=created,
        ready_seconds=time.monotonic() - began,
        creation_operator_cpu_seconds=world.operator.process.cpu_seconds(),
    )
    assert world.count_topics() == TOPICS


def test_a_change_of_one_topic_is_ready_soon(world: World) -> None:
    names = list(names_of(world))[:CHANGED]
    times = sorted(change(world, name) for name in names)
    world.note(
        change_seconds_median=statistics.median(times),
        change_seconds_p99=times[min(len(times) - 1, int(len(times) * 0.99))],
    )
    assert statistics.median(times) < 1


def change(world: World, name: str) -> float:
    """Ask for another setting; return the seconds until Ready says so of this very spec."""
    began = time.monotonic()
    body = {"spec": {"config": {"retention.ms": 3_600_000 + int(began * 1000) % 1_000_000}}}
    generation = world.api.call("PATCH", world.path(name), body)["metadata"]["generation"]
    while True:
        ready = condition(world.api.call("GET", world.path(name)))
        if ready.get("status") == "True" and ready.get("observedGeneration") == generation:
            return time.monotonic() - began
        assert time.monotonic() < began + 60, f"{name} is not ready: {ready}"
        time.sleep(0.01)


def test_rest_costs_little_and_writes_nothing(world: World) -> None:
    process = world.operator.process
    deadline = time.monotonic() + 120
    while True:
        writes = world.operator.writes()
        time.sleep(10)
        if world.operator.writes() == writes:
            break
        assert time.monotonic() < deadline, "the operator does not come to rest"
    cpu, began = process.cpu_seconds(), time.monotonic()
    time.sleep(60)
    whole = [world.operator.metric(f"{_PASSES}_{each}", 'scope="everything"') for each in SUMS]
    world.note(
        rest_cpu_share=(process.cpu_seconds() - cpu) / (time.monotonic() - began),
        rest_writes=world.operator.writes() - writes,
        full_pass_seconds_mean=whole[0] / max(whole[1], 1),
        memory_bytes=process.rss_bytes(),
    )
    assert world.operator.writes() == writes
    assert process.rss_bytes() < _MEMORY_BYTES_MAX


SUMS = ("sum", "count")


def test_a_cluster_that_falls_silent_holds_up_nobody_and_makes_no_storm(world: World) -> None:
    *others, last = world.brokers
    before = world.operator.writes()
    broker = world.brokers[last]
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        mine = [name for name, cluster in names_of(world).items() if cluster in others]
        times = []
        deadline = time.monotonic() + 45
        while time.monotonic() < deadline:
            times.append(change(world, mine[len(times) % len(mine)]))
        writes = world.operator.writes() - before - len(times)
        world.note(
            beside_a_silent_one_seconds_median=statistics.median(times),
            beside_a_silent_one_seconds_max=max(times),
            silence_writes=writes,
        )
        # Its Topics keep what was known of them: nobody knows better.
        assert writes < 50 + TOPICS / REACHABLE / 10
        assert statistics.median(times) < 1
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_all_are_deleted_in_linear_time(world: World) -> None:
    names = list(names_of(world))
    few, rest = names[: TOPICS // 10], names[TOPICS // 10 :]
    first = delete(world, few, TOPICS - len(few)) / len(few)
    cpu = world.operator.process.cpu_seconds()
    second = delete(world, rest, 0) / len(rest)
    world.note(
        deleted_seconds_each_of_few=first,
        deleted_seconds_each_of_many=second,
        deletion_operator_cpu_seconds=world.operator.process.cpu_seconds() - cpu,
        memory_bytes_after=world.operator.process.rss_bytes(),
    )
    assert second < 2 * first + 0.01


def delete(world: World, names: list[str], left: int) -> float:
    """Delete Topics; return the seconds until brokers have as many topics as are left."""
    began = time.monotonic()
    world.api.delete_all([world.path(name) for name in names])
    while (count := world.count_topics()) > left:
        assert time.monotonic() < began + 120 + len(names) * 0.3, f"{count} topics are there"
        time.sleep(0.5)
    return time.monotonic() - began
