"""Plant a mutant in a running process, and note which functions a piece of work calls.

A function gets the mutant's code in place, so whoever imported it by name has the mutant, too.
What a module does while it is imported (decorators, defaults, class bodies) is not mutated.
"""

import contextlib
import gc
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from simulation.mutation.sites import Mutation

Place = tuple[str, str, int]
"""A function's file, its qualified name, and the line it begins in."""


def place_of(code: CodeType) -> Place:
    """Return what tells a function from all others, whatever its code is."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def live_functions() -> dict[Place, list[FunctionType]]:
    """Return all functions that there are; what `gc.freeze` has put away is not seen."""
    found = defaultdict(list)
    for item in gc.get_objects():
        if isinstance(item, FunctionType):
            found[place_of(item.__code__)].append(item)
    return found


def mutated_codes(path: Path, mutation: Mutation) -> dict[Place, CodeType]:
    """Return the new code of each function that a mutation changes: one, or none."""
    before = dict(_functions(compile(path.read_text(), str(path), "exec", dont_inherit=True)))
    after = dict(_functions(compile(mutation.tree, str(path), "exec", dont_inherit=True)))
    return {place: code for place, code in after.items() if before.get(place) != code}


def plant(codes: dict[Place, CodeType], functions: dict[Place, list[FunctionType]]) -> int:
    """Give the live functions their new code; return how many there were."""
    planted = 0
    for place, code in codes.items():
        for function in functions.get(place, ()):
            function.__code__ = code
            planted += 1
    return planted


def _functions(code: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """The outermost functions: what is defined in one is part of its code."""
    for item in code.co_consts:
        if not isinstance(item, CodeType):
            continue
        if item.co_flags & 0x2:  # CO_NEWLOCALS: a function; a class body has none
            yield place_of(item), item
        else:
            yield from _functions(item)


@contextlib.contextmanager
def calls_noted() -> Iterator[set[CodeType]]:
    """Collect the code of every function that is called meanwhile."""
    called: set[CodeType] = set()

    def trace(frame: Any, _event: str, _argument: object) -> None:
        called.add(frame.f_code)

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield called
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as its documentation has it
