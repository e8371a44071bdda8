"""A bundle for those who help: what is in it, and what must not be."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace_cli.redaction import HIDDEN, redacted, redacted_text
from headrace_cli.support_bundle import KINDS, collect_bundle, write_bundle
from headrace_operator.kubernetes.api.client import KubernetesClient
from headrace_operator.kubernetes.api.connection import Connection

#: The secret of this file: it must be nowhere in an archive.
MARKER = "Xq7MARKERz"


def test_what_sounds_like_a_secret_is_left_out() -> None:
    environment = [{"name": "DB_PASSWORD", "value": "x"}, {"name": "LEVEL", "value": "info"}]
    pod = {"metadata": {"managedFields": [1]}, "spec": {"containers": [{"env": environment}]}}
    found = redacted(pod)
    assert found["metadata"] == {}
    values = [each["value"] for each in found["spec"]["containers"][0]["env"]]
    assert values == ["(left out)", "info"]


def test_the_archive_has_a_folder_of_its_own(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b.tar.gz", {"pod.yaml": "a: b\n", "logs/p/c.log": "said\n"})
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        assert archive.getnames() == ["b/logs/p/c.log", "b/pod.yaml"]
        file = archive.extractfile("b/pod.yaml")
        assert file is not None
        assert file.read() == b"a: b\n"


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "headrace_cli", "support-bundle", str(tmp_path / "b.tar.gz")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "set KUBECONFIG" in ran.stderr


def test_a_real_namespace_is_collected(tmp_path: Path) -> None:
    if "KUBECONFIG" not in os.environ:
        pytest.skip("NOT TESTED: no KUBECONFIG, there is nothing to collect")
    assert shutil.which("kubectl")
    path = tmp_path / "b.tar.gz"
    command = [sys.executable, "-m", "headrace_cli", "support-bundle", "-n", "default"]
    ran = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    with tarfile.open(path) as archive:
        # The API server's own Service is in every cluster.
        assert "b/service.yaml" in archive.getnames()


PROPERTIES = f"""\
spark.executor.instances=2
spark.hadoop.fs.s3a.secret.key={MARKER}
spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net {MARKER} and {MARKER}
spark.driver.extraJavaOptions=-Da=b -Djavax.net.ssl.trustStorePassword={MARKER} -Dc=d
spark.kubernetes.driverEnv.DATABASE_URL=postgres://u:{MARKER}/{MARKER}@h:5432/db
sasl.jaas.config=org.apache.kafka.ScramLoginModule required \\
  username="u" password="{MARKER}";
# an.old.password = {MARKER}
kept.in.the.end=yes
"""
DOCUMENT = yaml.safe_dump(
    {
        "kept": "yes",
        "passwords": [MARKER, MARKER],
        "credentials": {"alice": MARKER, "key": 7},
        "key": MARKER,
        "text": f"-----BEGIN RSA PRIVATE KEY-----\n{MARKER}\n-----END RSA PRIVATE KEY-----\n",
    }
)
BROKEN_DOCUMENT = f"a: b: c\nkept: yes\npassword: |\n  {MARKER}\n  {MARKER}\nlast: kept\n"
ARGUMENTS = [
    *("--level", "info", "--password", MARKER, f"--db-password={MARKER} and {MARKER}"),
    *("--conf", f"spark.hadoop.fs.s3a.secret.key={MARKER}", "--token", f"-{MARKER}"),
    f"psql --password {MARKER} -h db",
    f"export API_KEY='{MARKER} {MARKER}'; exec tool --secret-key \"{MARKER} {MARKER}\"",
    f"amqp://u:{MARKER}@h/v",
]
LOG = f"""\
12:00:01 connecting to postgres://u:{MARKER}@h:5432/db
12:00:02 to jdbc:postgresql://h/db?user=u&password={MARKER}&ssl=true
12:00:03 Authorization: Bearer {MARKER}
12:00:04 {{"level": "info", "password": "{MARKER} {MARKER}", "topic": "kept"}}
12:00:05 "{{\\"apiToken\\": \\"{MARKER} {MARKER}\\"}}"
12:00:06 fs.s3a.secret.key = {MARKER}
12:00:07 https://{MARKER}@github.com/a/b
12:00:08 run with --db-password '{MARKER} {MARKER}' and PGPASS: DB_PASS={MARKER}
12:00:09 https://a.blob.core.windows.net/c?sv=1&sig={MARKER}
12:00:10 oracle:{MARKER}@db:1521 eyJhbGciOiJI.{MARKER}.{MARKER}
12:00:11 pass=7 key=order-1 kept
-----BEGIN PRIVATE KEY-----
{MARKER}
-----END PRIVATE KEY-----
12:00:12 image registry:5000/a@sha256:0123 kept
"""


def variables(name: str = "env") -> dict[str, Any]:
    return {
        name: [
            {"name": "DB_PASSWORD", "value": MARKER},
            {"name": "DATABASE_URL", "value": f"postgres://u:{MARKER}@h"},
            {"name": "OPTIONS", "value": f"-Dx.secret={MARKER} --password {MARKER}"},
            {"name": "LEVEL", "value": "kept"},
            {"name": "FILE", "value": PROPERTIES},
        ]
    }


def everywhere(name: str) -> dict[str, Any]:
    """Return an object with the marker in every place where secrets are found."""
    pod = {
        "containers": [
            {
                "name": "c",
                "args": ARGUMENTS,
                "command": ["sh", "-c", f"tool --password {MARKER}"],
                **variables(),
                "livenessProbe": {
                    "httpGet": {"httpHeaders": [{"name": "Authorization", "value": MARKER}]}
                },
            }
        ],
        "volumes": [{"name": "v", "secret": {"secretName": "kept-name"}}],
        "tolerations": [{"key": "kept-key", "operator": "Exists"}],
    }
    document = {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": name,
            "annotations": {
                "example.org/token": MARKER,
                "example.org/copy": json.dumps({"env": variables("e"), "a": {"password": MARKER}}),
            },
            "managedFields": [{"manager": MARKER}],
        },
        "spec": {
            "sparkConf": {"spark.hadoop.fs.s3a.secret.key": MARKER, "key": MARKER, "pwd": 1},
            "driver": {"envVars": {"DB_PASSWORD": MARKER, "URL": f"x://u:{MARKER}@h"}},
            "arguments": ARGUMENTS,
            "config": {"ssl.keystore.password": MARKER},
            "template": {"spec": pod},
            **pod,
        },
        "data": {
            "spark.properties": PROPERTIES,
            "document.yaml": DOCUMENT,
            "document.json": json.dumps(yaml.safe_load(DOCUMENT)),
            "broken.yaml": BROKEN_DOCUMENT,
            "password": MARKER,
        },
        "binaryData": {"keystore": MARKER},
        "note": LOG,
        "status": {
            "containerStatuses": [
                {
                    "name": "c",
                    "restartCount": 1,
                    "lastState": {"terminated": {"message": LOG}},
                }
            ]
        },
    }
    applied = json.dumps(document)
    annotations = document["metadata"]["annotations"]  # type: ignore[index] # it is a dict
    annotations["kubectl.kubernetes.io/last-applied-configuration"] = applied
    return document


class Server:
    """An API server that has one object of each kind; some namespaces may not be read."""

    def __init__(self, *, forbidden: tuple[str, ...] = ()) -> None:
        self._forbidden = forbidden
        self._plurals = {kind: f"{kind.lower()}s" for _, kind in KINDS} | {"Lease": "leases"}

    async def answer(self, request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        if request.path.endswith("/log"):
            return web.Response(text=LOG + parts[parts.index("namespaces") + 1])
        if len(parts) <= 3 and parts[-1].startswith("v1"):
            listed = [
                {"name": plural, "kind": kind, "namespaced": True}
                for kind, plural in self._plurals.items()
            ]
            return web.json_response({"resources": listed})
        place = parts[parts.index("namespaces") + 1] if "namespaces" in parts else "*"
        if place in self._forbidden:
            refusal = {"reason": "Forbidden", "message": f"{place} is not yours: token={MARKER}"}
            return web.json_response(refusal, status=403)
        return web.json_response({"metadata": {}, "items": self._items(parts[-1], place)})

    def _items(self, plural: str, place: str) -> list[dict[str, Any]]:
        if plural == "leases":
            return [
                {
                    "metadata": {
                        "namespace": namespace,
                        "name": "headrace-operator",
                        "annotations": {"headrace.dev/serves": serves},
                    }
                }
                for namespace, serves in (("operators", "*"), ("others", "others"))
            ]
        found = everywhere(f"{plural}-{place}")
        found["metadata"]["namespace"] = place
        return [found]


def collected(server: Server, tmp_path: Path) -> dict[str, str]:
    """Collect a bundle, and return what its archive has."""

    async def collect() -> dict[str, str]:
        app = web.Application()
        app.router.add_get("/{path:.*}", server.answer)
        async with TestServer(app) as running:
            connection = Connection(server=str(running.make_url("")).rstrip("/"))
            async with KubernetesClient(connection) as client:
                return await collect_bundle(client, "n")

    write_bundle(tmp_path / "b.tar.gz", asyncio.run(collect()))
    found = {}
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        for name in archive.getnames():
            file = archive.extractfile(name)
            assert file is not None
            found[name.removeprefix("b/")] = file.read().decode()
    return found


def test_a_secret_is_nowhere_in_the_archive(tmp_path: Path) -> None:
    files = collected(Server(), tmp_path)
    for _, kind in KINDS:
        assert f"{kind.lower()}.yaml" in files
    for name, text in files.items():
        lines = [line for line in text.splitlines() if MARKER in line]
        assert not lines, f"{name}: {lines}"
    pods, logs = files["pod.yaml"], files["logs/pods-n/c.log"]
    for kept in ("kept-name", "kept-key", "kept.in.the.end", "last: kept", "info", "LEVEL"):
        assert kept in pods, kept
    assert "12:00:11 pass=7 key=order-1 kept" in logs
    assert "12:00:12 image registry:5000/a@sha256:0123 kept" in logs
    assert "-h db" in pods


def test_the_log_of_an_operator_elsewhere_is_collected(tmp_path: Path) -> None:
    files = collected(Server(), tmp_path)
    assert files["operator/operators/logs/pods-operators/c.log"].endswith("operators")
    assert "operator/operators/deployment.yaml" in files
    assert not [name for name in files if "others" in name]
    assert "problems.txt" not in files


def test_what_could_not_be_read_is_said(tmp_path: Path) -> None:
    files = collected(Server(forbidden=("*", "headrace-system")), tmp_path)
    problems = files["problems.txt"]
    assert "which operator serves n is not known, headrace-system was tried" in problems
    assert "Pod in headrace-system: Forbidden" in problems
    assert "no log of an operator in the namespace headrace-system was read" in problems
    assert MARKER not in problems


def test_what_is_left_out_of_a_long_line_takes_no_time() -> None:
    for word in ("a-", "a:", "a://", "token", "--token", "'", '\\"'):
        assert redacted_text(word * 20_000 + " = b").endswith(("b", HIDDEN))
    assert redacted(["--password", "x", "y"]) == ["--password", HIDDEN, "y"]
