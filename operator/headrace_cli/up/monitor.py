"""Watches a running cluster from outside: results by a real consumer, lag by groups' offsets.

Blocking clients. The result watcher has its own thread and passes results to a callback.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.request
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace_cli.clients import Target, admin_client, quiet_kafka_logs
from headrace_cli.errors import CommandError
from headrace_cli.up.views import parse_result
from headrace_operator.lag import lag_seconds, oldest_unread
from headrace_operator.observe import list_offsets, observe_partitions
from headrace_operator.plan import ObservedGroup
from headrace_operator.plan.replicas import ReplicaCounts, count_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_cli.up.views import ResultRow
    from headrace_operator.plan import TopicPartition

__all__ = ["Monitor", "ResultWatcher", "Sample", "read_job_info", "read_job_metrics"]

POLL_MS = 500
# ListOffsets' special timestamp (KIP-79).
LATEST = -1
METRICS_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The brokers' state at one moment."""

    #: Records ever written to each topic: the sum of its partitions' end offsets.
    written: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    #: Groups with their committed offsets, the ends and the lag in seconds.
    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    #: Over all topics, including internal ones.
    replicas: ReplicaCounts = field(default_factory=ReplicaCounts)


class Monitor:
    """Takes samples over one connection, which is reopened after a failure."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._stack = contextlib.ExitStack()
        self._admin: Any = None
        self._ends: dict[TopicPartition, int] = {}

    def sample(self, topics: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Sample | None:
        """Sample topics, and groups over the topics that they read. None: no answer now."""
        from kafka.errors import KafkaError

        try:
            if self._admin is None:
                self._admin = self._stack.enter_context(
                    admin_client(Target(bootstrap_servers=self._bootstrap_servers))
                )
            return self._measure(topics, groups)
        except (CommandError, KafkaError, OSError):
            # A broker is restarting: the next sample finds it again.
            self.close()
            return None

    def close(self) -> None:
        """Close the connection."""
        self._admin = None
        with contextlib.suppress(CommandError):
            self._stack.close()
        self._stack = contextlib.ExitStack()

    def _measure(self, topics: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Sample:
        seen = observe_partitions(self._admin.describe_topics())
        wanted = [key for key in seen if key[0] in topics]
        led = [key for key in wanted if seen[key].leader >= 0]
        # A leaderless partition keeps its last known end.
        self._ends |= list_offsets(self._admin, dict.fromkeys(led, LATEST))
        ends = {key: self._ends.get(key, 0) for key in wanted}
        return Sample(
            written={
                topic: sum(end for key, end in ends.items() if key[0] == topic) for topic in topics
            },
            partitions={topic: sum(key[0] == topic for key in wanted) for topic in topics},
            groups=self._groups(groups, ends),
            replicas=count_replicas(seen),
        )

    def _groups(
        self, groups: Mapping[str, Sequence[str]], ends: Mapping[TopicPartition, int]
    ) -> dict[str, ObservedGroup]:
        found = {}
        for group, topics in groups.items():
            committed = {
                (partition.topic, partition.partition): offset.offset
                for partition, offset in self._admin.list_group_offsets(group)[group].items()
                if partition.topic in topics and offset.offset >= 0
            }
            found[group] = ObservedGroup(state="", offsets=committed, end_offsets=ends)
        oldest = oldest_unread(self._admin, found)
        now_ms = int(time.time() * 1000)
        return {
            name: replace(group, lag_seconds=lag_seconds(group, oldest[name], now_ms=now_ms))
            for name, group in found.items()
        }


class ResultWatcher:
    """Reads a topic from its end, as it is when the watcher starts."""

    def __init__(
        self, bootstrap_servers: str, topic: str, on_rows: Callable[[Sequence[ResultRow]], None]
    ) -> None:
        self.topic = topic
        self.count = 0
        self._bootstrap_servers = bootstrap_servers
        self._on_rows = on_rows
        self._stopped = threading.Event()
        self._consumer = self._open()
        self._thread = threading.Thread(target=self._read, name=f"read {topic}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; returns when the consumer is closed."""
        self._stopped.set()
        self._thread.join(timeout=10)

    def _open(self) -> Any:
        from kafka import KafkaConsumer, TopicPartition

        from headrace_cli.codecs import install_codecs

        quiet_kafka_logs()
        install_codecs()
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers.split(","),
            client_id="headrace-up",
            group_id=None,
            enable_auto_commit=False,
            allow_auto_create_topics=False,
        )
        indexes = consumer.partitions_for_topic(self.topic) or set()
        partitions = [TopicPartition(self.topic, index) for index in sorted(indexes)]
        consumer.assign(partitions)
        for partition, offset in consumer.end_offsets(partitions).items():
            consumer.seek(partition, offset)
        return consumer

    def _read(self) -> None:
        from kafka.errors import KafkaError

        while not self._stopped.is_set():
            try:
                batches = self._consumer.poll(timeout_ms=POLL_MS)
            except KafkaError:
                # A broker is restarting: the next poll finds it again.
                self._stopped.wait(POLL_MS / 1000)
                continue
            records = [record for batch in batches.values() for record in batch]
            self.count += len(records)
            rows = [row for record in records if (row := parse_result(record.value)) is not None]
            rows.sort(key=lambda row: row.order)
            if rows:
                self._on_rows(rows)
        self._consumer.close()


def read_job_metrics(url: str) -> dict[str, float]:
    """Read a job's series without labels, such as `headrace_job_batches_total`; {} if not served.

    Lines of a series with several label sets are summed.
    """
    values: dict[str, float] = {}
    for series, value in _job_series(url):
        name = series.partition("{")[0]
        values[name] = values.get(name, 0.0) + value
    return values


def read_job_info(url: str) -> dict[str, str]:
    """Read a job's declared properties: the labels of `headrace_job_info`; {} if not served."""
    for series, _ in _job_series(url):
        name, _, labels = series.partition("{")
        if name == "headrace_job_info":
            return dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return {}


def _job_series(url: str) -> list[tuple[str, float]]:
    try:
        with urllib.request.urlopen(  # noqa: S310 - our own loopback address
            url, timeout=METRICS_TIMEOUT_SECONDS
        ) as response:
            text: str = response.read().decode()
    except OSError:
        return []
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("headrace_job_")]
    return [(series, float(value)) for series, _, value in lines]
