"""The operator's process: it connects informer, queue, lease, reconcilers and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import time
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace_operator.kubernetes.admins import Admins
from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.api.client import FencedError, KubernetesClient, KubernetesError
from headrace_operator.kubernetes.api.connection import Connection, find_connection
from headrace_operator.kubernetes.api.lease import REQUEST_SECONDS, Election
from headrace_operator.kubernetes.api.watches import SPARK_KINDS, run_watches, watched_kinds
from headrace_operator.kubernetes.brokers.backend import DEFAULT_IMAGE, BrokersOnKubernetes
from headrace_operator.kubernetes.freshness import PROBE_SECONDS, Freshness, Watching
from headrace_operator.kubernetes.informer import Informer, find_cluster, list_watched
from headrace_operator.kubernetes.metrics import OperatorMetrics
from headrace_operator.kubernetes.namespaces import Namespaces
from headrace_operator.kubernetes.neighbours import Neighbours, lease_metadata
from headrace_operator.kubernetes.optional_kinds import OptionalKinds
from headrace_operator.kubernetes.own_image import find_own_image
from headrace_operator.kubernetes.queue import WorkQueue
from headrace_operator.kubernetes.reached import ReachedBrokers, ReachedOrOwn
from headrace_operator.kubernetes.reconcile import (
    RESYNC_SECONDS_MAX,
    ClusterReconciler,
    Outcome,
    Surroundings,
)
from headrace_operator.kubernetes.register import Register
from headrace_operator.kubernetes.resource_metrics import ResourceCollector
from headrace_operator.kubernetes.spark.applications import SparkRunner, install_definition
from headrace_operator.kubernetes.statuses import StatusWriter
from headrace_operator.kubernetes.web import start_web
from headrace_operator.kubernetes.workloads import Workloads
from headrace_operator.plan import Problem, Waiting
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.queue import QueueKey
    from headrace_operator.kubernetes.seams import ApplicationRunner, BrokerBackend
    from headrace_operator.plan import Action

__all__ = ["OperatorConfig", "run_operator"]

LEASE_NAME = "headrace-operator"
WORKERS = 4
#: A pass that takes longer goes on beside the worker, which takes the next key: where an admission
#: webhook hangs, each of some Clusters' or jobs' passes takes ten seconds and more.
PATIENCE_SECONDS = 2.0
#: So many go on beside. Passes over Clusters that did not answer the last time, or are new, do so
#: from the beginning: each may wait for seconds. Surplus ones of these run a moment later.
BESIDE_AT_ONCE = 128
SILENT_AGAIN_SECONDS = 1.0
#: How often a runner of SparkApplications asks whether there is the kind, where there was none.
SPARK_SECONDS = 10.0
#: How many passes over a Cluster may fail in a row before its status says why: after half a minute
#: where the reason may pass, else after some seconds.
PASSING_UNSAID, FAILURES_UNSAID = 8, 3
_M_ARENA_MAX = -8

_log = structlog.get_logger("headrace.operator")


@dataclass(frozen=True, kw_only=True)
class OperatorConfig:
    """How the operator runs. No namespaces: all of them."""

    namespaces: Sequence[str] = ()
    is_spark_runner: bool = False
    host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from outside the pod
    port: int = 8080
    lease_namespace: str | None = None
    kubeconfig: Path | None = None
    #: Brokers outside of Kubernetes, by the Cluster's namespace and name.
    reached: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: How often watches are compared with lists.
    probe_seconds: float = PROBE_SECONDS
    #: The image of brokers whose Cluster names none; None: the operator's own.
    broker_image: str | None = None


def share_arenas() -> None:
    """Let all threads allocate from two arenas: each keeps the most that it ever had."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_M_ARENA_MAX, 2)


async def run_operator(config: OperatorConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises the exception that ended a part of it."""
    share_arenas()
    connection = find_connection(config.kubeconfig)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = OperatorMetrics()
    async with KubernetesClient(
        connection, on_request=metrics.count_request, timeout_seconds=REQUEST_SECONDS
    ) as plain:
        lease_namespace = config.lease_namespace or connection.default_namespace
        election = Election(
            plain,
            namespace=lease_namespace,
            name=LEASE_NAME,
            identity=f"{os.uname().nodename}_{uuid.uuid4().hex[:8]}",
            clock=time.monotonic,
            metadata=lease_metadata(config.namespaces),
        )
        async with KubernetesClient(
            connection,
            fence=election.check,
            on_write=metrics.count_write,
            on_request=metrics.count_request,
        ) as client:
            # Before anything is watched, by any replica: it creates the CRD or does nothing.
            with_spark = config.is_spark_runner and await install_definition(plain)
            own = config.broker_image or await find_own_image(plain, connection.default_namespace)
            config = replace(
                config, broker_image=own or DEFAULT_IMAGE, lease_namespace=lease_namespace
            )
            _log.info("brokers of new Clusters run", image=config.broker_image)
            operator = _Operator(config, connection, client, election, metrics)
            await operator.run(stop, with_spark=with_spark)


class _Operator:
    def __init__(
        self,
        config: OperatorConfig,
        connection: Connection,
        client: KubernetesClient,
        election: Election,
        metrics: OperatorMetrics,
    ) -> None:
        self._config = config
        self._connection = connection
        self._client = client
        self._election = election
        self._metrics = metrics
        self._is_synced = False
        self._freshness: Freshness | None = None
        store, register = Store(), Register()
        backend: BrokerBackend = ReachedOrOwn(
            ReachedBrokers(config.reached),
            BrokersOnKubernetes(client, store, image=config.broker_image or DEFAULT_IMAGE),
        )
        self._queue = WorkQueue(time.monotonic, random.Random())  # noqa: S311 - jitter
        self._admins = Admins(election.check)
        own = (config.lease_namespace or connection.default_namespace, LEASE_NAME)
        self._neighbours = Neighbours(client, own, time.monotonic, self._see_all)
        self._beside: set[asyncio.Task[None]] = set()
        self._statuses = StatusWriter(client, store, register, backend)
        self._reconciler = ClusterReconciler(
            Surroundings(
                register=register,
                clusters=lambda key: find_cluster(store, key),
                backend=backend,
                admins=self._admins,
                statuses=self._statuses,
                workloads=Workloads(client),
                namespaces=Namespaces(client, time.monotonic),
                on_action=self._on_action,
                serves=self._neighbours.serves,
            )
        )
        self._informer = Informer(store, register, self._queue, self._reconciler)
        self._store = store
        self._applications: ApplicationRunner = SparkRunner(client, store)
        metrics.registry.register(ResourceCollector(store, register))
        metrics.queue_depth.set_function(lambda: self._queue.depth)
        metrics.is_leader.set_function(lambda: election.is_leader)

    async def run(self, stop: asyncio.Event, *, with_spark: bool) -> None:
        config = self._config
        kinds = watched_kinds(with_spark=with_spark)
        optional = OptionalKinds(self._client, self._store, self._informer, config.namespaces)
        self._store.watched = frozenset(kind for _, kind in kinds)
        web = await start_web(
            config.host, config.port, self._metrics.registry, self._unhealthy, self._unready
        )
        tasks: list[asyncio.Task[None]] = []
        try:
            for obj in await list_watched(self._client, kinds, config.namespaces):
                self._informer.see(obj, is_gone=False)
            await optional.look()
            self._is_synced = True
            watching = run_watches(
                self._connection,
                config.namespaces,
                kinds,
                lambda obj, is_gone: self._informer.see(obj, is_gone=is_gone),
                stop,
            )
            self._freshness = Freshness(
                Watching(
                    client=self._client,
                    kinds=kinds,
                    namespaces=config.namespaces,
                    metrics=self._metrics,
                    known=self._informer.versions,
                    repair=self._informer.take_for_gone,
                ),
                time.monotonic,
                config.probe_seconds,
            )
            parts = [watching, self._election.run(), self._lead(), self._freshness.run()]
            parts.append(optional.run())
            if config.is_spark_runner and not with_spark:
                parts.append(self._until_spark_is_served())
            if not config.namespaces:
                await self._neighbours.look()
                parts.append(self._neighbours.run())
            tasks = [asyncio.create_task(each) for each in parts]
            tasks.append(asyncio.create_task(_until(stop)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stop.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._admins.close()
            await web.cleanup()

    async def _until_spark_is_served(self) -> None:
        """Return when there is the kind SparkApplication: kinds are watched from a start on."""
        is_there = False
        while not is_there:
            await asyncio.sleep(SPARK_SECONDS)
            with contextlib.suppress(KubernetesError):
                is_there = await self._client.serves(*SPARK_KINDS[0])
        _log.info("ends, to be started again: there is the kind SparkApplication now")

    async def _lead(self) -> None:
        """Work while the lease is held; start from the whole state each time it is acquired."""
        while True:
            self._election.changed.clear()
            if self._election.is_leader:
                self._informer.mark_all()
                workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
                self._beside.clear()
                changed = asyncio.create_task(self._election.changed.wait())
                try:
                    done, _ = await asyncio.wait(
                        [changed, *workers], return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        # A worker that ended would work for nobody, and nobody would know.
                        task.result()
                finally:
                    every = [changed, *workers, *self._beside]
                    for task in every:
                        task.cancel()
                    await asyncio.gather(*every, return_exceptions=True)
            else:
                await self._election.changed.wait()

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            kind, namespace, name = key
            if not self._neighbours.serves(namespace):
                # It is due again when that changes.
                self._queue.done(key)
            elif kind != "Cluster" or not self._reconciler.is_silent((namespace, name)):
                is_full = len(self._beside) >= BESIDE_AT_ONCE
                task = self._begin(key)
                await asyncio.wait([task], timeout=None if is_full else PATIENCE_SECONDS)
            elif len(self._beside) >= BESIDE_AT_ONCE:
                self._queue.done(key)
                self._queue.add_after(key, SILENT_AGAIN_SECONDS)
            else:
                self._begin(key)

    def _begin(self, key: QueueKey) -> asyncio.Task[None]:
        task = asyncio.create_task(self._reconcile(key))
        self._beside.add(task)
        # Also of one that is cancelled before it began.
        task.add_done_callback(partial(self._give_back, key))
        return task

    def _give_back(self, key: QueueKey, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        self._queue.done(key)

    async def _reconcile(self, key: QueueKey) -> None:
        kind, namespace, name = key
        began = time.monotonic()
        scope, result = "", "success"
        try:
            unreadable = self._informer.find_unreadable(key)
            if unreadable is not None:
                await self._statuses.refuse_unreadable(unreadable)
            if kind == "SparkApplication":
                outcome = await self._reconcile_application(namespace, name)
            elif kind != "Cluster":
                outcome = Outcome(
                    scope="unreadable",
                    again_seconds=RESYNC_SECONDS_MAX,
                    is_gone=unreadable is None,
                )
            else:
                outcome = await self._reconciler.reconcile((namespace, name))
            scope = outcome.scope
            if scope == "everything" and self._reconciler.is_silent((namespace, name)):
                # It waited for brokers that do not answer: that is no measure of our own work.
                scope = "silent"
            if outcome.is_converged and outcome.is_gone:
                self._queue.succeeded(key)
                self._metrics.forget(key)
            elif outcome.is_converged:
                self._queue.succeeded(key)
                self._metrics.last_success.labels(*key).set_to_current_time()
                self._queue.add_resync(key, outcome.again_seconds)
            else:
                result = "retry"
                self._queue.add_after(key, outcome.again_seconds)
        except FencedError:
            # The next leader starts from the whole state; it may be this process.
            result = "fenced"
            self._queue.retry(key)
        except KubernetesError as error:
            result = "error"
            delay = self._queue.retry(key)
            _log.warning("reconcile failed", key=key, error=str(error), retry_seconds=delay)
            await self._say_failed(key, str(error), is_passing=not error.is_refusal)
        except Exception as error:  # noqa: BLE001 - one key's bug must not stop the others
            result = "error"
            delay = self._queue.retry(key)
            _log.exception("reconcile failed", key=key, retry_seconds=delay)
            text = f"{type(error).__name__}: {error}; the operator's log has more"
            await self._say_failed(key, text, is_passing=False)
        self._metrics.reconciliations.labels(kind, result).inc()
        self._metrics.reconcile_seconds.labels(kind, scope).observe(time.monotonic() - began)

    async def _say_failed(self, key: QueueKey, message: str, *, is_passing: bool) -> None:
        """Say in a Cluster's status why passes over it fail again and again."""
        kind, namespace, name = key
        cluster = find_cluster(self._store, (namespace, name)) if kind == "Cluster" else None
        unsaid = PASSING_UNSAID if is_passing else FAILURES_UNSAID
        if cluster is None or self._queue.failures(key) <= unsaid:
            return
        failure = (Waiting if is_passing else Problem)(
            resource=cluster.key, reason=Reason.APPLY_FAILED, message=f"nothing is done: {message}"
        )
        try:
            await self._statuses.write_failed_pass(cluster, failure)
        except Exception as error:  # noqa: BLE001 - the pass itself is tried again in any case
            _log.warning("status not written", key=key, error=str(error))

    async def _reconcile_application(self, namespace: str, name: str) -> Outcome:
        application = self._store.get("SparkApplication", namespace, name)
        outcome = await self._applications.reconcile(namespace, name, application)
        again = outcome.look_again_seconds
        if again is None:
            return Outcome(
                scope="application",
                again_seconds=RESYNC_SECONDS_MAX,
                is_gone=application is None,
            )
        return Outcome(scope="application", again_seconds=again, is_converged=False)

    def _see_all(self) -> None:
        self._informer.mark_all()

    def _on_action(self, action: Action, failure: Failure | None) -> None:
        result = "failure" if failure else "success"
        self._metrics.actions.labels(type(action).__name__, result).inc()
        log = _log.warning if failure else _log.info
        log("action", action=action.describe(), resource=action.resource, failed=bool(failure))

    def _unhealthy(self) -> str:
        return self._freshness.problem if self._freshness else ""

    def _unready(self) -> str:
        return "" if self._is_synced else "the first list is not complete"


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
