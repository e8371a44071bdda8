"""The generation that a SparkApplication's annotations say, as arguments of its driver. Pure.

`headrace_jobs.launch` does the same under `headrace up` (`headrace_jobs.annotations`);
`tests/jobs/test_annotations.py` holds both against each other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["generation_annotations", "generation_arguments"]

ANNOTATION_PREFIX = "headrace.dev/"
#: Each annotation's argument, and other names of that.
_ARGUMENTS = {
    "generation": ("--generation",),
    "from": ("--from", "--starting-offsets"),
    "shadow": ("--shadow", "--no-shadow"),
}
_NUMBER = re.compile(r"[1-9][0-9]*")


def generation_annotations(application: Mapping[str, Any]) -> dict[str, str]:
    """Return what an application's annotations say, by the argument's name."""
    found = application.get("metadata", {}).get("annotations") or {}
    names = [name for name in _ARGUMENTS if ANNOTATION_PREFIX + name in found]
    return {name: str(found[ANNOTATION_PREFIX + name]) for name in names}


def generation_arguments(application: Mapping[str, Any]) -> list[str]:
    """Return the arguments that the annotations add to `spec.arguments`.

    Raises `ValueError` if a value is none, or if the arguments say something else.
    """
    given = [str(each) for each in (application.get("spec") or {}).get("arguments") or []]
    added = []
    for name, value in generation_annotations(application).items():
        wanted = _argument(name, value)
        said = _said(given, _ARGUMENTS[name])
        if not said:
            added += wanted
        elif said != wanted:
            raise ValueError(
                f"metadata.annotations[{ANNOTATION_PREFIX}{name}] is {value!r}, and spec.arguments"
                f" say {' '.join(said)}: say it in one place"
            )
    return added


def _argument(name: str, value: str) -> list[str]:
    flag, *others = _ARGUMENTS[name]
    place = f"metadata.annotations[{ANNOTATION_PREFIX}{name}]"
    if name == "shadow":
        if value not in {"true", "false"}:
            raise ValueError(f"{place} is {value!r}: write 'true' or 'false'")
        return [flag if value == "true" else others[0]]
    if name == "generation" and not _NUMBER.fullmatch(value):
        raise ValueError(f"{place} is {value!r}: write a number from 1")
    if not value or value.startswith("-"):
        raise ValueError(f"{place} is {value!r}: write earliest, latest or a time")
    return [flag, value]


def _said(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the last of these arguments, in its annotation's form; empty if there is none."""
    said: list[str] = []
    for index, argument in enumerate(arguments):
        flag, has_value, value = argument.partition("=")
        if flag not in flags:
            continue
        if flag in _ARGUMENTS["shadow"]:
            said = [flag]
        else:
            said = [flags[0], value if has_value else "".join(arguments[index + 1 : index + 2])]
    return said
