import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.up import command


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose cluster is stopped at the end, whatever happened."""
    folder = tmp_path / "headrace"
    yield folder
    if folder.exists():
        subprocess.run([*command("down"), "--data-dir", str(folder)], check=False)
