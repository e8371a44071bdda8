"""What is in the container images; that the Dockerfiles give the same; that the SBOM lists it."""

import hashlib
import io
import json
import re
import shlex
import tomllib
import zipfile
from pathlib import PurePosixPath

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from headrace_jobs.jars import KAFKA_CONNECTOR_JARS
from support.images import ROOT, Archive, build_images, built, oci, sbom

NAMES = ("headrace", "jobs")
COMPILERS = {
    *(
        "as",
        "c++",
        "c89",
        "c99",
        "cargo",
        "cc",
        "clang",
        "cmake",
        "cpp",
        "f77",
        "g++",
        "gcc",
        "gdb",
    ),
    *(
        "gfortran",
        "go",
        "javac",
        "jshell",
        "ld",
        "ld.bfd",
        "ld.gold",
        "make",
        "nvcc",
        "rustc",
        "tcc",
    ),
}


def dockerfile(name):
    """Return the instructions of a Dockerfile, continued lines joined and comments left out."""
    text = (ROOT / f"images/Dockerfile.{name}").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last_stage(name):
    """Return what is said in the stage that becomes the image."""
    found = dockerfile(name)
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start + 1 :]


def said(name, word):
    return [rest for each, rest in last_stage(name) if each == word]


@pytest.mark.parametrize("name", NAMES)
def test_a_dockerfile_gives_what_the_build_without_docker_gives(name):
    image = build_images.IMAGES[name]
    install, *others = said(name, "RUN")
    shared = ["/opt/headrace/venv/bin/python /opt/headrace/share_classes.py"]
    assert others == (shared if name == "jobs" else [])
    listed = install.split("--no-install-recommends", 1)[1].split("&&", 1)[0]
    assert set(listed.split()) == set(image.debian)
    assert f"'{image.account}'" in install
    assert said(name, "USER") == [image.user]
    [environment] = said(name, "ENV")
    assert shlex.split(environment) == image.settings["Env"]
    [entrypoint] = said(name, "ENTRYPOINT")
    assert json.loads(entrypoint) == image.settings["Entrypoint"]
    assert [json.loads(each) for each in said(name, "CMD")] == (
        [image.settings["Cmd"]] if "Cmd" in image.settings else []
    )
    assert said(name, "WORKDIR") == ["/tmp"]  # noqa: S108 - the one folder that is written to
    assert all(each.startswith("--from=build ") for each in said(name, "COPY"))


@pytest.mark.parametrize("name", NAMES)
def test_a_dockerfile_makes_the_tree_by_the_same_functions(name):
    runs = [rest for word, rest in dockerfile(name) if word == "RUN"]
    for part in build_images.PARTS:
        assert any(f"build_images.py {name} --only {part} --tree" in each for each in runs)
    copied = " ".join(rest for word, rest in dockerfile(name) if word == "COPY")
    assert build_images.IMAGES[name].requirements.removeprefix("requirements/") in copied
    assert all("--require-hashes" in each for each in runs if "pip install" in each)


@pytest.mark.parametrize("lock", ["runtime.txt", "jobs.txt", "images.txt"])
def test_every_locked_requirement_has_a_hash(lock):
    text = (ROOT / "requirements" / lock).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if re.match(r"[a-z]", line)]
    assert lines
    assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []


def test_the_headrace_image_has_every_library_that_the_product_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["operator"]]
    locked = (ROOT / "requirements/runtime.txt").read_text()
    names = {re.match(r"[\w-]+", each)[0] for each in named}
    assert [name for name in sorted(names) if f"\n{name}==" not in f"\n{locked}"] == []


# The list of what is in an image


def jar(group, artifact, version):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        properties = f"groupId={group}\nartifactId={artifact}\nversion={version}\n"
        # A ZipInfo of its own has no time of now in it.
        name = f"META-INF/maven/{group}/{artifact}/pom.properties"
        file.writestr(zipfile.ZipInfo(name), properties)
    return content.getvalue()


def layer(folder, files):
    root = folder / "root"
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return oci.pack_directory(root, folder / "layer.tar")


DPKG = b"""Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
METADATA = (
    b"Metadata-Version: 2.4\nName: Ruamel.Yaml\nVersion: 1.2\nLicense-Expression: MIT\n\nName: no\n"
)


@pytest.fixture
def archive(tmp_path):
    lower = {
        "var/lib/dpkg/status": DPKG,
        "opt/p/ruamel-1.2.dist-info/METADATA": METADATA,
        "opt/p/old-1.dist-info/METADATA": METADATA.replace(b"Ruamel.Yaml", b"old"),
        "opt/jars/spark-sql_2.13-4.3.0.jar": jar("org.apache.spark", "spark-sql_2.13", "4.3.0"),
    }
    upper = {
        "opt/p/.wh.old-1.dist-info": b"",
        "opt/other/plain-2.0.jar": jar("", "plain", "2.0"),
    }
    layers = []
    for number, files in enumerate((lower, upper)):
        (tmp_path / str(number)).mkdir()
        layers.append(layer(tmp_path / str(number), files))
    path = tmp_path / "image.tar"
    oci.write_image(path, name="docker.io/x/y:1", layers=layers, settings={})
    return path


def test_packages_distributions_and_jars_are_listed_by_their_own_names(archive):
    document = json.loads(sbom.describe(sbom.read_archive(archive)))
    assert {each["purl"] for each in document["components"]} == {
        "pkg:deb/debian/tini@0.19.0-1?arch=amd64",
        "pkg:pypi/ruamel-yaml@1.2",
        "pkg:maven/org.apache.spark/spark-sql_2.13@4.3.0",
        "pkg:maven/plain@2.0",
    }
    described = document["metadata"]["component"]
    assert (described["name"], described["version"]) == ("docker.io/x/y", "1")
    [listed] = [each for each in document["components"] if each["name"] == "spark-sql_2.13"]
    content = jar("org.apache.spark", "spark-sql_2.13", "4.3.0")
    assert listed["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]


def test_the_list_is_valid_cyclonedx_and_the_same_each_time(archive):
    first = sbom.describe(sbom.read_archive(archive))
    assert sbom.describe(sbom.read_archive(archive)) == first
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(first) is None


def test_others_can_build_on_an_image_since_its_history_has_all_its_layers(archive):
    config = Archive(archive).config
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == 2


# The images themselves, where they were built


@pytest.fixture(scope="module", params=NAMES)
def image(request):
    return request.param, built(request.param)


@pytest.mark.slow
def test_an_image_runs_as_somebody_who_is_not_root_and_has_no_compiler(image):
    name, archive = image
    assert archive.settings["User"] == build_images.IMAGES[name].user
    assert not archive.settings["User"].startswith("0")
    programs = {
        path.name
        for path in map(PurePosixPath, (entry.name for entry in archive.entries))
        if path.parent.name in ("bin", "sbin")
    }
    assert "tini" in programs
    assert programs & COMPILERS == set()
    assert {
        each for each in programs if re.search(r"(^|-)(gcc|g\+\+|clang|javac)(-\d+)?$", each)
    } == (set())


@pytest.mark.slow
def test_nobody_but_root_may_change_a_file_of_an_image(image):
    _, archive = image
    writable = {entry.name for entry in archive.entries if entry.isfile() and entry.mode & 0o022}
    assert writable == set()
    foreign = {e.name for e in archive.entries if e.isfile() and e.uid and e.name.startswith("opt")}
    assert foreign == set()


@pytest.mark.slow
def test_the_sbom_lists_every_requirement_package_and_jar_of_an_image(image):
    name, archive = image
    document = archive.path.with_suffix(".cdx.json").read_text()
    names = [entry.name for entry in archive.entries if entry.isfile()]
    distributions = [each for each in names if each.endswith(".dist-info/METADATA")]
    jars = [each for each in names if each.endswith(".jar")]
    components = json.loads(document)["components"]
    kinds = [re.match(r"pkg:(\w+)/", each["purl"])[1] for each in components]
    assert kinds.count("pypi") == len(distributions)
    assert kinds.count("maven") == len(jars)
    assert set(build_images.IMAGES[name].debian) <= sbom.names_of(document, "deb")
    locked = (ROOT / build_images.IMAGES[name].requirements).read_text()
    # Those with a marker are for other systems or versions of Python.
    wanted = set(re.findall(r"^([a-z0-9-]+)==[^\s;]+ \\$", locked, flags=re.MULTILINE))
    assert wanted
    assert wanted | {"headrace"} <= sbom.names_of(document, "pypi")


@pytest.mark.slow
def test_the_connectors_jars_are_in_the_jobs_image_byte_by_byte():
    archive = built("jobs")
    components = json.loads(archive.path.with_suffix(".cdx.json").read_text())["components"]
    hashes = {hash_["content"] for each in components for hash_ in each.get("hashes", [])}
    assert {jar.sha256 for jar in KAFKA_CONNECTOR_JARS} <= hashes
