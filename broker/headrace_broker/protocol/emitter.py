"""Writing straight-line Python: what the decoder's and the encoder's generators share.

Owns lines, indentation, names and the constants that generated code refers to. Neighbouring
fixed-size values are collected in a run, so that one precompiled ``struct.Struct`` moves them all.
"""

import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct as Layout
from struct import calcsize
from typing import Any, Final

from .schema import (
    Array,
    Bool,
    Bytes,
    Field,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nested,
    Records,
    String,
    Struct,
    UInt16,
    UInt32,
    Uuid,
    Wire,
    fields_of,
)

# struct codes of the fixed-size types
FORMATS: Final[dict[type[Wire], str]] = {
    Bool: "?",
    Int8: "b",
    Int16: "h",
    UInt16: "H",
    Int32: "i",
    UInt32: "I",
    Int64: "q",
    Float64: "d",
    Uuid: "16s",
}
# struct codes of the lengths of variable-size types before flexible versions (KIP-482)
LENGTH_FORMATS: Final[dict[type[Wire], str]] = {String: "h", Bytes: "i", Records: "i", Array: "i"}
# struct code of a compact length's only byte, in the usual case
COMPACT_FORMAT: Final = "B"


class Emitter:
    """Source being written, with the namespace it will run in."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.is_flexible = cls.info.flexible.holds(version)
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._count = 0

    def line(self, text: str) -> None:
        """Write one line at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is written inside under ``head``."""
        self.line(head)
        self._depth += 1
        start = len(self._lines)
        yield
        if len(self._lines) == start:
            self.line("pass")
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """Return a local name that nothing else uses."""
        self._count += 1
        return f"{stem}{self._count}"

    def constant(self, stem: str, value: object) -> str:
        """Return the global name of a value that generated code refers to."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = stem if stem not in self.names else self.fresh(stem + "_")
        self.names[name] = value
        return name

    def layout(self, formats: list[str], method: str) -> str:
        """Return the global name of a bound method of the big-endian layout of these codes."""
        code = "".join(formats)
        name = f"{method}_{code.replace('?', 'o')}"
        if name not in self.names:
            self.names[name] = getattr(Layout(">" + code), method)
        return name

    def literal(self, field: Field) -> str:
        """Write a field's default as an expression that makes a new value each time."""
        default = field.default
        if isinstance(default, Struct):
            return f"{self.constant(type(default).__name__, type(default))}()"
        if default is None or isinstance(default, (bool, int, float, str, bytes, list)):
            return repr(default)
        return self.constant("default", default)

    def is_compact(self, field: Field) -> bool:
        """Whether a field's length is a varint plus one."""
        if field.flexible is not None:
            return field.flexible.holds(self.version)
        return self.is_flexible

    def is_nullable(self, field: Field) -> bool:
        """Whether a field may be null in this version."""
        return field.nullable.holds(self.version)

    def fields(self, cls: type[Struct]) -> tuple[list[Field], list[Field], list[Field]]:
        """Split a struct's fields into plain ones, tagged ones and those absent in this version."""
        plain: list[Field] = []
        tagged: list[Field] = []
        absent: list[Field] = []
        for field in fields_of(cls):
            if not field.versions.holds(self.version):
                absent.append(field)
            elif field.tag is None:
                plain.append(field)
            else:
                tagged.append(field)
        return plain, sorted(tagged, key=lambda field: field.tag or 0), absent

    def value_size_min(self, field: Field, wire: type[Wire]) -> int:
        """Return the fewest bytes one value takes: what a count is checked against."""
        if wire in FORMATS:
            return calcsize(">" + FORMATS[wire])
        if wire is not Nested:
            return 1 if self.is_compact(field) else calcsize(">" + LENGTH_FORMATS[wire])
        if field.nested is None:
            raise TypeError(f"{field.name} has no struct")
        if field.wire is Nested and self.is_nullable(field):
            return 1
        plain, _, _ = self.fields(field.nested)
        return sum(self.value_size_min(inner, inner.wire) for inner in plain) + self.is_flexible

    def has_records(self, cls: type[Struct]) -> bool:
        """Whether a struct, or one inside it, carries record batches."""
        return any(
            field.wire is Records or (field.nested is not None and self.has_records(field.nested))
            for field in fields_of(cls)
        )

    def compile(self, name: str) -> Callable[..., Any]:
        """Execute what was written and return the function of this name."""
        source = "\n".join(self._lines) + "\n"
        filename = f"<{name} {self.cls.__name__} v{self.version}>"
        # Tracebacks and debuggers show generated lines when linecache knows them.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        code = compile(source, filename, "exec")
        exec(code, self.names)  # noqa: S102  # our own text, made of our own declarations
        made: Callable[..., Any] = self.names[name]
        return made
