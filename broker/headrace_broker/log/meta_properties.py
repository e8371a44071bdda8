"""`meta.properties`: the identity of a log directory (version 1, as Kafka's KRaft brokers write
it).

Owns the file and Kafka's 22-character form of UUIDs.
"""

import base64
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError, is_shortage
from headrace_broker.log.files import read_file, replace_file

META_PROPERTIES_NAME: Final = "meta.properties"
_VERSION: Final = "1"


class MetaPropertiesError(Exception):
    """The directory belongs to another node or cluster, or its file cannot be parsed."""


class MetaProperties(NamedTuple):
    """A directory's identity."""

    node_id: int
    cluster_id: str
    directory_id: uuid.UUID


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's text form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Read Kafka's text form; raises ValueError."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def read_meta_properties(directory: Path, *, node_id: int, cluster_id: str) -> MetaProperties:
    """Read a directory's identity, or give it one if it has none."""
    path = directory / META_PROPERTIES_NAME
    try:
        found = _read_pairs(path)
    except FileNotFoundError:
        meta = MetaProperties(node_id, cluster_id or encode_uuid(_random_id()), _random_id())
        write_meta_properties(directory, meta)
        return meta
    try:
        if found["version"] != _VERSION:
            raise MetaPropertiesError(f"{path}: version {found['version']} is unknown")
        meta = MetaProperties(
            int(found["node.id"]), found["cluster.id"], decode_uuid(found["directory.id"])
        )
    except (KeyError, ValueError) as error:
        raise MetaPropertiesError(f"{path}: {error} is missing or bad") from error
    if meta.node_id != node_id:
        raise MetaPropertiesError(f"{path}: node.id is {meta.node_id}, not {node_id}")
    if cluster_id and meta.cluster_id != cluster_id:
        raise MetaPropertiesError(f"{path}: cluster.id is {meta.cluster_id}, not {cluster_id}")
    return meta


def known_cluster_id(directory: Path) -> str:
    """Return a directory's cluster id, or "" if it has none or cannot be read.

    Raises OutOfDescriptorsError.
    """
    path = directory / META_PROPERTIES_NAME
    try:
        return _read_pairs(path).get("cluster.id", "")
    except UnicodeDecodeError:
        return ""
    except OSError as error:
        if is_shortage(error):
            raise OutOfDescriptorsError(path, error) from error
        return ""


def _read_pairs(path: Path) -> dict[str, str]:
    lines = read_file(path).decode().splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def write_meta_properties(directory: Path, meta: MetaProperties) -> None:
    """Write a directory's identity durably."""
    text = (
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={encode_uuid(meta.directory_id)}\n"
        f"node.id={meta.node_id}\n"
        f"version={_VERSION}\n"
    )
    replace_file(directory / META_PROPERTIES_NAME, text.encode())


def _random_id() -> uuid.UUID:
    """A version 4 UUID whose text has no leading dash, which tools would take for an option."""
    while True:
        value = uuid.uuid4()
        if not encode_uuid(value).startswith("-"):
            return value
