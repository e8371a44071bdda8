"""Lists what is in an image, as a CycloneDX document (https://cyclonedx.org/specification/overview).

    images/sbom build/images/headrace.tar >headrace.cdx.json

Reads the image's own layers and no lock file, so that it says what is there and not what was
asked for: Debian's packages, Python distributions, and jars with their SHA-256. Works on any OCI
archive, whoever built it (`buildah push IMAGE oci-archive:FILE`). The same image gives the same
bytes.
"""

from __future__ import annotations

import argparse
import email.parser
import hashlib
import io
import json
import re
import sys
import tarfile
import uuid
import zipfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["describe", "main", "read_archive"]

_DPKG_STATUS = "var/lib/dpkg/status"
_JAR_NAME = re.compile(r"(?P<name>.+?)[-_](?P<version>\d[\w.+-]*)\.jar$")
_NAMESPACE = uuid.UUID("5f4b0d3c-6f0a-4f43-9a52-5f5a5b7a8f11")


@dataclass(kw_only=True)
class Content:
    """What the layers hold, the later over the earlier, and what the image says of itself."""

    name: str
    digest: str
    created: datetime
    components: dict[str, Component] = field(default_factory=dict)


def read_archive(path: Path) -> Content:
    """Read an OCI archive with one image in it."""
    with tarfile.open(path) as archive:
        index = _json(archive, "index.json")
        [described] = index["manifests"]
        manifest = _json(archive, _blob(described["digest"]))
        config = _json(archive, _blob(manifest["config"]["digest"]))
        annotations = described.get("annotations") or {}
        name = annotations.get("io.containerd.image.name") or annotations.get(
            "org.opencontainers.image.ref.name", path.stem
        )
        created = datetime.fromisoformat(config.get("created", "1970-01-01T00:00:00+00:00"))
        content = Content(name=name, digest=described["digest"], created=created.astimezone(UTC))
        for layer in manifest["layers"]:
            file = archive.extractfile(_blob(layer["digest"]))
            assert file is not None, "a layer that is not a file"  # noqa: S101 - OCI's layout says so
            with tarfile.open(fileobj=file, mode="r:*") as tree:
                _read_layer(tree, content.components)
    return content


def describe(content: Content) -> str:
    """Return the document, as JSON of CycloneDX 1.6."""
    bom = Bom(
        components=content.components.values(),
        serial_number=uuid.uuid5(_NAMESPACE, content.digest),
    )
    bom.metadata.timestamp = content.created
    repository, _, tag = content.name.rpartition(":")
    bom.metadata.component = Component(
        name=repository or content.name,
        type=ComponentType.CONTAINER,
        version=tag,
        bom_ref=content.digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content.digest.partition(":")[2])],
    )
    bom.register_dependency(bom.metadata.component, content.components.values())
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _read_layer(tree: tarfile.TarFile, components: dict[str, Component]) -> None:
    for entry in tree:
        path = entry.name.removeprefix("./")
        _forget_deleted(path, components)
        if not entry.isfile():
            continue
        if path == _DPKG_STATUS:
            found = _debian_packages(_read(tree, entry))
        elif path.endswith(".dist-info/METADATA"):
            found = [_distribution(_read(tree, entry))]
        elif path.endswith(".jar"):
            found = [_jar(path, _read(tree, entry))]
        else:
            continue
        for component in found:
            where = path if len(found) == 1 else f"{path}#{component.name}"
            components[where] = component


def _forget_deleted(path: str, components: dict[str, Component]) -> None:
    """Apply a whiteout: `.wh.NAME` deletes NAME of the layers below."""
    folder, _, name = path.rpartition("/")
    if not name.startswith(".wh."):
        return
    deleted = folder if name == ".wh..wh..opq" else f"{folder}/{name.removeprefix('.wh.')}"
    for where in [each for each in components if f"{each}/".startswith(f"{deleted}/")]:
        del components[where]


def _debian_packages(status: bytes) -> list[Component]:
    packages = []
    for paragraph in status.decode().split("\n\n"):
        fields = email.parser.HeaderParser().parsestr(paragraph)
        if not fields.get("Status", "").endswith(" installed"):
            continue
        name, version = fields["Package"], fields["Version"]
        purl = PackageURL(
            "deb", "debian", name, version, qualifiers={"arch": fields["Architecture"]}
        )
        packages.append(_component(purl, name, version))
    return packages


def _distribution(metadata: bytes) -> Component:
    fields = email.parser.HeaderParser().parsestr(metadata.decode())
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    component = _component(
        PackageURL("pypi", None, name, fields["Version"]), name, fields["Version"]
    )
    if fields.get("License-Expression"):
        component.licenses.add(LicenseFactory().make_from_string(fields["License-Expression"]))
    return component


def _jar(path: str, content: bytes) -> Component:
    """Name a jar by its Maven coordinates, which most carry, else by its file's name."""
    found = _JAR_NAME.search(Path(path).name)
    group, name = None, found["name"] if found else Path(path).stem
    version = found["version"] if found else ""
    coordinates = list(_maven_coordinates(content))
    # A jar with others inside it has several: the one of its own name is its own.
    own = [each for each in coordinates if each.get("artifactId") == name] or coordinates
    if len(own) == 1 and own[0].get("groupId"):
        group, name = own[0]["groupId"], own[0]["artifactId"]
        version = own[0].get("version") or version
    component = _component(PackageURL("maven", group, name, version), name, version, group)
    # One jar may be in two places.
    component.bom_ref.value = path
    digest = hashlib.sha256(content).hexdigest()
    component.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    component.properties.add(Property(name="headrace:path", value=f"/{path}"))
    return component


def _maven_coordinates(content: bytes) -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(io.BytesIO(content)) as jar:
        for name in jar.namelist():
            if name.startswith("META-INF/maven/") and name.endswith("/pom.properties"):
                lines = jar.read(name).decode(errors="replace").splitlines()
                pairs = (line.partition("=") for line in lines if not line.startswith("#"))
                yield {key.strip(): value.strip() for key, _, value in pairs}


def _component(purl: PackageURL, name: str, version: str, group: str | None = None) -> Component:
    return Component(
        name=name,
        group=group,
        version=version,
        purl=purl,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
    )


def _json(archive: tarfile.TarFile, name: str) -> dict:  # type: ignore[type-arg]  # OCI's own shape
    file: IO[bytes] | None = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file of an OCI archive")
    document: dict = json.load(file)  # type: ignore[type-arg]  # as above
    return document


def _read(tree: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tree.extractfile(entry)
    return file.read() if file is not None else b""


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def names_of(document: str, kind: str) -> set[str]:
    """Return the names of a document's components of one kind (deb, pypi, maven)."""
    components: Iterable[dict[str, str]] = json.loads(document)["components"]
    return {each["name"] for each in components if each["purl"].startswith(f"pkg:{kind}/")}


def main() -> None:
    """Write the document of an archive to standard output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    sys.stdout.write(describe(read_archive(parser.parse_args().archive)))


if __name__ == "__main__":
    main()
