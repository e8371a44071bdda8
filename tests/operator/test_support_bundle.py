"""A bundle for those who help: what is in it, and what must not be."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from headrace_cli.support_bundle import redacted, write_bundle


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
