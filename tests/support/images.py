"""The modules of images/, and the archives that it wrote."""

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "images"))

import build_images  # noqa: E402 - found only by the line above
import oci  # noqa: E402
import sbom  # noqa: E402

__all__ = ["ROOT", "Archive", "build_images", "built", "oci", "sbom"]


class Archive:
    """An image as it was packed: its settings and the entries of its layers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path) as archive:
            [described] = self._json(archive, "index.json")["manifests"]
            manifest = self._json(archive, self._blob(described["digest"]))
            self.config = self._json(archive, self._blob(manifest["config"]["digest"]))
            self.settings = self.config["config"]
            self.entries = list(self._entries(archive, manifest))

    def _entries(self, archive: tarfile.TarFile, manifest: Any) -> Iterator[tarfile.TarInfo]:
        for layer in manifest["layers"]:
            file = archive.extractfile(self._blob(layer["digest"]))
            assert file is not None
            with tarfile.open(fileobj=file, mode="r:*") as tree:
                for entry in tree:
                    entry.name = entry.name.removeprefix("./")
                    yield entry

    def _blob(self, digest: str) -> str:
        return "blobs/" + digest.replace(":", "/")

    def _json(self, archive: tarfile.TarFile, name: str) -> Any:
        file = archive.extractfile(name)
        assert file is not None
        return json.load(file)


def built(name: str) -> Archive:
    """Return the image that images/build wrote; skip loudly where it was not called."""
    path = ROOT / f"build/images/{name}.tar"
    if not path.exists():
        pytest.skip(f"NOT TESTED: {path.relative_to(ROOT)} is missing; images/build {name}")
    return Archive(path)
