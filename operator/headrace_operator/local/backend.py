"""The local backend: carries out a plan's actions on brokers and applications as processes.

It owns the child processes, their files and `state.json`. It decides nothing: the plan says which
brokers and applications should run, and `headrace_operator.apply` handles topics and groups.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from headrace_operator.local.brokers import BrokerNotReadyError, LocalBrokers
from headrace_operator.local.ports import allocate_ports, load_ports, save_ports
from headrace_operator.local.processes import ProcessSpec, SupervisedProcess
from headrace_operator.local.state import (
    ApplicationState,
    ClusterState,
    ProcessIdentity,
    load_state,
    observed_of,
    save_state,
)
from headrace_operator.local.workloads import (
    LocalCommand,
    NotLocalError,
    Surroundings,
    deployment_command,
    spark_command,
)
from headrace_operator.plan import (
    ReconfigureBroker,
    StartApplication,
    StartBroker,
    StopApplication,
    StopBroker,
)
from headrace_operator.resources import SparkApplication

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.processes import ProcessEvent
    from headrace_operator.local.properties import BrokerNode
    from headrace_operator.plan import Action, Application, Key, Observed

__all__ = ["BrokerNotReadyError", "LocalBackend"]

# A Spark driver finishes its batch and stops its JVM; a broker flushes and writes its clean marker.
SPARK_STOP_GRACE_SECONDS = 30.0
# A job of Headrace's own writes it when its session has started.
_PAGES_ADDRESS_FILE = "spark-ui.address"


@dataclass(kw_only=True)
class _RunningApplication:
    resource: Application
    fingerprint: str
    process: SupervisedProcess
    metrics: str | None = None


class LocalBackend:
    """Brokers and applications of one cluster on this machine."""

    def __init__(
        self,
        *,
        cluster: str,
        layout: ClusterLayout,
        on_event: Callable[[ProcessEvent], None],
        extra_arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`extra_arguments`: added to Deployments by the `headrace` subcommand that they run."""
        self.cluster = cluster
        self.layout = layout
        self._on_event = on_event
        self._extra_arguments = extra_arguments or {}
        state = load_state(layout.state_file)
        self._brokers = LocalBrokers(layout, state, self._changed)
        self._applications: dict[Key, _RunningApplication] = {}
        # By application: the fingerprint of a spec that cannot run here, and the reason.
        self._skipped: dict[Key, tuple[str, str]] = {}

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; empty before any broker was started."""
        return self._brokers.bootstrap_servers

    @property
    def nodes(self) -> list[BrokerNode]:
        """The brokers that were started, by id."""
        return self._brokers.nodes

    @property
    def applications(self) -> Mapping[Key, SupervisedProcess]:
        """Processes of applications."""
        return {key: running.process for key, running in self._applications.items()}

    def is_broker_running(self, node_id: int) -> bool:
        """Whether a broker's process runs now."""
        return self._brokers.is_running(node_id)

    @property
    def skipped(self) -> Mapping[Key, str]:
        """Applications that cannot run on this machine, and why."""
        return {key: reason for key, (_, reason) in self._skipped.items()}

    def log_of(self, process_name: str) -> Path:
        """The file with a child's output."""
        return self.layout.log_directory / f"{process_name}.log"

    def observe(self) -> Observed:
        """Brokers, including those of earlier runs, and applications.

        An application that ended for good, or cannot run here, counts as running: starting it again
        would change nothing.
        """
        return observed_of(self._state())

    async def perform(
        self, actions: Sequence[Action], applications: Mapping[Key, Application]
    ) -> None:
        """Carry out actions on brokers and applications. Raises `BrokerNotReadyError`."""
        started = [action for action in actions if isinstance(action, StartBroker)]
        if started:
            await self._brokers.start(started)
        for action in actions:
            match action:
                case StopBroker(node_id=node_id):
                    await self._brokers.stop(node_id)
                case ReconfigureBroker(node_id=node_id, config=config):
                    await self._brokers.reconfigure(node_id, config)
                case StartApplication(resource=key):
                    await self._start_application(action, applications[key])
                case StopApplication(resource=key):
                    await self._stop_application(key)
                case _:
                    pass
        self.save()

    async def stop_applications(self) -> list[str]:
        """Stop jobs, then producers: a job reads the rest next time. Returns names."""
        order = sorted(
            self._applications.values(),
            key=lambda running: not isinstance(running.resource, SparkApplication),
        )
        for running in order:
            await self._stop_application(running.resource.key)
        return [running.resource.metadata.name for running in order]

    async def stop_brokers(self) -> None:
        """Stop all brokers, controllers last."""
        await self._brokers.stop_all()
        self.save()

    def kill(self) -> None:
        """End every child now."""
        for process in self._processes():
            process.kill()

    def save(self) -> None:
        """Write `state.json`, so that other commands find the running processes."""
        save_state(self.layout.state_file, self._state())

    def _state(self) -> ClusterState:
        running = [process for process in self._processes() if process.is_running]
        applications = {
            key: ApplicationState(
                kind=key[0],
                namespace=key[1],
                name=key[2],
                fingerprint=running_application.fingerprint,
                metrics=running_application.metrics,
            )
            for key, running_application in self._applications.items()
        }
        for key, (fingerprint, _) in self._skipped.items():
            applications[key] = ApplicationState(
                kind=key[0], namespace=key[1], name=key[2], fingerprint=fingerprint
            )
        return ClusterState(
            cluster=self.cluster,
            cluster_id=self._brokers.formation.cluster_id,
            formed_with=self._brokers.formation.brokers,
            is_formed=self._brokers.formation.is_formed,
            bootstrap_servers=self.bootstrap_servers,
            up=ProcessIdentity.of("up", os.getpid()) if self.nodes else None,
            brokers=self._brokers.states,
            applications=list(applications.values()),
            processes=[process.identity for process in running if process.identity is not None],
        )

    def metrics_of(self, key: Key) -> str | None:
        """The address of an application's metrics, if it has any."""
        running = self._applications.get(key)
        return running.metrics if running else None

    def spark_pages_of(self, key: Key) -> str | None:
        """The address of Spark's own pages of a running job, where they are on."""
        running = self._applications.get(key)
        if running is None or running.metrics is None or not running.process.is_running:
            return None
        path = self.layout.jobs_directory / running.resource.metadata.name / _PAGES_ADDRESS_FILE
        try:
            return path.read_text().strip() or None
        except FileNotFoundError:
            return None

    def _processes(self) -> list[SupervisedProcess]:
        """Children in the order in which they are stopped."""
        return [
            *(running.process for running in self._applications.values()),
            *self._brokers.processes,
        ]

    async def _start_application(self, action: StartApplication, resource: Application) -> None:
        key = resource.key
        await self._stop_application(key)
        name = process_name(resource)
        surroundings = self._surroundings(name)
        try:
            local = self._command(resource, surroundings)
        except NotLocalError as reason:
            self._skipped[key] = (action.fingerprint, str(reason))
            return
        is_spark = isinstance(resource, SparkApplication)
        process = SupervisedProcess(
            ProcessSpec(
                name=name,
                command=local.command,
                environment=local.environment,
                log_path=self.log_of(name),
                restart=local.restart,
                stop_grace_seconds=SPARK_STOP_GRACE_SECONDS,
            ),
            self._changed,
        )
        await process.start()
        url = f"http://127.0.0.1:{surroundings.metrics_port}/metrics" if is_spark else None
        self._applications[key] = _RunningApplication(
            resource=resource, fingerprint=action.fingerprint, process=process, metrics=url
        )

    def _command(self, resource: Application, surroundings: Surroundings) -> LocalCommand:
        if isinstance(resource, SparkApplication):
            manifest = self.layout.jobs_directory / f"{resource.metadata.name}.yaml"
            manifest.parent.mkdir(parents=True, exist_ok=True)
            manifest.write_text(yaml.safe_dump(resource.document, sort_keys=False))
            return spark_command(resource, manifest, surroundings)
        return deployment_command(resource, surroundings, extra=self._extra_arguments)

    def _surroundings(self, name: str) -> Surroundings:
        port_name = f"{name}.metrics"
        remembered = load_ports(self.layout.ports_file)
        ports = allocate_ports([port_name], remembered=remembered, preferred={})
        save_ports(self.layout.ports_file, remembered | ports)
        return Surroundings(
            cluster=self.cluster,
            bootstrap_servers=self.bootstrap_servers,
            directory=self.layout.jobs_directory.resolve(),
            metrics_port=ports[port_name],
        )

    async def _stop_application(self, key: Key) -> None:
        self._skipped.pop(key, None)
        running = self._applications.get(key)
        if running is not None:
            # Known until it is gone, so that a forced end also reaches it while it stops.
            await running.process.stop()
            del self._applications[key]

    def _changed(self, event: ProcessEvent) -> None:
        self.save()
        self._on_event(event)


def process_name(resource: Application) -> str:
    """Return the name of an application's process: a job and a producer may share a name."""
    prefix = "job-" if isinstance(resource, SparkApplication) else ""
    return f"{prefix}{resource.metadata.name}"
