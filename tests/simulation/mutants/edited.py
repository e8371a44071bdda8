"""Planted bugs that are one change of a function's source."""

import __future__

import inspect
import textwrap
from types import FunctionType
from typing import Any

from simulation.mutants.mutant import Replace


def edited(old: str, new: str) -> Replace:
    """Return what makes a function again with `old`, which it has once, in the place of `new`.

    Raises LookupError where the product's source has changed: the bug has to be planted again.
    """

    def replace(original: Any) -> Any:
        if isinstance(original, property):
            return property(replace(original.fget))
        if isinstance(original, classmethod):
            return classmethod(replace(original.__func__))
        if isinstance(original, staticmethod):
            return staticmethod(replace(original.__func__))
        return _made_again(original, old, new)

    return replace


def _made_again(original: FunctionType, old: str, new: str) -> Any:
    source = textwrap.dedent(inspect.getsource(original))
    # A decorator stays where it is: around what is made here.
    source = source[source.index("def ") :] if source.startswith("@") else source
    if source.count(old) != 1:
        raise LookupError(f"{original.__qualname__} has {source.count(old)} times {old!r}")
    code = compile(
        source.replace(old, new),
        inspect.getsourcefile(original) or "<edited>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, original.__globals__, made)  # noqa: S102 - the source is the project's own
    return made[original.__name__]
