"""PostgreSQL in a pod of a lab: this machine's own server, in the image of the jobs.

A lab has no registry to pull an image from. Its nodes are this machine: the pod mounts /usr.
"""

import sysconfig
from pathlib import Path
from typing import Any, Self

from support.kube import apply, condition, get, kubectl
from support.processes import wait_until

_PASSWORD = "headrace"  # noqa: S105 - of a throwaway server
_START = """
set -e
if [ ! -f "$PGDATA/PG_VERSION" ]; then
  echo "$PGPASSWORD" > /data/password
  initdb --pgdata="$PGDATA" --username=postgres --auth=scram-sha-256 --pwfile=/data/password
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/data
"""


class KubePostgres:
    """A pod, and a Service, both called `postgres`."""

    def __init__(self, namespace: str, binaries: Path) -> None:
        """Let the namespace allow pods that mount folders of their node. `binaries`: below /usr."""
        self.namespace = namespace
        self._binaries = Path("/host") / binaries.relative_to("/usr")

    @property
    def dsn(self) -> str:
        """The connection string (libpq's) for pods of the namespace."""
        return f"host=postgres dbname=postgres user=postgres password={_PASSWORD}"

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        apply(self._pod(), self._service())
        wait_until(self._is_ready, 120, "PostgreSQL to answer")
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        kubectl(
            *("-n", self.namespace, "delete", "--wait=false", "--ignore-not-found"),
            *("pod/postgres", "service/postgres"),
        )

    def query(self, text: str) -> str:
        """Return what psql prints: a line a row, with | between the columns."""
        return self._run("psql", "--host=localhost", "--username=postgres", "-Atc", text)

    def crash(self) -> None:
        """End its processes without a checkpoint; its container is started again."""
        self._run("pg_ctl", "stop", "--mode=immediate", "--no-wait")

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._binaries / program), *arguments]
        return kubectl("-n", self.namespace, "exec", "postgres", "--", *command)

    def _is_ready(self) -> bool:
        return condition(get(self.namespace, "pod", "postgres")).get("status") == "True"

    def _pod(self) -> dict[str, Any]:
        # The image's libraries first: only what it lacks comes from this machine.
        folder = f"lib/{sysconfig.get_config_var('MULTIARCH')}"
        variables = {
            "LD_LIBRARY_PATH": f"/{folder}:/usr/{folder}:/host/{folder}",
            "PATH": f"{self._binaries}:/usr/bin:/bin",
            "PGDATA": "/data/cluster",
            "PGPASSWORD": _PASSWORD,
        }
        probe = {"exec": {"command": ["pg_isready", "--host=localhost"]}, "periodSeconds": 1}
        container = {
            "name": "postgres",
            "image": "headrace/jobs:0.1.0",
            "command": ["sh", "-c", _START],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "readinessProbe": probe,
            "volumeMounts": [
                {"name": "machine", "mountPath": "/host", "readOnly": True},
                {"name": "data", "mountPath": "/data"},
            ],
        }
        metadata = {"name": "postgres", "namespace": self.namespace, "labels": {"app": "postgres"}}
        volumes: list[dict[str, Any]] = [
            {"name": "machine", "hostPath": {"path": "/usr"}},
            {"name": "data", "emptyDir": {}},
        ]
        spec = {
            "containers": [container],
            "volumes": volumes,
            "terminationGracePeriodSeconds": 2,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _service(self) -> dict[str, Any]:
        metadata = {"name": "postgres", "namespace": self.namespace}
        spec = {"selector": {"app": "postgres"}, "ports": [{"port": 5432}]}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
