"""Looking at calls of the broker's code from outside, while a run goes on.

An observer stands around a function or a method: it gets the `History`, the original, and the
arguments, and must call the original and return what it returned. It counts what is rare
(`marks`), or judges what was decided (`invariants.decisions`), and changes nothing.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from simulation.history import History

_OBSERVERS: list[tuple[Any, str, Callable[..., Any]]] = []


def observer(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a function stand around `owner.name`, a module's or a class's."""

    def register(observe: Callable[..., Any]) -> Callable[..., Any]:
        _OBSERVERS.append((owner, name, observe))
        return observe

    return register


@contextlib.contextmanager
def observed(history: History) -> Iterator[None]:
    """Install all observers for one run."""
    installed = []
    try:
        for named, name, observe in _OBSERVERS:
            owner = _definer(named, name)
            original = vars(owner)[name]
            installed.append((owner, name, original))
            setattr(owner, name, _around(observe, history, original))
        yield
    finally:
        for owner, name, original in reversed(installed):
            setattr(owner, name, original)


def _definer(owner: Any, name: str) -> Any:
    """Return the class that defines what `owner` may inherit, or the module."""
    return next((kind for kind in getattr(owner, "__mro__", ()) if name in vars(kind)), owner)


def _around(observe: Callable[..., Any], history: History, original: Any) -> Any:
    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        return observe(history, original, *arguments, **named)

    return call
