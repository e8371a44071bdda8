"""Runs a job by the name of its module: `python -m headrace_jobs.jobs.run MODULE …`.

`MODULE` is importable (`orders.by_minute`: installed, on `PYTHONPATH`, in `deps.pyFiles`, or in the
working folder), or a file (`orders.py`). It has a `Job` named `JOB`. In a SparkApplication this
file is the `mainApplicationFile`, and the module the first of the arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_jobs.declaration import Job, mistakes
from headrace_jobs.jobs.declared import run_declared
from headrace_jobs.jobs.mistakes import told

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DeclarationError", "load_job", "main"]

USAGE = "usage: headrace_jobs.jobs.run MODULE [ARGUMENTS of the job; --help lists them]"


class DeclarationError(Exception):
    """This module has no job; the message says why."""


def load_job(module: str) -> Job:
    """Import a module, or the module of a file, and return its `JOB`.

    Raises `DeclarationError` where there is none to be had, with the line that says so.
    """
    path = Path(module).resolve() if module.endswith(".py") else None
    if path is not None:
        if not path.is_file():
            raise DeclarationError(f"no such file: {path}")
        # Executors import a transform's functions by this name, from this folder.
        sys.path.insert(0, str(path.parent))
        module = path.stem
        if "." in module:
            raise DeclarationError(f"{path.name}: a module has no dot in its name: rename the file")
    elif "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise DeclarationError(
            f"no module {module}: install it, put it on PYTHONPATH, or name its file"
        )
    if path is not None and Path(found.origin or "").resolve() != path:
        raise DeclarationError(
            f"{path.name} has the name of another module ({found.origin}): rename the file"
        )
    try:
        job = getattr(importlib.import_module(module), "JOB", None)
    except Exception as error:
        raise DeclarationError(f"module {module} cannot be imported: {told(error)}") from error
    if not isinstance(job, Job):
        raise DeclarationError(f"module {module} has no JOB that is a headrace_jobs Job")
    wrong = mistakes(job)
    if wrong:
        raise DeclarationError(f"the JOB of module {module}: {'; '.join(wrong)}")
    return job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until it is stopped. Returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0].startswith("-"):
        print(USAGE, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    try:
        job = load_job(given[0])
    except DeclarationError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    return run_declared(job, given[1:])


if __name__ == "__main__":
    sys.exit(main())
