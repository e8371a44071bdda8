"""The brokers of a local cluster: their processes, ports and settings, and their start and stop.

Owns the processes and each broker's folder. The plan says which brokers there should be.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from headrace_operator.local.formation import form_cluster, has_metadata, may_form
from headrace_operator.local.health import wait_ready
from headrace_operator.local.ports import allocate_ports, load_ports, save_ports
from headrace_operator.local.processes import ProcessSpec, SupervisedProcess, log_tail
from headrace_operator.local.properties import (
    BrokerNode,
    Formation,
    bootstrap_servers,
    default_settings,
    render_broker_properties,
)
from headrace_operator.local.state import BrokerState
from headrace_operator.local.workloads import HEADRACE_COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.processes import ProcessEvent
    from headrace_operator.local.state import ClusterState
    from headrace_operator.plan import StartBroker

__all__ = ["BrokerNotReadyError", "LocalBrokers"]

READY_TIMEOUT_SECONDS = 30.0
# The exit status of `headrace broker` when its settings are wrong.
BAD_SETTINGS_STATUS = 2
PORT_USES = ("client", "controller", "http")


class BrokerNotReadyError(Exception):
    """A broker did not become ready; the message has the end of its log."""


class LocalBrokers:
    """Brokers as processes; those of earlier runs are known by id until they are removed."""

    def __init__(
        self,
        layout: ClusterLayout,
        state: ClusterState | None,
        on_event: Callable[[ProcessEvent], None],
    ) -> None:
        self.formation = Formation(
            cluster_id=state.cluster_id if state else "",
            brokers=state.formed_with if state else 0,
            is_formed=state.is_formed if state else False,
        )
        self._layout = layout
        self._on_event = on_event
        self._known = {broker.node_id: broker for broker in state.brokers} if state else {}
        self._nodes: dict[int, BrokerNode] = {}
        self._processes: dict[int, SupervisedProcess] = {}
        #: By running broker: the defaults that it was started with.
        self._defaults: dict[int, dict[str, str]] = {}

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients; empty before any broker was started."""
        return bootstrap_servers(self.nodes)

    @property
    def nodes(self) -> list[BrokerNode]:
        """The brokers that were started, by id."""
        return [self._nodes[node_id] for node_id in sorted(self._processes)]

    @property
    def processes(self) -> list[SupervisedProcess]:
        """Processes in the order in which they are stopped."""
        return [self._processes[node_id] for node_id in self._stop_order()]

    @property
    def states(self) -> list[BrokerState]:
        """What `state.json` keeps of each broker."""
        return [self._state_of(node_id) for node_id in sorted(self._known)]

    def is_running(self, node_id: int) -> bool:
        """Whether a broker's process runs now."""
        return node_id in self._processes and self._processes[node_id].is_running

    def log_of(self, node_id: int) -> Path:
        """The file with a broker's output."""
        return self._layout.log_directory / f"broker-{node_id}.log"

    async def start(self, actions: Sequence[StartBroker]) -> None:
        """Start brokers and wait until all are ready. Raises `BrokerNotReadyError`."""
        for action in actions:
            self._known[action.node_id] = BrokerState(
                node_id=action.node_id,
                pool=action.pool,
                roles=tuple(action.roles),
                config=dict(action.config),
                rack=action.rack,
            )
        self._form()
        emptied = self._emptied_controllers()
        self._lay_out_nodes()
        for action in actions:
            await self._launch(action.node_id)
        # All at once: with several controllers none is ready before a majority runs.
        try:
            await asyncio.gather(*(self._wait_ready(action.node_id) for action in actions))
        except BrokerNotReadyError as error:
            raise BrokerNotReadyError(f"{error}{self._advice(emptied)}") from error
        if not self.formation.is_formed:
            self.formation = replace(self.formation, is_formed=True)
            # A restarted process reads its file again, which then no longer names the voters.
            for node_id in self._processes:
                self._write_properties(node_id)

    async def stop(self, node_id: int) -> None:
        """Stop a broker for good. Its data is set aside, and its id is free again."""
        self._known.pop(node_id, None)
        process = self._processes.get(node_id)
        if process is not None:
            await process.stop()
            # Known until it is gone, so that a forced end also reaches it while it stops.
            del self._processes[node_id]
            _set_aside(self._nodes.pop(node_id).data_directory)
        brokers = sum("broker" in broker.roles for broker in self._known.values())
        self.formation = replace(
            self.formation, brokers=max(1, min(self.formation.brokers, brokers))
        )

    async def reconfigure(self, node_id: int, config: Mapping[str, str]) -> None:
        """Restart a broker with these settings. Raises `BrokerNotReadyError`."""
        self._known[node_id] = msgspec.structs.replace(self._known[node_id], config=dict(config))
        await self._processes[node_id].stop()
        await self._launch(node_id)
        await self._wait_ready(node_id)

    async def stop_all(self) -> None:
        """Stop all brokers, one after the other, controllers last.

        Each hands leadership to the remaining brokers, so clients notice nothing until the last
        one.
        """
        for node_id in self._stop_order():
            await self._processes[node_id].stop()
        self._processes.clear()

    def _stop_order(self) -> list[int]:
        order = sorted(self._processes, reverse=True)
        return sorted(order, key=lambda node_id: self._nodes[node_id].is_controller)

    def _state_of(self, node_id: int) -> BrokerState:
        node = self._nodes.get(node_id) if node_id in self._processes else None
        return msgspec.structs.replace(
            self._known[node_id],
            address=node.address if node else "",
            http=node.http_url if node else "",
            controller=node.controller_address if node and node.is_controller else "",
            outdated=self.outdated(node_id) if node else (),
        )

    def _form(self) -> None:
        brokers = sum("broker" in broker.roles for broker in self._known.values())
        directories = [self._data_directory(node_id) for node_id in sorted(self._known)]
        self.formation = form_cluster(self.formation, directories, brokers=brokers)

    def _emptied_controllers(self) -> list[int]:
        """Return the controllers of a formed cluster whose disk has no metadata log."""
        controllers = [each for each in self._known if "controller" in self._known[each].roles]
        empty = [each for each in controllers if not has_metadata(self._data_directory(each))]
        is_old = self.formation.is_formed or len(empty) < len(controllers)
        return sorted(empty) if is_old else []

    def _advice(self, emptied: Sequence[int]) -> str:
        if not emptied:
            return ""
        return (
            f"\n  the metadata log is gone from the disk of broker {', '.join(map(str, emptied))}."
            " Who lost it does not vote until the others let it, so that no majority of empty disks"
            " begins a cluster that has nothing. Put the data back, or, if none of it is wanted,"
            f" delete {self._layout.root}"
        )

    def outdated(self, node_id: int) -> tuple[str, ...]:
        """Return which defaults that a running broker was started with are outdated."""
        wanted, config = default_settings(self.formation), self._known[node_id].config
        return tuple(
            f"{name}: {value} -> {wanted[name]}"
            for name, value in self._defaults.get(node_id, {}).items()
            if value != wanted[name] and name not in config
        )

    def _data_directory(self, node_id: int) -> Path:
        return self._layout.broker_directory(node_id).resolve() / "data"

    def _lay_out_nodes(self) -> None:
        """Assign ports to every known broker: each one's settings name the voters by address."""
        node_ids = sorted(self._known.keys() - self._nodes.keys())
        names = [f"{node_id}.{use}" for node_id in node_ids for use in PORT_USES]
        remembered = load_ports(self._layout.ports_file)
        ports = allocate_ports(names, remembered=remembered, preferred={})
        save_ports(self._layout.ports_file, remembered | ports)
        for node_id in node_ids:
            record = self._known[node_id]
            self._nodes[node_id] = BrokerNode(
                node_id=node_id,
                pool=record.pool,
                roles=record.roles,
                client_port=ports[f"{node_id}.client"],
                controller_port=ports[f"{node_id}.controller"],
                http_port=ports[f"{node_id}.http"],
                data_directory=self._data_directory(node_id),
                rack=record.rack,
            )

    async def _launch(self, node_id: int) -> None:
        self._nodes[node_id].data_directory.mkdir(parents=True, exist_ok=True)
        properties = self._write_properties(node_id)
        self._defaults[node_id] = default_settings(self.formation)
        process = SupervisedProcess(
            ProcessSpec(
                name=f"broker-{node_id}",
                command=(*HEADRACE_COMMAND, "broker", str(properties)),
                log_path=self.log_of(node_id),
                final_statuses=frozenset({BAD_SETTINGS_STATUS}),
            ),
            self._on_event,
        )
        self._processes[node_id] = process
        await process.start()

    def _write_properties(self, node_id: int) -> Path:
        node, nodes = self._nodes[node_id], [self._nodes[each] for each in sorted(self._nodes)]
        controllers = [each.data_directory for each in nodes if each.is_controller]
        is_told = may_form(self.formation, node.data_directory, controllers)
        formation = replace(self.formation, is_formed=not is_told)
        properties = self._layout.broker_directory(node_id) / "broker.properties"
        config = self._known[node_id].config
        properties.write_text(render_broker_properties(node, nodes, config, formation))
        return properties

    async def _wait_ready(self, node_id: int) -> None:
        process = self._processes[node_id]
        try:
            await wait_ready(
                self._nodes[node_id].http_url,
                timeout_seconds=READY_TIMEOUT_SECONDS,
                # One restart may be bad luck (a port that was just taken), two are not.
                gave_up=lambda: process.is_over or process.restarts > 1,
            )
        except TimeoutError as error:
            raise BrokerNotReadyError(
                f"broker {node_id} did not become ready: {error}\n"
                f"  the end of {process.spec.log_path}:\n{log_tail(process.spec.log_path)}"
            ) from error


def _set_aside(data_directory: Path) -> None:
    """Move a removed broker's data aside, so that the next broker with its id starts empty."""
    number = 1
    while (aside := data_directory.with_name(f"data-removed-{number}")).exists():
        number += 1
    data_directory.rename(aside)
