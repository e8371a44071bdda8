"""What a node's metrics say, as prometheus-client's parser reads them."""

import http.client
from collections.abc import Iterable
from contextlib import suppress

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from support.clusters import ClusterNode
from support.processes import LOOPBACK, wait_until


def scrape(port: int, path: str = "/metrics") -> list[Sample]:
    """Return every sample; OSError where nobody answers."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.status == 200
        text = response.read().decode()
    finally:
        connection.close()
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def wait_metrics(*ports: int) -> None:
    """Wait until these nodes answer: a broker serves clients before its metrics."""
    for port in ports:
        wait_until(lambda port=port: _answers(port), 30, f"metrics at port {port}")


def _answers(port: int) -> bool:
    with suppress(OSError):
        return bool(scrape(port))
    return False


class Scrapes:
    """The samples of several nodes at one time; nodes that are down have none."""

    def __init__(self, nodes: Iterable[ClusterNode], path: str = "/metrics") -> None:
        self.by_node = {
            node.node_id: scrape(node.http_port, path) for node in nodes if node.is_running
        }

    @property
    def every(self) -> list[Sample]:
        return [sample for samples in self.by_node.values() for sample in samples]

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of a name on all nodes, where these labels hold."""
        return [
            sample.value
            for sample in self.every
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.values(name, **labels))

    def one(self, name: str, **labels: str) -> float:
        """Return the value where exactly one node must have it."""
        found = self.values(name, **labels)
        assert len(found) == 1, f"{name}{labels}: {found}"
        return found[0]
