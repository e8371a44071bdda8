"""Archives the classes that a Spark driver and its executors load: their JVMs start sooner.

    share_classes.py        in the image itself, or in a container made from it, as root

Writes two files beside itself: `classpath.jar`, which names Spark's jars in the order of their
names (`jars/*` has the order of the file system, and an archive is taken for one order alone), and
`classes.jsa`, application class-data sharing of the classes in `classes.lst.gz` (JEP 310). A JVM
takes the archive when it is of the same build, its class path begins with that jar, and no jar
changed; otherwise it starts as it would without, and says so once.

The list is what `-Xshare:off -XX:DumpLoadedClassList=FILE` writes in a driver and in an executor of
the example. Classes that are gone by then are left out.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLASS_PATH, ARCHIVE = HERE / "classpath.jar", HERE / "classes.jsa"
# The width of a manifest's line in bytes, without its end (JAR file specification).
_WIDTH = 70
# As images/oci.py gives it to every file: the archive remembers the time of each jar.
_EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1000000000"))


def main() -> None:
    """Write both files."""
    found = HERE.glob("venv/lib/python*/site-packages/pyspark/jars/*.jar")
    # Spark's launcher has this one first, too.
    jars = sorted(found, key=lambda path: (not path.name.startswith("slf4j-api-"), path.name))
    if not jars:
        sys.exit(f"share_classes: no jars of Spark under {HERE}")
    write_class_path([str(path.relative_to(HERE)) for path in jars])
    with tempfile.NamedTemporaryFile() as listed:
        listed.write(gzip.decompress((HERE / "classes.lst.gz").read_bytes()))
        listed.flush()
        subprocess.run(  # noqa: S603 - program and arguments are ours
            [
                *("java", "-Xshare:dump", f"-XX:SharedClassListFile={listed.name}"),
                *(f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable", "-Xlog:all=error:stderr"),
                *("-cp", str(CLASS_PATH)),
            ],
            check=True,
        )
    os.utime(ARCHIVE, (_EPOCH, _EPOCH))
    ARCHIVE.chmod(0o444)


def write_class_path(names: list[str]) -> None:
    """Write a jar whose manifest names others, relative to itself."""
    text = f"Class-Path: {' '.join(names)}"
    lines = [text[:_WIDTH]]
    lines += [f" {text[at : at + _WIDTH - 1]}" for at in range(_WIDTH, len(text), _WIDTH - 1)]
    manifest = "\r\n".join(["Manifest-Version: 1.0", *lines, "", ""])
    with zipfile.ZipFile(CLASS_PATH, "w") as jar:
        # A ZipInfo of its own has no time of now in it.
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), manifest)
    os.utime(CLASS_PATH, (_EPOCH, _EPOCH))
    CLASS_PATH.chmod(0o444)


if __name__ == "__main__":
    main()
