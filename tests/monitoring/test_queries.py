"""Every query of every panel, rule and autoscaler, on a real Prometheus that scrapes real brokers.

The job's and the operator's exporters are the real ones, given made-up batches and
reconciliations. Windows of minutes are seconds here, so that the longest fits into a test.
"""

import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import GCCollector

from headrace_jobs.progress.metrics import BatchFacts, JobMetrics, MetricsServer
from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.api.transport import Write
from headrace_operator.kubernetes.metrics import OperatorMetrics
from headrace_operator.kubernetes.register import Register, parse_managed
from headrace_operator.kubernetes.resource_metrics import ResourceCollector
from support.headrace_cluster import HeadraceCluster
from support.monitoring import MANIFESTS, MONITORING, Prometheus, every_rule, sped_up
from support.processes import LOOPBACK, wait_until

pytestmark = pytest.mark.slow

DASHBOARDS = MONITORING / "dashboards"
SETTLING_SECONDS = 25


class Traffic:
    """A producer, a group that follows it at half its pace, and a share group at its own."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
        self._worker = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "workers"})
        self._worker.subscribe(["orders"])
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run),
            threading.Thread(target=self._work),
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()
        self._worker.close()

    def _work(self) -> None:
        while not self._ended.is_set():
            # What was given before is acknowledged by the next call.
            self._worker.poll(0.2)

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.2):
            for partition in range(3):
                for _ in range(4):
                    self._producer.produce("orders", b"x" * 100, partition=partition)
            self._producer.flush(10)
            number += 1
            offsets = [TopicPartition("orders", index, 2 * number) for index in range(3)]
            self._consumer.commit(offsets=offsets, asynchronous=False)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("monitoring")
    with ExitStack() as stack:
        cluster = stack.enter_context(HeadraceCluster(directory / "cluster"))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        config = {"retention.ms": "3600000"}
        admin.create_topics([NewTopic("orders", 3, 3, config=config)])["orders"].result(30)
        stack.enter_context(Traffic(cluster.bootstrap))
        exporters = [stack.enter_context(_serving(registry)) for registry in (_job(), _operator())]
        targets = {
            "/metrics/summary": [f"{LOOPBACK}:{node.http_port}" for node in cluster.nodes],
            "/metrics": exporters,
        }
        running = stack.enter_context(Prometheus(directory, targets))
        wait_until(lambda: not running.targets_down(), 30, "targets")
        time.sleep(SETTLING_SECONDS)
        yield running


class _serving:  # noqa: N801 - a context manager that reads as a word
    """A registry over HTTP; its address."""

    def __init__(self, registry: Any) -> None:
        self._server = MetricsServer(registry, address=LOOPBACK, port=0)

    def __enter__(self) -> str:
        return self._server.url.removeprefix("http://").removesuffix("/metrics")

    def __exit__(self, *_: object) -> None:
        self._server.close()


def _job() -> Any:
    metrics = JobMetrics("cpu-load", "windows", trigger_interval_seconds=2.0)
    metrics.batch_finished(
        BatchFacts(
            batch_id=1,
            input_rows=40,
            output_rows=10,
            duration_seconds=1.5,
            watermark_seconds=time.time() - 10,
            state_rows=7,
            state_bytes=4096,
            phase_seconds={"addBatch": 1.2, "walCommit": 0.1},
        )
    )
    reached = {"group": 0, "topic": "orders", "partition": 0, "windows": 1}
    metrics.partitions_progressed([{**reached, "watermark_us": int((time.time() - 10) * 1e6)}])
    metrics.offsets_committed()
    metrics.lag({"orders": 3}, {"orders": 1.5})
    return metrics.registry


def _operator() -> Any:
    metrics = OperatorMetrics()
    GCCollector(registry=metrics.registry)
    metrics.is_leader.set(1)
    metrics.reconciliations.labels("Cluster", "success").inc()
    metrics.reconcile_seconds.labels("Cluster", "whole").observe(0.1)
    metrics.last_success.labels("Cluster", "default", "main").set(time.time())
    metrics.actions.labels("CreateTopic", "success").inc()
    metrics.watch_age.labels("Topic").set(0)
    register = Register()
    pending = {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": "Topic",
        "metadata": {"name": "orders", "namespace": "default"},
        "spec": {"clusterRef": {"name": "main"}},
    }
    register.upsert(parse_managed(pending))
    metrics.registry.register(ResourceCollector(Store(), register))
    metrics.count_write(Write(verb="apply", kind="Topic", status=200))
    return metrics.registry


def panels() -> list[Any]:
    return [
        pytest.param(panel, id=f"{path.stem}: {panel['title']}")
        for path in sorted(DASHBOARDS.glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
    ]


def filled_in(query: str) -> str:
    """Replace Grafana's variables as a dashboard that shows everything does."""
    for variable in ("namespace", "cluster", "topic", "group", "share", "job"):
        query = query.replace(f"${variable}", ".*")
    return sped_up(query.replace("$__rate_interval", "5m"))


@pytest.mark.parametrize("panel", panels())
def test_each_query_of_a_panel_returns_data(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    is_event_only = panel["description"].startswith("Empty while nothing")
    for target in panel["targets"]:
        found = prometheus.query(filled_in(target["expr"]))
        assert found or is_event_only, target["expr"]


def test_variables_of_dashboards_offer_something(prometheus: Prometheus) -> None:
    for path in sorted(DASHBOARDS.glob("*.json")):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            inner = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
            series, label = inner.rsplit(", ", 1)
            assert any(each["metric"].get(label) for each in prometheus.query(series)), inner


def test_rules_evaluate_without_errors_and_no_alert_fires_at_rest(prometheus: Prometheus) -> None:
    assert prometheus.rule_errors() == []
    firing = {
        each["metric"]["alertname"]
        for each in prometheus.query('ALERTS{alertstate="firing", severity!="info"}')
    }
    assert firing == set()


def test_recordings_say_what_the_group_does(prometheus: Prometheus) -> None:
    for rule in every_rule():
        if "record" in rule:
            assert prometheus.query(rule["record"]), rule["record"]
    of = '{consumergroup="readers", topic="orders"}'
    # Ever further behind, and moving: WARN.
    assert prometheus.value(f"headrace:consumergroup_status{of}") == 1
    assert prometheus.value(f"headrace:consumergroup_lag:sum{of}") > 0
    assert prometheus.value(f"headrace:consumergroup_drain_seconds{of}") > 0


def test_the_autoscalers_queries_return_one_number(prometheus: Prometheus) -> None:
    example = MANIFESTS / "autoscaling"
    [scaled] = yaml.safe_load_all((example / "scaled-object.yaml").read_text())
    for trigger in scaled["spec"]["triggers"]:
        query = trigger["metadata"]["query"].replace(
            'consumergroup="orders-app"', 'consumergroup="readers"'
        )
        value = prometheus.value(sped_up(query))
        assert value > 0
        assert float(trigger["metadata"]["threshold"]) > 0
    adapter = yaml.safe_load((example / "prometheus-adapter.yaml").read_text())
    [rule] = yaml.safe_load(adapter["data"]["config.yaml"])["externalRules"]
    query = (
        rule["metricsQuery"]
        .replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        .replace("<<.LabelMatchers>>", 'consumergroup="readers", topic="orders"')
        .replace("<<.GroupBy>>", "namespace")
    )
    assert prometheus.value(query) > 0


def test_the_dashboards_are_what_their_description_makes() -> None:
    spec = importlib.util.spec_from_file_location("make", DASHBOARDS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.dashboards()
    assert made == {path.stem: path.read_text() for path in DASHBOARDS.glob("*.json")}


def test_panels_do_not_overlap() -> None:
    for path in sorted(DASHBOARDS.glob("*.json")):
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text())["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells
