"""Commits a job's progress to its consumer group, and measures the lag at the same time.

Owns one thread and one admin client. Committing must never fail or slow the query: the query only
leaves the newest offsets here and continues. The thread commits them with bounded retries; a commit
that it gives up is counted, and the next batch's commit supersedes it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as ClientTopicPartition

from headrace_jobs.progress.generations import RESET_NOTE, Reset
from headrace_jobs.progress.offsets import LagClock, TopicPartition, lag_records
from headrace_jobs.progress.stored import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace_jobs.progress.drivers import DriverEpoch
    from headrace_jobs.progress.metrics import JobMetrics

__all__ = ["CommitError", "GroupClient", "GroupProgress"]

COMMIT_ATTEMPTS = 4
RETRY_SECONDS = 0.25
SAMPLE_INTERVAL_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class CommitError(Exception):
    """The group did not take the offsets; it may on the next attempt."""


class GroupClient:
    """The few calls that a job makes about its group and topics. Blocking."""

    def __init__(self, bootstrap_servers: str, *, client_id: str, timeout_ms: int = 5_000) -> None:
        """No connection is made before the first call."""
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers.split(","),
            "client_id": client_id,
            "request_timeout_ms": timeout_ms,
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": 1_000,
        }
        self._admin: Any = None

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of the existing ones of these topics."""
        described = self._call(lambda admin: admin.describe_topics(list(topics)))
        return {
            topic["name"]: len(topic["partitions"])
            for topic in described
            if topic["error_code"] == 0
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of these topics, by name; a broker before 2.8 has none."""
        described = self._call(lambda admin: admin.describe_topics(list(topics)))
        found = {topic["name"]: str(topic.get("topic_id") or "") for topic in described}
        return {name: id_ for name, id_ in found.items() if id_.strip("0-")}

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        *,
        earliest: bool = False,
        with_open_transactions: bool = False,
    ) -> dict[TopicPartition, int]:
        """Return where partitions end for a job: before what is open. Or where they begin."""
        spec = OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST
        isolation = "read_uncommitted" if with_open_transactions else "read_committed"
        wanted = {ClientTopicPartition(*partition): spec for partition in partitions}
        if not wanted:
            return {}
        found = self._call(
            lambda admin: admin.list_partition_offsets(wanted, isolation_level=isolation)
        )
        return {TopicPartition(at.topic, at.partition): entry.offset for at, entry in found.items()}

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return each partition's first offset of this time or a later one, if it has one."""
        wanted = {ClientTopicPartition(*partition): timestamp_ms for partition in partitions}
        if not wanted:
            return {}
        found = self._call(lambda admin: admin.list_partition_offsets(wanted))
        return {
            TopicPartition(at.topic, at.partition): entry.offset
            for at, entry in found.items()
            if entry.offset >= 0
        }

    def max_message_bytes(self, topic: str) -> int:
        """Return the topic's `max.message.bytes`."""
        name = "max.message.bytes"
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})
        found = self._call(lambda admin: admin.describe_configs([resource], config_filter="all"))
        return int(found["topic"][topic][name]["value"])

    def resets(self, group: str) -> dict[TopicPartition, Reset]:
        """Return the group's positions set by a reset, in partitions without a later commit."""
        listed = self._call(lambda admin: admin.list_group_offsets({group: None}))
        return {
            TopicPartition(at.topic, at.partition): Reset(
                entry.offset, entry.metadata.removeprefix(RESET_NOTE)
            )
            for at, entry in listed.get(group, {}).items()
            if entry.offset >= 0 and (entry.metadata or "").startswith(RESET_NOTE)
        }

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed."""
        listed = self._call(lambda admin: admin.list_group_offsets({group: None}))
        return {
            TopicPartition(at.topic, at.partition): entry.offset
            for at, entry in listed.get(group, {}).items()
            if entry.offset >= 0
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's offsets. Raises `CommitError` if a partition refuses."""
        wanted = {
            ClientTopicPartition(*at): OffsetAndMetadata(value, "", -1)
            for at, value in offsets.items()
        }

        def alter(admin: Any) -> None:
            results = admin.alter_group_offsets(group, wanted)
            refused = {at: error.__name__ for at, error in results.items() if error.errno != 0}
            if refused:
                raise CommitError(f"group {group}: {refused}")

        self._call(alter)

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _call(self, function: Callable[[Any], Any]) -> Any:
        """Call the admin client. A client whose call failed is replaced.

        It refreshes its broker list only every five minutes: a client that started before all
        brokers were up would not find the others until then.
        """
        self._admin = admin = self._admin or KafkaAdminClient(**self._settings)
        try:
            return function(admin)
        except Exception:
            self.close()
            raise


class GroupProgress:
    """Follows one query: `processed` after each committed batch, `close` at its end."""

    def __init__(
        self,
        client: GroupClient,
        group: str,
        metrics: JobMetrics,
        driver: DriverEpoch | None = None,
    ) -> None:
        """`driver`: once another one has started on its checkpoint, the group is that one's."""
        self._driver = driver
        self._client = client
        self._group = group
        self._metrics = metrics
        self._lag_clock = LagClock()
        self._condition = threading.Condition()
        self._position: dict[TopicPartition, int] = {}
        self._is_pending = False
        self._is_closing = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="group-progress", daemon=True)

    def start(self, position: Mapping[TopicPartition, int]) -> None:
        """Start with the query's start position, which is committed at once.

        So the lag is visible before the first batch is done.
        """
        self.processed(position)
        self._thread.start()

    def processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below these offsets is processed. Returns at once."""
        if not offsets:
            return
        with self._condition:
            self._position.update(offsets)
            self._is_pending = True
            self._condition.notify()

    def follow(self, group: str) -> None:
        """Commit to another group from now on, beginning with the newest position."""
        with self._condition:
            self._group = group
            self._is_pending = bool(self._position)
            self._condition.notify()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Commit what is pending, then end. Waits no longer than the timeout."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._is_pending and not self._is_closing:
                    self._condition.wait(SAMPLE_INTERVAL_SECONDS)
                position = dict(self._position)
                is_pending, self._is_pending = self._is_pending, False
                is_closing = self._is_closing
            if is_pending:
                self._commit(position)
            self._measure_lag(position)
            if is_closing and not self._is_pending:
                return

    def _is_replaced(self) -> bool:
        """Whether a later driver has started: its group must not go back to where this one was."""
        if self._driver is None:
            return False
        try:
            self._driver.check()
        except FencedError:
            return True
        except OSError:
            pass  # a checkpoint that cannot be read fails the next batch, not this commit
        return False

    def _commit(self, position: Mapping[TopicPartition, int]) -> None:
        if self._is_replaced():
            return
        failure: Exception | None = None
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                self._client.commit(self._group, position)
            except (KafkaError, CommitError, OSError, RuntimeError, ValueError) as error:
                failure = error
                if attempt < COMMIT_ATTEMPTS - 1:
                    time.sleep(RETRY_SECONDS * 2**attempt)
            else:
                self._metrics.offsets_committed()
                if self._is_failing:
                    self._is_failing = False
                    _log.info("offsets are committed to the group again", group=self._group)
                return
        self._metrics.offset_commit_failed()
        if not self._is_failing:
            self._is_failing = True
            _log.warning(
                "offsets not committed to the group; every batch tries again",
                group=self._group,
                error=str(failure),
            )

    def _measure_lag(self, position: Mapping[TopicPartition, int]) -> None:
        # The query itself notices a missing broker; until then the lag keeps its last value.
        with contextlib.suppress(KafkaError, OSError, RuntimeError, ValueError):
            latest = self._client.end_offsets(position)
            now_seconds = time.monotonic()
            self._lag_clock.sample(latest, now_seconds=now_seconds)
            self._metrics.lag(
                lag_records(position, latest),
                self._lag_clock.lag_seconds(position, now_seconds=now_seconds),
            )
