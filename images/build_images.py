"""Builds the images `headrace/headrace` and `headrace/jobs` without Docker.

    images/build headrace              writes build/images/headrace.tar, an OCI archive
    images/build headrace --load       and imports it into the cluster's container runtime
    images/build jobs --load
    images/build jobs --tree FOLDER --only code    what the Dockerfiles call: one part, as files

Debian's packages come first, then locked requirements, then our code as the last and only small
layer. All but that are kept in a cache and made again when what they are made from changes, so a
rebuild after a change of code takes seconds. What each image holds is listed beside it, as
CycloneDX (`build/images/headrace.cdx.json`).

Needs requirements/images.txt; and for the Debian layer and the archive of classes (see
share_classes.py) root, mmdebstrap and unshare.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from oci import Layer, epoch, pack_directory, read_layer, write_image
from tools import ROOT, require, run, say

VERSION = "0.1.0"
SUITE = "bookworm"
PYTHON_VERSION = "3.11"
MIRROR = "http://deb.debian.org/debian"
SECURITY_MIRROR = "http://deb.debian.org/debian-security"
HOME = "opt/headrace"
VENV = f"{HOME}/venv"
PACKAGES = f"{VENV}/lib/python{PYTHON_VERSION}/site-packages"
# libstdc++6 is what RE2 (google-re2) needs beside its wheel.
COMMON_DEBIAN = ("ca-certificates", "libstdc++6", "netbase", "python3", "tini", "tzdata")
# Nothing at run time reads these.
UNUSED = (
    *("pandas/tests", "numpy/*/tests", "pyarrow/tests", "pyarrow/include"),
    *("pyspark/examples", "pyspark/data", "pyspark/jars/connect-repl"),
)
# What archives the classes that JVMs load, and which; the jobs image has both.
SHARING = ("share_classes.py", "classes.lst.gz")
# Changed when the way from lock file to layer changes: then no old layer is taken from the cache.
RECIPE = "2"


@dataclass(frozen=True, kw_only=True)
class Image:
    """What makes one image different from the other."""

    name: str
    user: str
    account: str
    debian: tuple[str, ...]
    requirements: str
    add_code: Callable[[Path], None]
    settings: dict[str, Any]


def add_headrace(root: Path) -> None:
    """Put broker, operator and command line where pip would install them."""
    packages = root / PACKAGES
    for source in (
        "broker/headrace_broker",
        "operator/headrace_operator",
        "operator/headrace_cli",
    ):
        copy_package(ROOT / source, packages / Path(source).name)
    copy_tree(ROOT / "crds", packages / "headrace_operator/crds")
    add_metadata(packages)
    script = root / VENV / "bin/headrace"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        f"#!/{VENV}/bin/python\nfrom headrace_cli.main import main\n\nmain()\n", encoding="utf-8"
    )
    script.chmod(0o755)
    add_entrypoint(root, "headrace")


def add_jobs(root: Path) -> None:
    """Put the jobs, the connector's jars and the entrypoint where SparkApplications name them."""
    packages = root / PACKAGES
    copy_package(ROOT / "spark_operator_jobs/headrace_jobs", root / HOME / "headrace_jobs")
    packages.mkdir(parents=True, exist_ok=True)
    # A path file, not PYTHONPATH: Spark replaces the variable for the processes it starts.
    (packages / "headrace_jobs.pth").write_text(f"/{HOME}\n", encoding="utf-8")
    add_metadata(packages)
    jars, spark_jars = root / HOME / "jars", packages / "pyspark/jars"
    jars.mkdir(parents=True)
    spark_jars.mkdir(parents=True)
    command = [sys.executable, "-m", "headrace_jobs.jars"]
    environment = {"PYTHONPATH": str(ROOT / "spark_operator_jobs")}
    for path in run(command, capture=True, environment=environment).splitlines():
        shutil.copy(path, jars)
        # Driver and executors find the connector by themselves, whoever starts them.
        (spark_jars / Path(path).name).symlink_to(f"/{HOME}/jars/{Path(path).name}")
    (root / "opt/spark").symlink_to(f"/{PACKAGES}/pyspark")
    for name in SHARING:
        shutil.copy(ROOT / "images" / name, root / HOME)
    add_entrypoint(root, "jobs")


def add_entrypoint(root: Path, image: str) -> None:
    """Put the image's entrypoint where Spark's own images have theirs."""
    entrypoint = root / "opt/entrypoint.sh"
    shutil.copy(ROOT / f"images/{image}-entrypoint.sh", entrypoint)
    entrypoint.chmod(0o755)


def add_metadata(packages: Path) -> None:
    """Write what `importlib.metadata` reads."""
    metadata = packages / f"headrace-{VERSION}.dist-info/METADATA"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text(
        f"Metadata-Version: 2.4\nName: headrace\nVersion: {VERSION}\n"
        "License-Expression: Apache-2.0\n",
        encoding="utf-8",
    )


def copy_package(source: Path, target: Path) -> None:
    """Copy a package and compile it: a read-only root keeps no bytecode."""
    copy_tree(source, target)
    compile_bytecode(target, Path("/") / target.relative_to(target_root(target)))


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder without what Python and its tools left in it."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)


def target_root(path: Path) -> Path:
    """Return the image's root that holds `path`."""
    return next(parent for parent in path.parents if (parent / HOME).is_dir())


def compile_bytecode(folder: Path, installed: Path) -> None:
    """Compile for the image's Python. The files' time says nothing there, so it is not compared."""
    python = shutil.which(f"python{PYTHON_VERSION}")
    if sys.version_info[:2] == tuple(int(part) for part in PYTHON_VERSION.split(".")):
        python = sys.executable
    if python is None:
        say(f"no python{PYTHON_VERSION} here: the image starts without bytecode, more slowly")
        return
    run(
        [
            *(python, "-m", "compileall", "-q", "-f", "-j", "0"),
            *("--invalidation-mode", "unchecked-hash"),
            *("-s", str(folder), "-p", str(installed), str(folder)),
        ],
        may_fail=True,  # some packages ship files for other versions of Python
    )


PATH = f"/{VENV}/bin:/usr/local/bin:/usr/bin:/bin"
IMAGES = {
    "headrace": Image(
        name="headrace",
        user="10001:10001",
        account="headrace:x:10001:10001::/var/lib/headrace:/usr/sbin/nologin",
        debian=COMMON_DEBIAN,
        requirements="requirements/runtime.txt",
        add_code=add_headrace,
        settings={
            "Entrypoint": ["/opt/entrypoint.sh"],
            "Cmd": ["--help"],
            "Env": [f"PATH={PATH}", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"],
        },
    ),
    "jobs": Image(
        name="jobs",
        # Spark's own images and both Spark operators use 185.
        user="185:0",
        account="spark:x:185:0::/tmp:/usr/sbin/nologin",
        debian=(*COMMON_DEBIAN, "openjdk-17-jre-headless", "procps"),
        requirements="requirements/jobs.txt",
        add_code=add_jobs,
        settings={
            "Entrypoint": ["/opt/entrypoint.sh"],
            "Env": [
                f"PATH={PATH}:/opt/spark/bin",
                "SPARK_HOME=/opt/spark",
                "HEADRACE_JARS=/opt/headrace/jars",
                f"PYSPARK_PYTHON=/{VENV}/bin/python",
                f"PYSPARK_DRIVER_PYTHON=/{VENV}/bin/python",
                "PYTHONUNBUFFERED=1",
                "PYTHONDONTWRITEBYTECODE=1",
                "LANG=C.UTF-8",
            ],
        },
    ),
}


def debian_layer(image: Image, options: argparse.Namespace) -> Layer:
    """Make the root filesystem: Debian's essential packages and those named, with no apt."""
    inputs = [SUITE, *image.debian, image.account, options.mirror, options.security_mirror]

    def make(output: Path) -> None:
        require("mmdebstrap", "apt-get install mmdebstrap, or build images/Dockerfile.headrace")
        say("making the Debian layer (half a minute)")
        name = image.account.partition(":")[0]
        gid = image.account.split(":")[3]
        group = "" if gid == "0" else f"; echo {name}:x:{gid}: >>$1/etc/group"
        run(
            ["mmdebstrap", "--quiet", "--mode=root", "--variant=essential"]
            + [f"--include={','.join(image.debian)}"]
            + [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
            + ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
            # Installing Java makes links to its manual pages, and fails without their folder.
            + ["--setup-hook=mkdir -p $1/usr/share/man/man1"]
            + [f"--customize-hook=echo '{image.account}' >>$1/etc/passwd{group}"]
            + ["--customize-hook=rm -rf $1/var/lib/apt $1/var/cache/* $1/var/log/*"]
            + [SUITE, str(output), f"deb {options.mirror} {SUITE} main"]
            + [f"deb {options.security_mirror} {SUITE}-security main"],
            environment={"SOURCE_DATE_EPOCH": str(epoch())},
        )

    return cached(f"debian-{image.name}", inputs, make, options)


def requirements_layer(image: Image, options: argparse.Namespace) -> Layer:
    """Pack the virtual environment with the locked requirements."""
    lock = (ROOT / image.requirements).read_text(encoding="utf-8")

    def make(output: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            add_requirements(image, Path(scratch))
            pack_directory(Path(scratch), output)

    return cached(f"requirements-{image.name}", [lock, RECIPE, *UNUSED], make, options)


def add_requirements(image: Image, root: Path) -> None:
    """Install locked requirements into a virtual environment of the image's own Python."""
    say(f"installing {image.requirements}")
    packages = root / PACKAGES
    packages.mkdir(parents=True)
    run(
        [
            *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--link-mode=copy"),
            *("--require-hashes", "--system-certs", "--python-version", PYTHON_VERSION),
            *("--target", str(packages), "-r", str(ROOT / image.requirements)),
        ],
    )
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            shutil.rmtree(path)
    for path in tuple(packages.rglob("__pycache__")):
        shutil.rmtree(path)
    # The installer's own; everybody may write to it.
    (packages / ".lock").unlink(missing_ok=True)
    compile_bytecode(packages, Path("/") / PACKAGES)
    add_interpreter(root / VENV)


def add_interpreter(venv: Path) -> None:
    """Make what `python3 -m venv --without-pip` makes, without running the image's Python."""
    (venv / "bin").mkdir()
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(f"/usr/bin/python{PYTHON_VERSION}")
    (venv / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\n", encoding="utf-8"
    )


def code_layer(image: Image, options: argparse.Namespace) -> Layer:
    """Pack the working tree's code."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        add_code(image, root)
        return pack_directory(root, options.cache / f"code-{image.name}.tar")


def class_layer(layers: Sequence[Layer], options: argparse.Namespace) -> Layer:
    """Archive what drivers and executors load, by the image's own Java from its own files."""
    sources = [ROOT / "images" / name for name in SHARING]
    sources.append(ROOT / "spark_operator_jobs/headrace_jobs/jars.py")
    inputs = [layer.digest for layer in layers[:2]]
    inputs += [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]

    def make(output: Path) -> None:
        say("archiving classes (a minute)")
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as scratch:
            for layer in layers:
                run(["tar", "--extract", f"--file={layer.path}", f"--directory={whole}"])
            program = [f"/{VENV}/bin/python", f"/{HOME}/share_classes.py"]
            # The launcher of Java finds itself by /proc.
            apart = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={whole}/proc"]
            run([*apart, "chroot", whole, *program])
            made = Path(scratch) / HOME
            made.mkdir(parents=True)
            for name in ("classpath.jar", "classes.jsa"):
                shutil.move(Path(whole) / HOME / name, made)
            pack_directory(Path(scratch), output)

    return cached("classes-jobs", inputs, make, options)


def add_code(image: Image, root: Path) -> None:
    """Put the working tree's code where the image has it."""
    (root / HOME).mkdir(parents=True)
    image.add_code(root)


def cached(
    name: str, inputs: Sequence[str], make: Callable[[Path], None], options: argparse.Namespace
) -> Layer:
    """Return the layer made from `inputs`, which is made unless it is there."""
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    path = options.cache / f"{name}-{key}.tar"
    if not path.exists():
        unfinished = path.with_name(f"unfinished-{os.getpid()}-{path.name}")
        try:
            make(unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return read_layer(path)


def load(archive: Path) -> None:
    """Import into a container runtime: the one asked for, or those beside the cluster's file."""
    command = os.environ.get("HEADRACE_IMAGE_LOAD")
    if command is not None:
        run([*shlex.split(command), str(archive)])
        return
    require("ctr", "set HEADRACE_IMAGE_LOAD to what loads an archive (kind load image-archive)")
    sockets = find_sockets()
    if not sockets:
        sys.exit(
            "images/build: no container runtime found beside $KUBECONFIG or in /run: set"
            " KUBECONFIG, CONTAINERD_ADDRESS, or HEADRACE_IMAGE_LOAD to what loads an archive"
        )
    for path in sockets:
        address = ["--address", str(path)]
        run(["ctr", *address, "--namespace", "k8s.io", "images", "import", str(archive)])


def find_sockets() -> list[Path]:
    """Return the container runtimes' sockets: a lab of several nodes has one for each."""
    named = os.environ.get("CONTAINERD_ADDRESS")
    if named:
        return [Path(named)]
    found: list[Path] = []
    if kubeconfig := os.environ.get("KUBECONFIG"):
        beside = Path(kubeconfig).parent.glob("containerd*/containerd.sock")
        found = [path for path in sorted(beside) if path.is_socket()]
    usual = (Path("/run/containerd"), Path("/run/k3s/containerd"))
    return found or [path for each in usual if (path := each / "containerd.sock").is_socket()][:1]


PARTS: dict[str, Callable[[Image, Path], None]] = {
    "requirements": add_requirements,
    "code": add_code,
}


def main() -> None:
    """Build one image."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("image", choices=sorted(IMAGES))
    parser.add_argument(
        "--registry", default="", help="prefix of the name, such as r.example/team/"
    )
    parser.add_argument("--tag", default=VERSION)
    parser.add_argument("--output", type=Path, help="archive (default: build/images/IMAGE.tar)")
    parser.add_argument("--tree", type=Path, help="write files into this folder, and no image")
    parser.add_argument("--only", choices=sorted(PARTS), help="with --tree: one part")
    parser.add_argument("--load", action="store_true", help="import it (HEADRACE_IMAGE_LOAD, ctr)")
    parser.add_argument("--mirror", default=MIRROR, help="Debian's packages")
    parser.add_argument("--security-mirror", default=SECURITY_MIRROR)
    default_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--cache", type=Path, default=default_cache / "headrace/images")
    options = parser.parse_args()
    if options.tree is not None:
        for name in [options.only] if options.only else PARTS:
            PARTS[name](IMAGES[options.image], options.tree)
        return
    options.cache.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    image = IMAGES[options.image]
    make_layers = (debian_layer, requirements_layer, code_layer)
    layers = [make(image, options) for make in make_layers]
    if image.name == "jobs":
        layers.insert(2, class_layer(layers, options))
    name = f"{options.registry}headrace/{image.name}:{options.tag}"
    output = options.output or ROOT / f"build/images/{image.name}.tar"
    output.parent.mkdir(parents=True, exist_ok=True)
    settings = {**image.settings, "User": image.user, "WorkingDir": "/tmp"}  # noqa: S108 - writable
    digest = write_image(output, name=f"docker.io/{name}", layers=layers, settings=settings)
    # Here, since the stages of the Dockerfiles have no library for it.
    from sbom import describe, read_archive

    contents = describe(read_archive(output))
    output.with_suffix(".cdx.json").write_text(contents, encoding="utf-8")
    if options.load:
        load(output)
    megabytes = sum(layer.size for layer in layers) / 1e6
    say(f"{name} {digest[:19]} {megabytes:.0f} MB in {time.monotonic() - began:.1f} s: {output}")


if __name__ == "__main__":
    main()
