"""What the other modules here have in common: the repository, programs, progress."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ROOT", "require", "run", "say"]

ROOT = Path(__file__).resolve().parent.parent


def run(
    command: Sequence[str],
    *,
    capture: bool = False,
    may_fail: bool = False,
    environment: dict[str, str] | None = None,
) -> str:
    """Run a program; what it says goes to standard error."""
    done = subprocess.run(  # noqa: S603 - programs and arguments are ours
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE if capture else sys.stderr,
        stderr=subprocess.DEVNULL if may_fail else None,
        text=True,
        check=False,
    )
    if done.returncode != 0 and not may_fail:
        sys.exit(f"images/build: {shlex.join(command)[:200]} ended with {done.returncode}")
    return done.stdout or ""


def require(program: str, otherwise: str) -> None:
    """End with what to do where a program is not there."""
    if shutil.which(program) is None:
        sys.exit(f"images/build: {program} is not installed: {otherwise}")


def say(text: str) -> None:
    """Report progress."""
    print(f"images/build: {text}", file=sys.stderr)  # noqa: T201 - a command line
