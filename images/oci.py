"""Packs layers into an OCI image archive, with the standard library alone.

Owns the layout of image-spec 1.0 (https://github.com/opencontainers/image-spec) and what makes two
builds of the same files the same bytes: sorted names, one time for all files, no owner names.
Layers stay uncompressed: packing takes a second instead of a minute, and registries compress.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Layer", "pack_directory", "read_layer", "write_image"]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK_BYTES = 1 << 20
# A time after 1980, which zip files can express; SOURCE_DATE_EPOCH names another.
_DEFAULT_EPOCH = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Layer:
    """An uncompressed tar file with its digest (`sha256:…`) and size in bytes."""

    path: Path
    digest: str
    size: int


def read_layer(path: Path) -> Layer:
    """Return the layer that this tar file is."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Layer(path=path, digest=f"sha256:{digest}", size=path.stat().st_size)


def pack_directory(root: Path, output: Path) -> Layer:
    """Write everything under `root` as a layer: owned by root, in the order of names."""
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=_plain)
    unfinished.replace(output)
    return read_layer(output)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = epoch()
    # What may be read may be read by whatever user a cluster chooses.
    entry.mode |= 0o555 if entry.isdir() or entry.mode & 0o100 else 0o444
    entry.mode &= ~0o022
    return entry


def epoch() -> int:
    """Return the time that all files get."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", _DEFAULT_EPOCH))


def write_image(
    output: Path, *, name: str, layers: Sequence[Layer], settings: Mapping[str, Any]
) -> str:
    """Write the archive and return the image's digest. `settings` is the config's `config`."""
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            # One entry for each layer: whoever builds on this image (buildah) counts them.
            "history": [{"created_by": "images/build"} for _ in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _described("application/vnd.oci.image.config.v1+json", config),
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": layer.digest,
                    "size": layer.size,
                }
                for layer in layers
            ],
        }
    )
    described = _described("application/vnd.oci.image.manifest.v1+json", manifest)
    names = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = _json({"schemaVersion": 2, "manifests": [described | {"annotations": names}]})
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    with tarfile.open(unfinished, "w") as archive:
        _add_bytes(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add_bytes(archive, "index.json", index)
        for content in (config, manifest):
            _add_bytes(archive, _blob(_digest(content)), content)
        _add_layers(archive, layers)
    unfinished.replace(output)
    return str(described["digest"])


def _add_layers(archive: tarfile.TarFile, layers: Iterable[Layer]) -> None:
    for layer in layers:
        entry = tarfile.TarInfo(_blob(layer.digest))
        entry.size = layer.size
        with layer.path.open("rb", buffering=_CHUNK_BYTES) as file:
            archive.addfile(entry, file)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _blob(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _described(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
