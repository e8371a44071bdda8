"""How a planted bug is described and installed."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Replace = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`replace(original)` returns what stands for `owner.name` while the bug is in."""

    name: str
    owner: Any
    attribute: str
    replace: Replace
    nodes: int = 1
    seeds_max: int = 30

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Plant the bug, and take it out again."""
        was = vars(self.owner)[self.attribute]
        setattr(self.owner, self.attribute, self.replace(was))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, was)
