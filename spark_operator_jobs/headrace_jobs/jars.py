"""The JVM jars of Spark's Kafka connector: resolved and verified before a Spark session starts.

Owns the one set of versions that works with PySpark 4.3, and the places to look for the files.
Spark could resolve packages itself while it starts, but then a missing jar is a Java stack trace;
here it is one message that says what to do. Every file, from whatever place, is checked against a
SHA-256 below.

`spark-sql-kafka-0-10` was released up to 4.2.0 and its token provider only as 4.0.0; together they
work with PySpark 4.2 and 4.3 (stream, batch, headers, sink).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace_jobs import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["KAFKA_CONNECTOR_JARS", "Jar", "JarError", "JarPlaces", "main", "resolve"]

IMAGE_DIRECTORY = Path("/opt/headrace/jars")
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
DOWNLOAD_ATTEMPTS = 4
DOWNLOAD_TIMEOUT_SECONDS = 60.0
MVN_TIMEOUT_SECONDS = 300.0

_log = structlog.get_logger(__name__)


class JarError(Exception):
    """A jar was not found; the message names it, the searched places and what to do."""


@dataclass(frozen=True, kw_only=True)
class Jar:
    """One jar by its Maven coordinates, and the SHA-256 of its bytes."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name that Maven gives the file."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        """`group:artifact:version`."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def maven_path(self) -> str:
        """The file's path in any Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


KAFKA_CONNECTOR_JARS = (
    Jar(
        group="org.apache.spark",
        artifact="spark-sql-kafka-0-10_2.13",
        version="4.2.0",
        sha256="64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        group="org.apache.spark",
        artifact="spark-token-provider-kafka-0-10_2.13",
        version="4.0.0",
        sha256="f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        group="org.apache.kafka",
        artifact="kafka-clients",
        version="3.9.2",
        sha256="014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        group="org.apache.commons",
        artifact="commons-pool2",
        version="2.13.1",
        sha256="f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)


@dataclass(frozen=True, kw_only=True)
class JarPlaces:
    """The places of jars, in this order: cache, image, local repository, `mvn`, download."""

    cache: Path
    image: Path
    local_repository: Path
    mvn: str | None
    repository_url: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JarPlaces:
        """Read `HEADRACE_JARS`, `HEADRACE_MAVEN_REPOSITORY`, `HOME` and `PATH`."""
        home = Path(environment.get("HOME") or Path.home())
        return cls(
            cache=Path(environment.get("HEADRACE_JARS") or home / ".cache/headrace/jars"),
            image=IMAGE_DIRECTORY,
            local_repository=home / ".m2/repository",
            mvn=shutil.which("mvn", path=environment.get("PATH")),
            repository_url=environment.get("HEADRACE_MAVEN_REPOSITORY") or MAVEN_CENTRAL,
        )


def resolve(
    places: JarPlaces | None = None, jars: Sequence[Jar] = KAFKA_CONNECTOR_JARS
) -> tuple[Path, ...]:
    """Return the paths of these jars; fetch those that are missing.

    Raises `JarError`.
    """
    places = places or JarPlaces.from_environment(os.environ)
    found = {jar: _find_local(jar, places) for jar in jars}
    missing = [jar for jar, path in found.items() if path is None]
    attempts: list[str] = []
    for fetch in (_fetch_with_mvn, _download):
        if missing:
            try:
                found.update(fetch(missing, places, attempts))
            except OSError as error:
                attempts.append(f"the cache cannot be written: {error}")
            missing = [jar for jar, path in found.items() if path is None]
    if missing:
        raise JarError(_explain(missing, places, attempts))
    return tuple(path for path in found.values() if path is not None)


def _find_local(jar: Jar, places: JarPlaces) -> Path | None:
    cached = places.cache / jar.file_name
    for path in (cached, places.image / jar.file_name):
        if _is_intact(path, jar):
            return path
    in_repository = places.local_repository / jar.maven_path
    if not _is_intact(in_repository, jar):
        return None
    try:
        return _keep(jar, places, partial(shutil.copyfile, in_repository))
    except OSError:
        # A cache that is not writable must not hide a jar that exists.
        return in_repository


def _fetch_with_mvn(
    missing: Sequence[Jar], places: JarPlaces, attempts: list[str]
) -> dict[Jar, Path]:
    if places.mvn is None:
        attempts.append("mvn: not on PATH")
        return {}
    _log.info("fetching jars with mvn", jars=[jar.coordinates for jar in missing])
    with tempfile.TemporaryDirectory(prefix="headrace-jars-") as scratch:
        folder = Path(scratch)
        (folder / "pom.xml").write_text(_pom(missing))
        command = [places.mvn, "-B", "-q", "dependency:copy-dependencies"]
        try:
            done = subprocess.run(  # noqa: S603 - mvn found on PATH, arguments are ours
                [*command, "-DoutputDirectory=jars"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=MVN_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            attempts.append(f"mvn ({places.mvn}): {error}")
            return {}
        if done.returncode != 0:
            attempts.append(f"mvn ({places.mvn}): {_first_error(done.stdout + done.stderr)}")
        fetched = {}
        for jar in missing:
            source = folder / "jars" / jar.file_name
            if _is_intact(source, jar):
                fetched[jar] = _keep(jar, places, partial(shutil.copyfile, source))
            elif source.is_file():
                attempts.append(f"mvn: {jar.file_name} has another SHA-256 than the pinned one")
        return fetched


def _download(missing: Sequence[Jar], places: JarPlaces, attempts: list[str]) -> dict[Jar, Path]:
    fetched = {}
    for jar in missing:
        url = f"{places.repository_url.rstrip('/')}/{jar.maven_path}"
        _log.info("downloading jar", jar=jar.coordinates, url=url)
        try:
            content = _get(url)
        except (OSError, ValueError, http.client.HTTPException) as error:
            attempts.append(f"{url}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() != jar.sha256:
            attempts.append(f"{url}: another SHA-256 than the pinned one")
            continue
        fetched[jar] = _keep(jar, places, partial(_write_bytes, content))
    return fetched


def _get(url: str) -> bytes:
    """Read a URL; transient failures are retried with a growing delay."""
    if not url.startswith(("https://", "http://")):
        raise ValueError("HEADRACE_MAVEN_REPOSITORY must be an http(s) address")
    for attempt in range(DOWNLOAD_ATTEMPTS):
        try:
            with urllib.request.urlopen(  # noqa: S310 - the scheme is checked above
                url, timeout=DOWNLOAD_TIMEOUT_SECONDS
            ) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            is_final = error.code < 500 and error.code not in (408, 429)  # noqa: PLR2004 - HTTP's
            error.close()
            if is_final or attempt == DOWNLOAD_ATTEMPTS - 1:
                raise
        except (OSError, http.client.HTTPException):
            if attempt == DOWNLOAD_ATTEMPTS - 1:
                raise
        time.sleep(0.5 * 2**attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _keep(jar: Jar, places: JarPlaces, write: Callable[[Path], object]) -> Path:
    """Put a jar into the cache by one rename, so that no process ever sees half of it."""
    places.cache.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=places.cache, prefix=f".{jar.artifact}-")
    os.close(handle)
    unfinished = Path(name)
    try:
        write(unfinished)
        unfinished.chmod(0o644)
        return unfinished.replace(places.cache / jar.file_name)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_bytes(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return False
    if digest != jar.sha256:
        _log.warning("jar has another SHA-256 than the pinned one, not used", path=str(path))
        return False
    return True


def _pom(jars: Sequence[Jar]) -> str:
    """Write a project that depends on exactly these jars: PySpark ships their dependencies."""
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for jar in jars
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId>"
        "<artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "ERROR" in line]
    return (lines or output.splitlines() or ["failed without a word"])[0][:300]


def _explain(missing: Sequence[Jar], places: JarPlaces, attempts: Sequence[str]) -> str:
    names = ", ".join(jar.coordinates for jar in missing)
    looked_for = [
        f"cache {places.cache}",
        f"image folder {places.image}",
        f"local Maven repository {places.local_repository}",
        *attempts,
    ]
    places_text = "\n".join(f"  - {place}" for place in looked_for)
    return (
        f"Spark's Kafka connector is incomplete: {names} not found. Looked in:\n{places_text}\n"
        f"Either let this machine reach Maven Central (or set HEADRACE_MAVEN_REPOSITORY to a "
        f"mirror's address, or put mvn on PATH) and run `python -m headrace_jobs.jars`,\n"
        f"or copy {', '.join(jar.file_name for jar in missing)} into {places.cache} "
        f"(HEADRACE_JARS names another folder)."
    )


def main() -> int:
    """Resolve the jars and print their paths, one a line."""
    logs.configure()
    try:
        paths = resolve()
    except JarError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 1
    for path in paths:
        print(path)  # noqa: T201 - a command line
    return 0


if __name__ == "__main__":
    sys.exit(main())
