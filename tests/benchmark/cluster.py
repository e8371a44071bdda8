"""Three brokers as one cluster: start, replicated writes, and what a failure interrupts."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmark.latency import percentile
from benchmark.measure import Figures, Goal, Measure, Scenario
from benchmark.throughput import WARM_UP_RECORDS, Load, produce
from support.clusters import NO_LEADER, Cluster, ClusterNode
from support.processes import wait_until
from support.streams import FAST_CLIENT, FAST_PRODUCER, ProducerStream

_MB = 1_000_000
_PATIENCE_SECONDS = 120
_SETTLE_SECONDS = 1.0
_REQUEST_SECONDS = 2
_ANSWER_SECONDS = 10
_RETRY_SECONDS = 0.01


class ReplicatedLoad(Load):
    """Producer-perf with acks=all and idempotence, 1 KB records in 128 KB batches."""

    def arguments(self, bootstrap: str, topic: str, records: int, payloads: str) -> list[str]:
        """Return the same arguments with other acknowledgements."""
        given = super().arguments(bootstrap, topic, records, payloads)
        changes = {"acks=1": "acks=all", "enable.idempotence=false": "enable.idempotence=true"}
        return [changes.get(argument, argument) for argument in given]


def create_topic(
    cluster: Cluster, name: str, partitions: int, seconds: float = _PATIENCE_SECONDS
) -> None:
    """Create a topic, asking again and again until one attempt succeeds."""
    # Files that stay for a minute after the deletion, the default, are 3 GB a round.
    config = {"min.insync.replicas": "2", "file.delete.delay.ms": "100"}
    topic = NewTopic(name, partitions, 3, config=config)

    def ask(admin: AdminClient) -> object:
        made = admin.create_topics([topic], request_timeout=_REQUEST_SECONDS)[name]
        return made.result(_ANSWER_SECONDS)

    # "Already exists": by an attempt whose answer was lost.
    _insist(cluster, ask, KafkaError.TOPIC_ALREADY_EXISTS, seconds)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic, as `create_topic` creates one."""

    def ask(admin: AdminClient) -> object:
        gone = admin.delete_topics([name], request_timeout=_REQUEST_SECONDS)[name]
        return gone.result(_ANSWER_SECONDS)

    _insist(cluster, ask, KafkaError.UNKNOWN_TOPIC_OR_PART, _PATIENCE_SECONDS)


def _insist(
    cluster: Cluster, ask: Callable[[AdminClient], object], done: int, seconds: float
) -> None:
    """Ask until it is answered, or with the error `done`; raise the last error after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        # A client that knew a controller waits for that one for long: each attempt has its own.
        admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": cluster.bootstrap})
        try:
            ask(admin)
        except (KafkaException, TimeoutError) as error:
            cause = error.args[0] if error.args else None
            if isinstance(cause, KafkaError) and cause.code() == done:
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


@contextmanager
def replicated_topic(cluster: Cluster, partitions: int) -> Iterator[str]:
    """A topic with three replicas of each partition, all in sync, deleted afterwards."""
    name = f"benchmark-{uuid4().hex[:12]}"
    create_topic(cluster, name, partitions)
    cluster.wait_in_sync(name, _PATIENCE_SECONDS)
    yield name
    delete_topic(cluster, name)
    time.sleep(_SETTLE_SECONDS)


def start_scenario() -> Scenario:
    """Seconds from the start of three processes until each shows all three."""

    def run(cluster: Cluster) -> Figures:
        cluster.stop()
        cluster.start()
        return {"ready": cluster.ready_seconds, "rss": cluster.rss_bytes() / _MB}

    return Scenario(
        key="cluster-start",
        title="Three brokers: from the start of the processes until each lists all three",
        command="headrace broker FILE.properties, kafka.Kafka FILE.properties; three at once",
        measures=(
            _seconds("ready", "three ready brokers", 2),
            Measure(key="rss", title="memory (RSS) of the three", unit="MB"),
        ),
        run=run,
    )


def replicated_scenario(records: int, *, after_restart: bool = False) -> Scenario:
    """Records per second and CPU of all three brokers with acks=all.

    With `after_restart` each round starts three new ones, warmed up by 200,000 records.
    """
    load = ReplicatedLoad(
        records=records, record_size=1000, batch_size=131_072, after_restart=after_restart
    )
    warm_up = min(100_000, records)

    def prepare(cluster: Cluster) -> None:
        with replicated_topic(cluster, 6) as topic:
            produce(cluster, topic, load, records, 1000)

    def run(cluster: Cluster) -> Figures:
        if after_restart:
            cluster.stop()
            cluster.start()
            with replicated_topic(cluster, 6) as topic:
                produce(cluster, topic, load, WARM_UP_RECORDS, 1)
        with replicated_topic(cluster, 6) as topic:
            cpu_before = cluster.cpu_seconds()
            rate = produce(cluster, topic, load, records, warm_up)
            cpu = (cluster.cpu_seconds() - cpu_before) * 1e6 / (records + warm_up)
            return {"rate": rate, "cpu": cpu, "rss": cluster.rss_bytes() / _MB}

    shown = " ".join(load.arguments("…", "…", records + warm_up, "…"))
    usual = "acks=all, RF 3, min.insync.replicas=2, 6 partitions, 1 KB records, idempotent"
    restarted = (
        "The same, on brokers restarted before each round and warmed up with 200,000 records"
    )
    return Scenario(
        key="cluster-produce-restarted" if after_restart else "cluster-produce",
        title=restarted if after_restart else f"{usual}; after a whole round",
        command=f"producer-perf {shown}",
        measures=(
            Measure(
                key="rate",
                title="records per second",
                unit="/s",
                goal=Goal(bound=2, is_at_least=True),
            ),
            Measure(
                key="cpu",
                title="CPU of the three per million records",
                unit="s",
                goal=Goal(bound=0.4, is_at_least=False),
            ),
            Measure(key="rss", title="memory (RSS) of the three", unit="MB"),
        ),
        run=run,
        prepare=None if after_restart else prepare,
    )


def replicated_latency_scenario(samples: int) -> Scenario:
    """One acks=all write at a time."""

    def run(cluster: Cluster) -> Figures:
        with replicated_topic(cluster, 1) as topic:
            producer = _fast(cluster)
            for _ in range(samples // 5):
                _write_one(producer, topic)
            times = [_write_one(producer, topic) for _ in range(samples)]
        return {"p50": statistics.median(times), "p99": percentile(times, 0.99)}

    goal = Goal(bound=0.6, is_at_least=False)
    return Scenario(
        key="cluster-latency",
        title="One acks=all write at a time: confluent-kafka, RF 3, min.insync.replicas=2, 100 B",
        command=f"confluent-kafka Producer, linger.ms=0, {samples} times produce and wait",
        measures=(
            Measure(key="p50", title="p50", unit="µs", goal=goal),
            Measure(key="p99", title="p99", unit="µs", goal=goal),
        ),
        run=run,
    )


def _fast(cluster: Cluster) -> Producer:
    return Producer({**FAST_PRODUCER, "bootstrap.servers": cluster.bootstrap})


def _write_one(producer: Producer, topic: str) -> float:
    """Return the microseconds until a record is acknowledged."""
    done: list[object] = []
    began = time.perf_counter()
    producer.produce(
        topic, bytes(100), partition=0, on_delivery=lambda error, _: done.append(error)
    )
    while not done:
        producer.poll(1)
    if done[0] is not None:
        raise KafkaException(done[0])
    return (time.perf_counter() - began) * 1e6


Fault = Callable[[ClusterNode], None]


def _gap(cluster: Cluster, fault: Fault, *, heal: Fault) -> Figures:
    """Strike the leader of a partition while a producer writes to it once per millisecond."""
    with replicated_topic(cluster, 1) as topic:
        stream = ProducerStream(cluster.bootstrap, topic, [0], interval_seconds=0.001)
        with stream:
            stream.wait_acknowledged(300)
            victim = cluster.leader(topic)
            began = time.monotonic()
            fault(victim)
            fresh = _fresh_write(cluster, topic, victim, began)
            # A write of the survivors', not one that was on its way.
            time.sleep(_SETTLE_SECONDS)
            stream.wait_acknowledged(200, _PATIENCE_SECONDS)
            gap = stream.longest_gap(began, stream.last_acknowledged())
            heal(victim)
            failed = len(stream.failures)
            stream.stop()
        cluster.wait_complete()
        cluster.wait_in_sync(topic, _PATIENCE_SECONDS)
    return {"gap": gap, "fresh": fresh, "failed": failed}


def _fresh_write(cluster: Cluster, topic: str, victim: ClusterNode, began: float) -> float:
    """Return the seconds until a client that asked nothing of the victim has written."""
    cluster.not_asked = (victim,)
    try:
        while (found := cluster.partitions(topic).get(0)) is None or found.leader in {
            victim.node_id,
            NO_LEADER,
        }:
            time.sleep(0.005)
        others = ",".join(node.bootstrap for node in cluster.others(victim))
        # An idempotent one would first wait for its id, by a clock of its own.
        producer = Producer(
            {**FAST_CLIENT, "bootstrap.servers": others, "acks": "all", "linger.ms": 0}
        )
        _write_one(producer, topic)
    finally:
        cluster.not_asked = ()
    return time.monotonic() - began


def _seconds(key: str, title: str, bound: float) -> Measure:
    goal = Goal(bound=bound, is_at_least=False, is_ratio=False)
    return Measure(key=key, title=title, unit="s", goal=goal)


def _gap_scenario(
    key: str, title: str, bounds: tuple[float, float], fault: Fault, heal: Fault
) -> Scenario:
    bound, fresh_bound = bounds
    none = Goal(bound=0, is_at_least=False, is_ratio=False)
    return Scenario(
        key=key,
        title=title,
        command="an idempotent librdkafka producer, acks=all, a record per ms, "
        "retry.backoff.ms=10, reconnect.backoff.ms=10, request.timeout.ms=1000",
        measures=(
            _seconds("gap", "without an acknowledged write", bound),
            _seconds("fresh", "until a new client has written", fresh_bound),
            Measure(key="failed", title="failed writes", unit="records", goal=none),
        ),
        run=lambda cluster: _gap(cluster, fault, heal=heal),
    )


def gap_scenarios() -> list[Scenario]:
    """The leader killed, paused, and stopped in good order."""
    return [
        _gap_scenario(
            "cluster-kill", "SIGKILL of a leader", (1, 1), ClusterNode.kill, ClusterNode.start
        ),
        _gap_scenario(
            "cluster-pause", "SIGSTOP of a leader", (5, 1.5), ClusterNode.pause, ClusterNode.resume
        ),
        _gap_scenario(
            "cluster-stop",
            "Controlled shutdown of a leader (SIGTERM)",
            (0.2, 1),
            ClusterNode.stop,
            ClusterNode.start,
        ),
    ]


def controller_scenario() -> Scenario:
    """Kill the active controller: until a topic can be created, and what partitions notice."""

    def run(cluster: Cluster) -> Figures:
        controller = cluster.active_controller()
        created = f"benchmark-{uuid4().hex[:12]}"
        with replicated_topic(cluster, 6) as topic:
            state = cluster.partitions(topic).items()
            others = [number for number, p in state if p.leader != controller.node_id]
            with ProducerStream(cluster.bootstrap, topic, others, interval_seconds=0.001) as stream:
                stream.wait_acknowledged(300)
                controller.kill()
                began = time.monotonic()
                create_topic(cluster, created, 1)
                seconds = time.monotonic() - began
                time.sleep(_SETTLE_SECONDS)
                stream.wait_acknowledged(100)
                gap = stream.longest_gap(began, stream.last_acknowledged())
                controller.start()
                stream.stop()
            cluster.wait_complete()
            cluster.wait_in_sync(topic, _PATIENCE_SECONDS)
        return {"create": seconds, "gap": gap}

    return Scenario(
        key="cluster-controller",
        title="SIGKILL of the active controller",
        command="CreateTopics again and again; a producer writes to partitions that others lead",
        measures=(
            _seconds("create", "until a topic is created", 1),
            Measure(key="gap", title="longest gap of other leaders' partitions", unit="s"),
        ),
        run=run,
    )


def partitions_scenario(count: int) -> Scenario:
    """Many partitions: what idling costs, and how soon a dead broker's are led again."""

    def run(cluster: Cluster) -> Figures:
        with replicated_topic(cluster, count) as topic:
            time.sleep(3 * _SETTLE_SECONDS)
            cpu_before, idle_began = cluster.cpu_seconds(), time.monotonic()
            time.sleep(10 * _SETTLE_SECONDS)
            idle = (cluster.cpu_seconds() - cpu_before) / (time.monotonic() - idle_began)
            victim = cluster.leader(topic)
            led = [n for n, p in cluster.partitions(topic).items() if p.leader == victim.node_id]
            victim.kill()
            began = time.monotonic()
            _wait_led(cluster, topic, led, victim)
            elected = time.monotonic() - began
            _write_to_each(cluster, topic, led)
            written = time.monotonic() - began
            victim.start()
            cluster.wait_complete()
            cluster.wait_in_sync(topic, _PATIENCE_SECONDS)
        share = idle * 100 / len(cluster.nodes)
        return {"led": elected, "written": written, "idle": share, "count": len(led)}

    return Scenario(
        key="cluster-partitions",
        title=f"{count:,} partitions with RF 3: a broker is killed",
        command="SIGKILL; metadata of a survivor; one acks=all record to each partition it led",
        measures=(
            _seconds("led", "until all of its partitions have leaders", 3),
            _seconds("written", "until all of its partitions took a write", 3),
            Measure(
                key="idle",
                title="idle CPU of a broker before",
                unit="% of a core",
                goal=Goal(bound=5, is_at_least=False, is_ratio=False),
            ),
            Measure(key="count", title="partitions it led", unit="partitions"),
        ),
        run=run,
        rounds_max=1,
    )


def _wait_led(cluster: Cluster, topic: str, led: list[int], victim: ClusterNode) -> None:
    def is_done() -> bool:
        found = cluster.partitions(topic)
        return all(n in found and found[n].leader not in {-1, victim.node_id} for n in led)

    wait_until(is_done, _PATIENCE_SECONDS, "leaders of all partitions")


def _write_to_each(cluster: Cluster, topic: str, partitions: list[int]) -> None:
    producer = _fast(cluster)
    for number in partitions:
        producer.produce(topic, b"after", partition=number)
    if left := producer.flush(_PATIENCE_SECONDS):
        raise TimeoutError(f"{left} partitions took no write")


def cluster_scenarios(*, is_quick: bool, records: int | None = None) -> list[Scenario]:
    """Return every scenario of three brokers, in the order in which they run."""
    scale = 5 if is_quick else 1
    return [
        start_scenario(),
        replicated_scenario(records or 1_000_000 // scale),
        replicated_scenario(records or 1_000_000 // scale, after_restart=True),
        replicated_latency_scenario(5000 // scale),
        *gap_scenarios(),
        controller_scenario(),
        partitions_scenario(1000),
    ]
