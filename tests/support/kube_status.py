"""What tools that know only kstatus see of a resource, moment by moment.

The rules are kstatus' own for a custom resource (sigs.k8s.io/cli-utils, pkg/kstatus/status):
deletion, then generations, then `Reconciling` and `Stalled`, then `Ready`.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from support.kube import condition, get

_SAMPLE_SECONDS = 0.05


def kstatus(document: Mapping[str, Any]) -> str:
    """Return Terminating, InProgress, Failed or Current."""
    metadata, status = document["metadata"], document.get("status", {})
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return "InProgress"
    if condition(document, "Reconciling").get("status") == "True":
        return "InProgress"
    if condition(document, "Stalled").get("status") == "True":
        return "Failed"
    if condition(document, "Ready").get("status") in ("False", "Unknown"):
        return "InProgress"
    return "Current"


class Timeline:
    """Samples of a namespace, taken as fast as the API answers: Clusters first, then the pods."""

    def __init__(self, namespace: str) -> None:
        self.samples: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self._namespace = namespace
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            items = get(self._namespace, "clusters,pods")["items"]
            clusters = [each for each in items if each["kind"] == "Cluster"]
            if clusters:
                pods = [each for each in items if each["kind"] == "Pod"]
                self.samples.append((clusters[0], pods))
            time.sleep(_SAMPLE_SECONDS)

    def states(self) -> list[str]:
        """Return kstatus of each sample, without repetitions."""
        found: list[str] = []
        for cluster, _ in self.samples:
            if (state := kstatus(cluster)) not in found[-1:]:
                found.append(state)
        return found
