"""`kubectl headrace …`: the same commands, by default for the current context.

kubectl passes the arguments after the plugin's name. Its users put --context and --namespace
anywhere, and -n if the command has no -n option of its own; also as -nNAME and -n=NAME.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["PROGRAM", "is_plugin", "with_place_first"]

PROGRAM = "kubectl-headrace"
_LONG, _SHORT = ("--context", "--namespace"), "-n"
#: Commands whose -n is a number of records, and those that take namespaces for another purpose.
_OWN_SHORT = frozenset({"consume"})
_OWN = frozenset({"operator", "broker"})


def is_plugin() -> bool:
    """Whether this process was started as kubectl's plugin."""
    return Path(sys.argv[0]).name == PROGRAM


def with_place_first(arguments: list[str]) -> list[str]:
    """Move --context and --namespace to the front of the command. Pure."""
    command = _command_of(arguments)
    if command in _OWN:
        return arguments
    has_short = command not in _OWN_SHORT
    place: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(arguments):
        text = arguments[index]
        if text == "--":
            rest += arguments[index:]
            break
        if (text in _LONG or (has_short and text == _SHORT)) and index + 1 < len(arguments):
            place += arguments[index : index + 2]
            index += 2
            continue
        if has_short and text.startswith(_SHORT) and text != _SHORT:
            place += [_SHORT, text.removeprefix(_SHORT).removeprefix("=")]
        elif text.startswith(tuple(f"{name}=" for name in _LONG)):
            place.append(text)
        else:
            rest.append(text)
        index += 1
    # Options before the command are there already.
    return place + rest


def _command_of(arguments: list[str]) -> str:
    index = 0
    while index < len(arguments):
        if arguments[index] in (*_LONG, _SHORT, "--profile"):
            index += 2
        elif arguments[index].startswith("-"):
            index += 1
        else:
            return arguments[index]
    return ""
