"""The connector's jars: from the first place that has them whole, or a message says why not."""

import hashlib
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace_jobs import jars
from headrace_jobs.jars import KAFKA_CONNECTOR_JARS, Jar, JarError, JarPlaces, resolve

CONTENT = b"a jar, for all that anybody checks"
JAR = Jar(
    group="org.example",
    artifact="thing",
    version="1.0",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
NOWHERE = "http://127.0.0.1:1/maven2"


@pytest.fixture
def places(tmp_path):
    return partial(
        JarPlaces,
        cache=tmp_path / "cache",
        image=tmp_path / "image",
        local_repository=tmp_path / "m2",
        mvn=None,
        repository_url=NOWHERE,
    )


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(jars, "DOWNLOAD_ATTEMPTS", 2)


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class Repository:
    """A Maven repository over HTTP that fails as often as the test says."""

    def __init__(self, root: Path) -> None:
        self.requests: list[str] = []
        self.failures = 0
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                if outer.failures > 0:
                    outer.failures -= 1
                    self.send_error(503)
                    return
                super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def repository(tmp_path):
    found = Repository(tmp_path / "served")
    put(tmp_path / "served" / JAR.maven_path)
    yield found
    found.close()


def fake_mvn(path: Path, script: str) -> str:
    put(path, f"#!/bin/sh\n{script}\n".encode()).chmod(0o755)
    return str(path)


def test_a_jar_in_the_cache_is_taken_from_there(places, repository):
    cached = put(places().cache / JAR.file_name)
    assert resolve(places(repository_url=repository.url), [JAR]) == (cached,)
    assert repository.requests == []


def test_a_jar_of_the_image_is_used_in_place(places):
    in_image = put(places().image / JAR.file_name)
    assert resolve(places(), [JAR]) == (in_image,)


def test_a_jar_of_the_local_maven_repository_is_copied_into_the_cache(places):
    put(places().local_repository / JAR.maven_path)
    (path,) = resolve(places(), [JAR])
    assert path == places().cache / JAR.file_name
    assert path.read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_does_not_hide_a_jar_that_is_here(places, tmp_path):
    in_repository = put(places().local_repository / JAR.maven_path)
    blocked = put(tmp_path / "file") / "cache"
    assert resolve(places(cache=blocked), [JAR]) == (in_repository,)


def test_a_cache_that_cannot_be_written_is_named_when_a_jar_must_be_fetched(
    places, repository, tmp_path
):
    blocked = put(tmp_path / "file") / "cache"
    with pytest.raises(JarError, match="the cache cannot be written"):
        resolve(places(cache=blocked, repository_url=repository.url), [JAR])


def test_without_mvn_a_jar_is_downloaded_once(places, repository):
    here = places(repository_url=repository.url)
    (path,) = resolve(here, [JAR])
    assert path.read_bytes() == CONTENT
    resolve(here, [JAR])
    assert repository.requests == [f"/{JAR.maven_path}"]


def test_a_download_that_fails_for_a_moment_is_tried_again(places, repository):
    repository.failures = 1
    assert len(resolve(places(repository_url=repository.url), [JAR])) == 1


def test_a_tampered_jar_in_the_cache_is_never_used_and_replaced(places, repository):
    tampered = put(places().cache / JAR.file_name, b"something else")
    (path,) = resolve(places(repository_url=repository.url), [JAR])
    assert path == tampered
    assert path.read_bytes() == CONTENT


def test_a_tampered_jar_of_a_repository_is_refused_by_name(places, repository, tmp_path):
    put(tmp_path / "served" / JAR.maven_path, b"something else")
    with pytest.raises(JarError, match=r"thing-1\.0\.jar: another SHA-256"):
        resolve(places(repository_url=repository.url), [JAR])
    assert not (places().cache / JAR.file_name).exists()


def test_a_tampered_jar_from_mvn_is_refused(places, tmp_path):
    mvn = fake_mvn(tmp_path / "mvn", f"mkdir jars && echo other > jars/{JAR.file_name}")
    with pytest.raises(JarError, match=r"mvn: thing-1\.0\.jar has another SHA-256"):
        resolve(places(mvn=mvn), [JAR])


def test_when_mvn_fails_the_jar_is_downloaded(places, repository, tmp_path):
    mvn = fake_mvn(tmp_path / "mvn", "echo '[ERROR] no route to host'; exit 1")
    assert len(resolve(places(mvn=mvn, repository_url=repository.url), [JAR])) == 1


def test_a_jar_that_is_nowhere_is_one_message_with_all_places_and_what_to_do(places, tmp_path):
    mvn = fake_mvn(tmp_path / "mvn", "echo '[ERROR] no route to host'; exit 1")
    with pytest.raises(JarError) as raised:
        resolve(places(mvn=mvn), [JAR])
    message = str(raised.value)
    for part in (
        "org.example:thing:1.0",
        str(places().cache),
        str(places().image),
        str(places().local_repository),
        "no route to host",
        f"{NOWHERE}/{JAR.maven_path}",
        "HEADRACE_MAVEN_REPOSITORY",
    ):
        assert part in message


def test_an_address_that_is_not_http_is_refused(places):
    with pytest.raises(JarError, match=r"must be an http\(s\) address"):
        resolve(places(repository_url="file:///etc"), [JAR])


def test_places_come_from_the_environment():
    places = JarPlaces.from_environment({"HOME": "/h", "HEADRACE_JARS": "/j", "PATH": ""})
    assert (places.cache, places.local_repository) == (Path("/j"), Path("/h/.m2/repository"))
    assert places.mvn is None
    assert places.repository_url == "https://repo1.maven.org/maven2"


def test_the_command_prints_the_real_jars():
    command = [sys.executable, "-m", "headrace_jobs.jars"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [Path(path).name for path in printed] == [jar.file_name for jar in KAFKA_CONNECTOR_JARS]
    assert all(Path(path).is_file() for path in printed)
