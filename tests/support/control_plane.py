"""etcd and kube-apiserver as processes of a test's own: all that needs no pod runs on them.

The programs are those of KUBEBUILDER_ASSETS (`etcd`, `kube-apiserver`, as setup-envtest fetches
them), or the lab's (KUBELAB), or those on PATH. Nothing is shared with a cluster that is there.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
import yaml

from support.kube import ROOT, forget_reader, kubectl
from support.processes import LOOPBACK, ManagedProcess, free_port

_READY_SECONDS = 90.0
_SIGNED = (
    ("apiserver", "/CN=kube-apiserver"),
    ("admin", "/O=system:masters/CN=admin"),
)


def find_programs(folder: Path) -> tuple[list[str], list[str]] | None:
    """Return the commands of etcd and of kube-apiserver; None where they are not there."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    path = f"{assets}:{os.environ['PATH']}" if assets else os.environ["PATH"]
    etcd, apiserver = (shutil.which(name, path=path) for name in ("etcd", "kube-apiserver"))
    if etcd is None or not all(shutil.which(name) for name in ("kubectl", "openssl")):
        return None
    if apiserver is not None:
        return [etcd], [apiserver]
    packed = Path(os.environ.get("KUBELAB", "/nowhere")).parent / "bin" / "kube.zst"
    if not packed.exists() or shutil.which("zstd") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "kube"
    subprocess.run(["zstd", "-q", "-d", "-f", str(packed), "-o", str(program)], check=True)
    program.chmod(0o755)
    return [etcd], [str(program), "apiserver"]


def find_controllers(folder: Path) -> list[str] | None:
    """Return the command of the controller manager, after `find_programs`; None: there is none."""
    if (found := shutil.which("kube-controller-manager")) is not None:
        return [found]
    program = folder / "kube"
    return [str(program), "controller-manager"] if program.exists() else None


@contextmanager
def own_api_server(folder: Path, *controllers: str) -> Iterator[None]:
    """Let KUBECONFIG name a new API server that has Headrace's kinds; skip without the programs.

    `controllers`: those of Kubernetes that run beside it. The programs of setup-envtest have none.
    """
    if (programs := find_programs(folder / "programs")) is None:
        pytest.skip("NOT TESTED: no etcd and kube-apiserver (KUBEBUILDER_ASSETS, KUBELAB)")
    manager = find_controllers(folder / "programs") if controllers else []
    if manager is None:
        pytest.skip("NOT TESTED: no kube-controller-manager (KUBELAB)")
    plane = ControlPlane(folder / "plane", *programs, manager, controllers)
    with plane, pytest.MonkeyPatch.context() as patched:
        patched.setenv("KUBECONFIG", str(plane.kubeconfig))
        kubectl("apply", "--server-side", "-k", str(ROOT / "crds"))
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        forget_reader()
        try:
            yield
        finally:
            forget_reader()


class ControlPlane:
    """An API server with RBAC, and its etcd. `kubeconfig` is an administrator's."""

    def __init__(
        self,
        folder: Path,
        etcd: Sequence[str],
        apiserver: Sequence[str],
        manager: Sequence[str] = (),
        controllers: Sequence[str] = (),
    ) -> None:
        """`manager`: the controller manager's command; `controllers`: what it runs, by name."""
        self._folder = folder
        self._commands = etcd, apiserver
        self._manager, self._controllers = manager, controllers
        self._processes: list[ManagedProcess] = []
        self._port = free_port()
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sign()
        self._write_kubeconfig()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both."""
        for process in reversed(self._processes):
            process.stop()

    def _start(self) -> None:
        etcd, apiserver = self._commands
        clients, peers = (f"http://{LOOPBACK}:{free_port()}" for _ in range(2))
        files = self._folder
        self._run(
            "etcd",
            [*etcd, "--data-dir", str(files / "etcd"), "--unsafe-no-fsync"],
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )
        server = self._run(
            "apiserver",
            apiserver,
            f"--etcd-servers={clients}",
            f"--secure-port={self._port}",
            f"--bind-address={LOOPBACK}",
            f"--tls-cert-file={files / 'apiserver.crt'}",
            f"--tls-private-key-file={files / 'apiserver.key'}",
            f"--client-ca-file={files / 'ca.crt'}",
            f"--service-account-key-file={files / 'apiserver.key'}",
            f"--service-account-signing-key-file={files / 'apiserver.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            # Of which nobody makes one without the controller manager.
            "--disable-admission-plugins=ServiceAccount",
        )
        server.wait_ready(self._is_ready, _READY_SECONDS)
        if self._controllers:
            self._run(
                "controllers",
                self._manager,
                f"--kubeconfig={self.kubeconfig}",
                f"--controllers={','.join(self._controllers)}",
                "--leader-elect=false",
                f"--bind-address={LOOPBACK}",
                f"--secure-port={free_port()}",
            )

    def _run(self, name: str, command: Sequence[str], *arguments: str) -> ManagedProcess:
        process = ManagedProcess([*command, *arguments], self._folder / f"{name}.log")
        self._processes.append(process)
        return process

    def _is_ready(self) -> bool:
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "get", "--raw", "/readyz"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stdout.strip() == "ok"

    def _sign(self) -> None:
        def openssl(*arguments: str) -> None:
            done = subprocess.run(
                ["openssl", *arguments], cwd=self._folder, capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr

        new = ("-newkey", "rsa:2048", "-nodes")
        openssl("req", "-x509", *new, "-keyout", "ca.key", "-subj", "/CN=ca", "-out", "ca.crt")
        (self._folder / "names").write_text(f"subjectAltName=IP:{LOOPBACK},DNS:localhost")
        for name, subject in _SIGNED:
            openssl("req", *new, "-keyout", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
            openssl(
                *("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-days", "2"),
                *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"),
            )

    def _write_kubeconfig(self) -> None:
        cluster = {"server": f"https://{LOOPBACK}:{self._port}", "certificate-authority": "ca.crt"}
        user = {"client-certificate": "admin.crt", "client-key": "admin.key"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "own", "cluster": cluster}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "admin"}}],
            "current-context": "own",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
