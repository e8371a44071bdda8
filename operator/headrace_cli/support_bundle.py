"""What helps to find a problem in a namespace: objects, events and logs, as one archive.

Nothing is written to the cluster. Secrets are not read, and what may be one is left out.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from typing import TYPE_CHECKING

import yaml

from headrace_cli.redaction import redacted, redacted_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace_operator.kubernetes.api.client import KubernetesClient, Object

__all__ = ["collect_bundle", "write_bundle"]

KINDS = (
    ("headrace.dev/v1beta1", "Cluster"),
    ("headrace.dev/v1beta1", "Topic"),
    ("headrace.dev/v1beta1", "ConsumerGroup"),
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "PersistentVolumeClaim"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("events.k8s.io/v1", "Event"),
)
#: Only Headrace's own ConfigMaps: others may contain anything.
OURS = "app.kubernetes.io/managed-by=headrace"
#: What is read where an operator runs that serves the namespace from another one.
OPERATOR_KINDS = (("apps/v1", "Deployment"), ("v1", "Pod"))
OPERATOR = "app.kubernetes.io/name=headrace-operator"
OPERATOR_NAMESPACE = "headrace-system"
LOG_LINES = 5000


async def collect_bundle(
    client: KubernetesClient, namespace: str, operator_namespace: str | None = None
) -> dict[str, str]:
    """Return the files of the bundle by name. `problems.txt` lists what could not be read.

    The operator's namespace is looked for if it is not named. Raises KubernetesError if the API
    server does not answer at all.
    """
    problems: list[str] = []
    files = await _collect(client, namespace, dict.fromkeys(KINDS), problems)
    if operator_namespace is not None:
        elsewhere = {operator_namespace}
    else:
        elsewhere = await _find_operators(client, namespace, problems)
    for place in sorted(elsewhere - {namespace}):
        found = await _collect(client, place, dict.fromkeys(OPERATOR_KINDS, OPERATOR), problems)
        if not any(name.startswith("logs/") for name in found):
            problems.append(f"no log of an operator in the namespace {place} was read")
        files |= {f"operator/{place}/{name}": text for name, text in found.items()}
    if problems:
        files["problems.txt"] = redacted_text("\n".join(problems) + "\n")
    return files


async def _find_operators(
    client: KubernetesClient, namespace: str, problems: list[str]
) -> set[str]:
    """Return the namespaces of the operators that serve this one, as their Leases say."""
    from headrace_operator.kubernetes.api.client import KubernetesError
    from headrace_operator.kubernetes.neighbours import LEASE_LABEL, served_by

    try:
        leases = await client.list("coordination.k8s.io/v1", "Lease", None, f"{LEASE_LABEL}=true")
    except KubernetesError as error:
        problems.append(
            f"which operator serves {namespace} is not known,"
            f" {OPERATOR_NAMESPACE} was tried: {error}"
        )
        return {OPERATOR_NAMESPACE}
    return {lease["metadata"]["namespace"] for lease in leases if served_by(lease, namespace)}


async def _collect(
    client: KubernetesClient,
    namespace: str,
    kinds: Mapping[tuple[str, str], str | None],
    problems: list[str],
) -> dict[str, str]:
    """Return files of a namespace's objects and logs. `kinds`: with their label selectors."""
    from headrace_operator.kubernetes.api.client import KubernetesError

    files: dict[str, str] = {}
    for (api_version, kind), selector in kinds.items():
        try:
            found = await client.list(
                api_version, kind, namespace, OURS if kind == "ConfigMap" else selector
            )
        except KubernetesError as error:
            if not error.status:
                raise
            if not error.is_not_found:
                problems.append(f"{kind} in {namespace}: {error}")
            continue
        if found:
            files[f"{kind.lower()}.yaml"] = yaml.safe_dump_all(map(redacted, found))
        for pod in found if kind == "Pod" else ():
            files |= await _logs(client, pod, problems)
    return files


async def _logs(client: KubernetesClient, pod: Object, problems: list[str]) -> dict[str, str]:
    from headrace_operator.kubernetes.api.client import KubernetesError

    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    files = {}
    kinds_of_containers = ("initContainerStatuses", "containerStatuses")
    statuses = [pod.get("status", {}).get(each) or [] for each in kinds_of_containers]
    for status in itertools.chain(*statuses):
        name = status["name"]
        asked = {"container": name, "tailLines": str(LOG_LINES)}
        kinds = {"": asked}
        if status.get("restartCount"):
            kinds["-previous"] = {**asked, "previous": "true"}
        for suffix, query in kinds.items():
            try:
                text = await client.read_bytes(path, query, accept="*/*")
            except KubernetesError as error:
                problems.append(f"log of {metadata['name']}/{name}: {error}")
                continue
            files[f"logs/{metadata['name']}/{name}{suffix}.log"] = redacted_text(
                text.decode(errors="replace")
            )
    return files


def write_bundle(path: Path, files: dict[str, str]) -> None:
    """Write a .tar.gz with these files, under a folder of the archive's own name."""
    folder = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
