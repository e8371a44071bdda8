"""A network of the test's own: a namespace for each broker, a switch, and rules that drop packets.

Brokers get addresses out of the range for benchmarks (RFC 2544) on a bridge in a namespace of its
own, so no rule or bridge of this machine is touched. The clients, in the test's process, reach all
of them by one more leg. Packets are dropped where they arrive, one direction at a time; nothing is
refused without an answer, as with a broken switch.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.clusters import ClusterNode
from support.headrace_cluster import HeadraceCluster, HeadraceNode

_SUBNET = "198.18.{third}"
_PORT, _CONTROLLER_PORT = 9092, 9093
CLIENTS = 254
"""The last byte of the clients' address; a broker's is its node id."""


def can_make_networks() -> bool:
    """Whether this process may make namespaces, and the tools are there."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "iptables"))):
        return False
    name = f"headrace-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
    if made.returncode == 0:
        _run("ip", "netns", "del", name)
    return made.returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Network:
    """The namespaces and what is cut between them. Hosts are numbers: node ids, and CLIENTS."""

    def __init__(self, size: int) -> None:
        self._prefix = f"hr{os.getpid()}"
        self._subnet = _SUBNET.format(third=os.getpid() % 256)
        self._hosts = range(1, size + 1)
        self._switch = f"{self._prefix}-switch"

    def address(self, host: int) -> str:
        return f"{self._subnet}.{host}"

    def namespace(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def make(self) -> None:
        """Make everything, with all connected."""
        _run("ip", "netns", "add", self._switch)
        self._inside(self._switch, "ip", "link", "add", "bridge", "type", "bridge")
        self._inside(self._switch, "ip", "link", "set", "bridge", "up")
        for host in self._hosts:
            namespace = self.namespace(host)
            _run("ip", "netns", "add", namespace)
            self._inside(namespace, "ip", "link", "set", "lo", "up")
            self._connect(host, namespace)
        self._connect(CLIENTS, None)

    def _connect(self, host: int, namespace: str | None) -> None:
        leg, port = f"{self._prefix}l{host}", f"port{host}"
        _run(
            *("ip", "link", "add", leg, "type", "veth"),
            *("peer", "name", port, "netns", self._switch),
        )
        self._inside(self._switch, "ip", "link", "set", port, "master", "bridge", "up")
        if namespace is not None:
            _run("ip", "link", "set", leg, "netns", namespace)
        address = ["ip", "addr", "add", f"{self.address(host)}/24", "dev", leg]
        for command in (address, ["ip", "link", "set", leg, "up"]):
            if namespace is None:
                _run(*command)
            else:
                self._inside(namespace, *command)

    def remove(self) -> None:
        """Remove everything; the legs go with their namespaces."""
        for name in (*map(self.namespace, self._hosts), self._switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    @staticmethod
    def _inside(namespace: str, *command: str) -> None:
        _run("ip", "netns", "exec", namespace, *command)

    def drop(self, source: int, destination: int) -> None:
        """Lose all packets from one host to a broker; the other direction is as it was."""
        self._rule("-A", source, destination)

    def _rule(self, action: str, source: int, destination: int) -> None:
        self._inside(
            self.namespace(destination),
            *("iptables", "-w", action, "INPUT", "-s", self.address(source), "-j", "DROP"),
        )

    def cut(self, one: Iterable[int], other: Iterable[int]) -> None:
        """Lose all packets between two groups, in both directions."""
        others = list(other)
        for host in one:
            for peer in others:
                self.drop(host, peer)
                self.drop(peer, host)

    def isolate(self, host: int) -> None:
        """Cut a broker off from everybody, clients included."""
        self.cut([host], [peer for peer in self._hosts if peer != host])
        self.drop(CLIENTS, host)

    def heal(self) -> None:
        """Lose nothing any more."""
        for host in self._hosts:
            self._inside(self.namespace(host), "iptables", "-w", "-F", "INPUT")


class _NetworkedNode(HeadraceNode):
    """A broker in a namespace of its own."""

    def __init__(self, node_id: int, directory: Path, network: Network) -> None:
        super().__init__(node_id, directory)
        self._namespace, self._address = network.namespace(node_id), network.address(node_id)

    @property
    def bootstrap(self) -> str:
        return f"{self._address}:{_PORT}"

    @property
    def controller_address(self) -> str:
        return f"{self._address}:{_CONTROLLER_PORT}"

    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self._namespace, *super().command()]


class NetworkedCluster(HeadraceCluster):
    """Brokers that reach one another only through a `Network`."""

    def __init__(self, directory: Path, network: Network, size: int = 3) -> None:
        self.network = network
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        super().__init__(directory, size, {"replica.selector.class": selector})
        for node in self.nodes:
            node.settings["broker.rack"] = f"rack-{node.node_id}"

    def _node(self, number: int, directory: Path) -> ClusterNode:
        return _NetworkedNode(number, directory, self.network)

    @contextmanager
    def asked_without(self, *nodes: ClusterNode) -> Iterator[None]:
        """Ask the other nodes only who leads: these have not heard of the change."""
        self.not_asked = nodes
        try:
            yield
        finally:
            self.not_asked = ()


@contextmanager
def networked_cluster(directory: Path, size: int = 3) -> Iterator[NetworkedCluster]:
    """Yield a running cluster in a network of its own."""
    network = Network(size)
    try:
        network.make()
        with NetworkedCluster(directory, network, size) as cluster:
            yield cluster
    finally:
        network.remove()
