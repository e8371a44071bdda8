"""Generates the function that lists the error codes in one message class in one version.

It looks only at fields that the version has and whose structs have codes: for most answers that is
a small part of what encoding them costs.
"""

from collections.abc import Callable
from typing import Any, Final

from .emitter import Emitter
from .schema import Array, Field, Int16, Message, Struct, fields_of

_SUFFIX: Final = "error_code"
_COMPILED: Final[dict[tuple[type[Message], int], Callable[[Any], list[int]]]] = {}


def error_codes(cls: type[Message], version: int) -> Callable[[Any], list[int]]:
    """Return ``codes(message) -> every code in it but NONE``, compiled at first use."""
    known = _COMPILED.get((cls, version))
    if known is None:
        known = _COMPILED[cls, version] = _ErrorCodesEmitter(cls, version).generate()
    return known


class _ErrorCodesEmitter(Emitter):
    """Writes ``codes(m) -> found``."""

    def generate(self) -> Callable[[Any], list[int]]:
        """Write and compile the function."""
        with self.block("def codes(m):"):
            self.line("found = []")
            self._struct(self.cls, "m")
            self.line("return found")
        return self.compile("codes")

    def _struct(self, cls: type[Struct], at: str) -> None:
        for field in self._present(cls):
            value = f"{at}.{field.name}"
            if _is_code(field):
                with self.block(f"if {value}:"):
                    self.line(f"found.append({value})")
            elif field.nested is None or not self._has_codes(field.nested):
                continue
            elif field.wire is Array:
                element = self.fresh("e")
                with self.block(f"for {element} in {value} or ():"):
                    self._struct(field.nested, element)
            else:
                with self.block(f"if {value} is not None:"):
                    self._struct(field.nested, value)

    def _has_codes(self, cls: type[Struct]) -> bool:
        return any(
            _is_code(field) or (field.nested is not None and self._has_codes(field.nested))
            for field in self._present(cls)
        )

    def _present(self, cls: type[Struct]) -> list[Field]:
        return [field for field in fields_of(cls) if field.versions.holds(self.version)]


def _is_code(field: Field) -> bool:
    return field.wire is Int16 and field.name.endswith(_SUFFIX)
