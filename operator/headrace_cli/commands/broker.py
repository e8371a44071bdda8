"""`headrace broker FILE.properties`: one broker in this process."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace_cli.errors import EXIT_BAD_INPUT

__all__ = ["run_broker"]


def run_broker(file: str) -> int:
    """Run a broker until it is stopped; returns the exit status."""
    path = Path(file)
    if not path.is_file():
        sys.stderr.write(f"error: {file}: no such file\n")
        return EXIT_BAD_INPUT
    from headrace_broker.server.main import run

    return run(path)
