"""What helps to find a problem in a namespace: objects, events and logs, as one archive.

Nothing is written to the cluster. Secrets are not read, and values of environment variables with
secret-like names are left out.
"""

from __future__ import annotations

import io
import re
import tarfile
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_operator.kubernetes.api.client import KubernetesClient, Object

__all__ = ["collect_bundle", "redacted", "write_bundle"]

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
LOG_LINES = 5000
_HIDDEN = "(left out)"
_SECRET = re.compile(r"pass|secret|token|credential|key", re.IGNORECASE)


async def collect_bundle(client: KubernetesClient, namespace: str) -> dict[str, str]:
    """Return the files of the bundle by name. `problems.txt` lists what could not be read.

    Raises KubernetesError if the API server does not answer at all.
    """
    from headrace_operator.kubernetes.api.client import KubernetesError

    files: dict[str, str] = {}
    problems: list[str] = []
    for api_version, kind in KINDS:
        selector = OURS if kind == "ConfigMap" else None
        try:
            found = await client.list(api_version, kind, namespace, selector)
        except KubernetesError as error:
            if not error.status:
                raise
            if not error.is_not_found:
                problems.append(f"{kind}: {error}")
            continue
        if found:
            files[f"{kind.lower()}.yaml"] = yaml.safe_dump_all(map(redacted, found))
        for pod in found if kind == "Pod" else ():
            files |= await _logs(client, pod, problems)
    if problems:
        files["problems.txt"] = "\n".join(problems) + "\n"
    return files


async def _logs(client: KubernetesClient, pod: Object, problems: list[str]) -> dict[str, str]:
    from headrace_operator.kubernetes.api.client import KubernetesError

    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    files = {}
    for status in pod.get("status", {}).get("containerStatuses") or []:
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
            files[f"logs/{metadata['name']}/{name}{suffix}.log"] = text.decode(errors="replace")
    return files


def redacted(value: Any) -> Any:
    """Return an object without possible secrets and without irrelevant fields. Pure."""
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: redacted(each) for key, each in value.items() if key != "managedFields"}
    if isinstance(kept.get("value"), str) and _SECRET.search(str(kept.get("name", ""))):
        kept["value"] = _HIDDEN
    return kept


def write_bundle(path: Path, files: dict[str, str]) -> None:
    """Write a .tar.gz with these files, under a folder of the archive's own name."""
    folder = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
