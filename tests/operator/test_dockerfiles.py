"""The Dockerfile of broker and operator, built by buildah and run. The jobs' is built by hand.

It starts from a Debian that is made here, so that no container registry is needed.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.images import ROOT, build_images, oci

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BASE, IMAGE = "localhost/headrace-base:test", "localhost/headrace:test"
CERTIFICATES = "/usr/local/share/ca-certificates"


def run(*command, **environment):
    """Return what a program printed; fail with its last words where it did not end well."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture
def buildah(tmp_path):
    """Return buildah with a storage of its own, and the base image in it."""
    if not os.environ.get("HEADRACE_TEST_DOCKERFILES"):
        pytest.skip("NOT TESTED: it takes minutes, and Debian's mirrors; make dockerfiles")
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"NOT TESTED: building by Dockerfile takes root and {' '.join(missing)}")

    def call(*arguments):
        storage = ("--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run"))
        return run("buildah", *storage, *arguments, BUILDAH_ISOLATION="chroot")

    mirrors = (
        f"deb {build_images.MIRROR} {build_images.SUITE} main",
        f"deb {build_images.SECURITY_MIRROR} {build_images.SUITE}-security main",
    )
    # What this machine trusts beside Debian's list (a proxy, say), the build has to trust, too.
    trusted = map(str, Path(CERTIFICATES).glob("*.crt"))
    pip = "[global]\\ncert = /etc/ssl/certs/ca-certificates.crt"
    hooks = (
        f"--customize-hook=mkdir -p $1{CERTIFICATES}; printf '{pip}\\n' >$1/etc/pip.conf",
        *(f"--customize-hook=copy-in {each} {CERTIFICATES}" for each in trusted),
    )
    bootstrap = ("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase")
    run(*bootstrap, *hooks, build_images.SUITE, str(tmp_path / "layer.tar"), *mirrors)
    layer = oci.read_layer(tmp_path / "layer.tar")
    settings = {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["bash"]}
    oci.write_image(tmp_path / "base.tar", name=BASE, layers=[layer], settings=settings)
    call("tag", call("pull", "--quiet", f"oci-archive:{tmp_path / 'base.tar'}").strip(), BASE)
    yield call
    call("rm", "--all")
    call("rmi", "--all", "--force")


def test_the_dockerfile_makes_the_image_that_the_script_makes(buildah):
    build = ("build", "--quiet", "--build-arg", f"BASE={BASE}", "-f", "images/Dockerfile.headrace")
    buildah(*build, "-t", IMAGE, ".")
    container = buildah("from", IMAGE).strip()
    settings = build_images.IMAGES["headrace"].settings
    form = "{{.OCIv1.Config.User}} {{index .OCIv1.Config.Entrypoint 0}}"
    described = buildah("inspect", "--type", "image", "--format", form, IMAGE)
    user = build_images.IMAGES["headrace"].user
    assert described.split() == [user, *settings["Entrypoint"]]

    def inside(*command):
        return buildah("run", container, "--", *command)

    # The command as a pod would call it, as its user, who may write nowhere but in /tmp.
    assert "broker" in inside(*settings["Entrypoint"], "headrace", "--help")
    assert "usage" in inside(*settings["Entrypoint"], "operator", "--help").lower()
    assert inside("id", "-u").strip() == user.partition(":")[0]
    search = "find /opt /usr /etc -xdev -type f -writable 2>/dev/null || true"
    assert inside("sh", "-c", search) == ""
    assert inside("sh", "-c", "command -v gcc cc pip || true") == ""
