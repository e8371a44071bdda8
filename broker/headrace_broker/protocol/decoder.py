"""Generates the function that decodes one message class in one version.

Every count and length is checked against what remains of the buffer before anything is allocated
(KAFKA-14063), so a small frame can never cost much memory.
"""

from collections.abc import Callable
from struct import calcsize, unpack_from
from struct import error as struct_error
from typing import Any

from .emitter import COMPACT_FORMAT, FORMATS, LENGTH_FORMATS, Emitter
from .errors import DecodeError
from .schema import Array, Bytes, Field, Message, Nested, Records, String, Struct, Uuid, Wire
from .wire import read_varuint_tail, skip_tagged, tagged_count, tagged_head, uuid_of


class DecoderEmitter(Emitter):
    """Writes ``decode(b, p=0) -> (message, p)``: b the buffer, p a position in it, e its end."""

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(cls, version)
        self.names |= {
            "DecodeError": DecodeError,
            "UNREADABLE": (struct_error, IndexError, UnicodeDecodeError),
            "new": object.__new__,
            "more": read_varuint_tail,
            "skip_tagged": skip_tagged,
            "tagged_count": tagged_count,
            "tagged_head": tagged_head,
            "unpack_from": unpack_from,
            "uuid_of": uuid_of,
        }
        # The run of fixed-size values not yet read: (target, struct code), and what follows it.
        self._run: list[tuple[str, str]] = []
        self._after: list[str] = []

    def generate(self) -> Callable[..., Any]:
        """Write and compile the function."""
        label = f"{self.cls.__name__} v{self.version}"
        with self.block("def decode(b, p=0):"):
            self.line("e = len(b)")
            if self.has_records(self.cls):
                self.line("view = memoryview(b)")
            with self.block("try:"):
                self._struct(self.cls, "m")
                self._flush()
            with self.block("except UNREADABLE as error:"):
                self.line(f"raise DecodeError(f'{label}: {{error}}') from error")
            self.line("return m, p")
        return self.compile("decode")

    def _take(self, target: str, code: str) -> None:
        self._run.append((target, code))

    def _flush(self) -> None:
        """Read the run of fixed-size values in one go."""
        if self._run:
            codes = [code for _, code in self._run]
            targets = ", ".join(target for target, _ in self._run)
            comma = "," if len(codes) == 1 else ""
            self.line(f"{targets}{comma} = {self.layout(codes, 'unpack_from')}(b, p)")
            self.line(f"p += {calcsize('>' + ''.join(codes))}")
            self._run.clear()
        for text in self._after:
            self.line(text)
        self._after.clear()

    def _struct(self, cls: type[Struct], target: str) -> None:
        """Write the reading of one struct into a new local; a run may stay open behind it."""
        plain, tagged, absent = self.fields(cls)
        self.line(f"{target} = new({self.constant(cls.__name__, cls)})")
        for field in (*absent, *tagged):
            self.line(f"{target}.{field.name} = {self.literal(field)}")
        for field in plain:
            self._field(field, f"{target}.{field.name}")
        if self.is_flexible:
            self._tagged(tagged, target)

    def _field(self, field: Field, target: str) -> None:
        if field.wire is Nested:
            self._nested(field, target)
        elif field.wire is Array:
            self._array(field, target)
        else:
            self._value(field, field.wire, target, is_nullable=self.is_nullable(field))

    def _value(self, field: Field, wire: type[Wire], target: str, *, is_nullable: bool) -> None:
        """Write the reading of a primitive."""
        if wire is Uuid:
            raw = self.fresh("u")
            self._take(raw, FORMATS[wire])
            self._after.append(f"{target} = uuid_of({raw})")
        elif wire in FORMATS:
            self._take(target, FORMATS[wire])
        else:
            count = self._length(field, wire)
            if is_nullable:
                with self.block(f"if {count} < 0:"):
                    self.line(f"{target} = None")
                with self.block("else:"):
                    self._slice(field, wire, target, count)
            else:
                self._slice(field, wire, target, count)

    def _length(self, field: Field, wire: type[Wire]) -> str:
        """Write the reading of a length or count; negative means null."""
        count = self.fresh("n")
        if self.is_compact(field):
            self._take(count, COMPACT_FORMAT)
            self._flush()
            with self.block(f"if {count} > 127:"):
                self.line(f"{count}, p = more(b, p, {count})")
            self.line(f"{count} -= 1")
        else:
            self._take(count, LENGTH_FORMATS[wire])
            self._flush()
        return count

    def _check(self, field: Field, count: str, size_min: int = 1) -> None:
        """Write the refusal of a count that what remains cannot hold."""
        size = count if size_min == 1 else f"{count} * {size_min}"
        what = f"{self.cls.__name__}.{field.name}"
        with self.block(f"if {count} < 0 or {size} > e - p:"):
            self.line(f"raise DecodeError(f'{what}: length {{{count}}} with {{e - p}} bytes left')")

    def _slice(self, field: Field, wire: type[Wire], target: str, count: str) -> None:
        self._check(field, count)
        if wire is String:
            self.line(f"{target} = str(b[p:p + {count}], 'utf-8')")
        elif wire is Bytes:
            self.line(f"{target} = bytes(b[p:p + {count}])")
        elif wire is Records:
            self.line(f"{target} = view[p:p + {count}]")
        self.line(f"p += {count}")

    def _nested(self, field: Field, target: str) -> None:
        if field.nested is None:
            raise TypeError(f"{field.name} has no struct")
        inner = self.fresh("m")
        if not self.is_nullable(field):
            self._struct(field.nested, inner)
            self._after.append(f"{target} = {inner}")
            return
        marker = self.fresh("n")
        self._take(marker, "b")
        self._flush()
        # Kafka's generator marks a null struct by -1, but one in a tagged field by 0.
        with self.block(f"if {marker} {'< 0' if field.tag is None else '<= 0'}:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self._struct(field.nested, inner)
            self._flush()
            self.line(f"{target} = {inner}")

    def _array(self, field: Field, target: str) -> None:
        count = self._length(field, Array)
        if self.is_nullable(field):
            with self.block(f"if {count} < 0:"):
                self.line(f"{target} = None")
            with self.block("else:"):
                self._elements(field, target, count)
        else:
            self._elements(field, target, count)

    def _elements(self, field: Field, target: str, count: str) -> None:
        # An element without any byte would make its count unbounded.
        size_min = max(1, self.value_size_min(field, field.element))
        self._check(field, count, size_min)
        code = FORMATS.get(field.element)
        if code is not None and field.element is not Uuid:
            self.line(f"{target} = list(unpack_from(f'>{{{count}}}{code}', b, p))")
            self.line(f"p += {count} * {size_min}")
            return
        items = self.fresh("items")
        element = self.fresh("m")
        self.line(f"{target} = {items} = []")
        with self.block(f"for _ in range({count}):"):
            if field.nested is not None:
                self._struct(field.nested, element)
            else:
                self._value(field, field.element, element, is_nullable=False)
            self._flush()
            self.line(f"{items}.append({element})")

    def _tagged(self, tagged: list[Field], target: str) -> None:
        """Write the reading of a struct's tagged fields, of which most structs carry none."""
        count = self.fresh("n")
        self._take(count, COMPACT_FORMAT)
        self._flush()
        with self.block(f"if {count}:"):
            if tagged:
                self._known_tags(tagged, target, count)
            else:
                self.line(f"p = skip_tagged(b, p, {count})")

    def _known_tags(self, tagged: list[Field], target: str, count: str) -> None:
        seen, tag, stop = self.fresh("seen"), self.fresh("tag"), self.fresh("stop")
        self.line(f"{count}, p = tagged_count(b, p, {count})")
        self.line(f"{seen} = set()")
        with self.block(f"for _ in range({count}):"):
            self.line(f"{tag}, p, {stop} = tagged_head(b, p, {seen})")
            branch = "if"
            for field in tagged:
                with self.block(f"{branch} {tag} == {field.tag}:"):
                    self._field(field, f"{target}.{field.name}")
                    self._flush()
                branch = "elif"
            with self.block("else:"):
                self.line(f"p = {stop}")
            with self.block(f"if p != {stop}:"):
                self.line(
                    f"raise DecodeError(f'{self.cls.__name__}: tag {{{tag}}} ends at {{p}}, "
                    f"not at {{{stop}}}')"
                )
