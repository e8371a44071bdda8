"""An archive of the classes that Spark's drivers load, as in the jobs image: they start sooner.

    python -m support.shared_classes

makes it for this Java and this PySpark, by the image's own list, and keeps it beside the
connector's jars: a minute on two cores, after which a session starts in 5 s rather than 9. Tests
take it where it is. A JVM that it does not fit starts as it would without.
"""

import functools
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

_CLASSES = Path(__file__).parents[2] / "images" / "classes.lst.gz"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "classes"
_JARS = Path(pyspark.__file__).parent / "jars"
#: A line of a manifest has 72 bytes with its end (JAR file specification).
_WIDTH = 70


@functools.cache
def shared_class_options() -> tuple[list[str], str]:
    """Return arguments for spark-submit, and options for the driver's JVM; none without archive."""
    folder = _folder()
    if folder is None or not (folder / "classes.jsa").exists():
        return [], ""
    return (
        ["--driver-class-path", str(folder / "classpath.jar")],
        f"-XX:SharedArchiveFile={folder / 'classes.jsa'}",
    )


def _folder() -> Path | None:
    """Return where the archive of this Java and these jars is, or would be."""
    java = shutil.which("java")
    if java is None:
        return None
    facts = [subprocess.run([java, "-version"], capture_output=True, check=True).stderr]
    facts += [_CLASSES.read_bytes(), str(_JARS).encode()]
    facts += [f"{jar.name} {jar.stat().st_mtime_ns}".encode() for jar in sorted(_JARS.iterdir())]
    return _CACHE / hashlib.sha256(b"\n".join(facts)).hexdigest()[:16]


def main() -> None:
    """Make the archive unless it is there."""
    folder = _folder()
    if folder is None or (folder / "classes.jsa").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "jars").exists():
        (folder / "jars").symlink_to(_JARS)
    # Spark's launcher has this one first, too.
    names = sorted(
        (each.name for each in _JARS.glob("*.jar")),
        key=lambda name: (not name.startswith("slf4j-api-"), name),
    )
    _write_class_path(folder / "classpath.jar", [f"jars/{name}" for name in names])
    made = folder / f"classes-{os.getpid()}"
    with tempfile.NamedTemporaryFile() as classes:
        classes.write(gzip.decompress(_CLASSES.read_bytes()))
        classes.flush()
        command = ["java", "-Xshare:dump", f"-XX:SharedClassListFile={classes.name}"]
        command += [f"-XX:SharedArchiveFile={made}", "-cp", str(folder / "classpath.jar")]
        # What it says of classes that are gone is no error.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"no archive of classes: {done.stderr[-1000:]}")
    made.rename(folder / "classes.jsa")


def _write_class_path(path: Path, names: list[str]) -> None:
    text = f"Class-Path: {' '.join(names)}"
    lines = [text[:_WIDTH]]
    lines += [f" {text[at : at + _WIDTH - 1]}" for at in range(_WIDTH, len(text), _WIDTH - 1)]
    manifest = "\r\n".join(["Manifest-Version: 1.0", *lines, "", ""])
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), manifest)


if __name__ == "__main__":
    main()
