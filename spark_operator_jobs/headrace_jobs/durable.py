"""Durable files: contents and names that survive a power cut."""

import os
import uuid
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, text: str) -> None:
    """Replace a file so that a power cut leaves the old one or the new one."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync(path.parent)
