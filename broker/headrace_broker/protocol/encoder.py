"""Generates the function that encodes one message class in one version.

The bytes are collected in one bytearray; record batches are handed on between its pieces as they
are. A value that the version cannot carry is an error unless its field is ignorable.
"""

from collections.abc import Callable
from struct import error as struct_error
from struct import pack
from typing import Any

from .emitter import COMPACT_FORMAT, FORMATS, LENGTH_FORMATS, Emitter
from .errors import EncodeError
from .schema import Array, Field, Message, Nested, Records, String, Struct, Uuid, Wire
from .wire import varuint


class EncoderEmitter(Emitter):
    """Writes ``encode(m) -> parts``: o the bytearray being filled, parts what is complete."""

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(cls, version)
        self.names |= {
            "EncodeError": EncodeError,
            "UNWRITABLE": (struct_error, AttributeError, TypeError, OverflowError),
            "pack": pack,
            "varuint": varuint,
        }
        # The run of fixed-size values not yet written: (expression, struct code).
        self._run: list[tuple[str, str]] = []
        self._out = "o"

    def generate(self) -> Callable[..., Any]:
        """Write and compile the function."""
        label = f"{self.cls.__name__} v{self.version}"
        with self.block("def encode(m):"):
            self.line("parts = []")
            self.line("o = bytearray()")
            with self.block("try:"):
                self._struct(self.cls, "m")
                self._flush()
            with self.block("except UNWRITABLE as error:"):
                self.line(f"raise EncodeError(f'{label}: {{error}}') from error")
            with self.block("if o:"):
                self.line("parts.append(bytes(o))")
            self.line("return parts")
        return self.compile("encode")

    def _put(self, expression: str, code: str) -> None:
        self._run.append((expression, code))

    def _flush(self) -> None:
        """Write the run of fixed-size values in one go."""
        self._pack(self._run)
        self._run.clear()

    def _pack(self, run: list[tuple[str, str]]) -> None:
        if run:
            values = ", ".join(expression for expression, _ in run)
            packer = self.layout([code for _, code in run], "pack")
            self.line(f"{self._out} += {packer}({values})")

    def _struct(self, cls: type[Struct], source: str) -> None:
        """Write one struct; a run may stay open behind it."""
        plain, tagged, absent = self.fields(cls)
        for field in absent:
            if not field.ignorable:
                with self.block(f"if {self._differs(field, f'{source}.{field.name}')}:"):
                    message = f"{cls.__name__}.{field.name} is not in version {self.version}"
                    self.line(f"raise EncodeError('{message}')")
        for field in plain:
            self._field(field, f"{source}.{field.name}")
        if self.is_flexible:
            self._tagged(tagged, source)

    def _field(self, field: Field, source: str) -> None:
        if field.wire is Nested:
            self._nested(field, source)
        elif field.wire is Array:
            self._array(field, source)
        else:
            self._value(field, field.wire, source, is_nullable=self.is_nullable(field))

    def _value(self, field: Field, wire: type[Wire], source: str, *, is_nullable: bool) -> None:
        if wire is Uuid:
            self._put(f"{source}.int.to_bytes(16, 'big')", FORMATS[wire])
        elif wire in FORMATS:
            self._put(source, FORMATS[wire])
        else:
            value = self.fresh("v")
            self.line(f"{value} = {source}")
            if is_nullable:
                self._unless_null(field, wire, value, lambda: self._sized(field, wire, value))
            else:
                self._sized(field, wire, value)

    def _unless_null(
        self, field: Field, wire: type[Wire], value: str, write: Callable[[], None]
    ) -> None:
        """Write null's length, or else what ``write`` writes; both end the run."""
        null = ("0", COMPACT_FORMAT) if self.is_compact(field) else ("-1", LENGTH_FORMATS[wire])
        with self.block(f"if {value} is None:"):
            self._pack([*self._run, null])
        with self.block("else:"):
            write()
            self._flush()

    def _length(self, field: Field, wire: type[Wire], value: str) -> None:
        """Write a length or count, which ends the run."""
        if not self.is_compact(field):
            self._put(f"len({value})", LENGTH_FORMATS[wire])
            self._flush()
            return
        count = self.fresh("n")
        self.line(f"{count} = len({value}) + 1")
        with self.block(f"if {count} < 128:"):
            self._pack([*self._run, (count, COMPACT_FORMAT)])
        with self.block("else:"):
            self._flush()
            self.line(f"{self._out} += varuint({count})")

    def _sized(self, field: Field, wire: type[Wire], value: str) -> None:
        """Write a string, bytes or records behind their length."""
        if wire is String:
            self.line(f"{value} = {value}.encode()")
        self._length(field, wire, value)
        if wire is Records:
            self.line(f"parts.append(bytes({self._out}))")
            self.line(f"parts.append({value})")
            self.line(f"{self._out} = bytearray()")
        else:
            self.line(f"{self._out} += {value}")

    def _nested(self, field: Field, source: str) -> None:
        if field.nested is None:
            raise TypeError(f"{field.name} has no struct")
        inner = self.fresh("m")
        self.line(f"{inner} = {source}")
        if not self.is_nullable(field):
            self._struct(field.nested, inner)
            return
        # Kafka's generator marks a null struct by -1, but one in a tagged field by 0.
        null = "-1" if field.tag is None else "0"
        with self.block(f"if {inner} is None:"):
            self._pack([*self._run, (null, "b")])
        with self.block("else:"):
            self._put("1", "b")
            self._struct(field.nested, inner)
            self._flush()

    def _array(self, field: Field, source: str) -> None:
        value = self.fresh("v")
        self.line(f"{value} = {source}")
        if self.is_nullable(field):
            self._unless_null(field, Array, value, lambda: self._elements(field, value))
        else:
            self._elements(field, value)

    def _elements(self, field: Field, value: str) -> None:
        self._length(field, Array, value)
        code = FORMATS.get(field.element)
        if code is not None and field.element is not Uuid:
            self.line(f"{self._out} += pack(f'>{{len({value})}}{code}', *{value})")
            return
        element = self.fresh("m")
        with self.block(f"for {element} in {value}:"):
            if field.nested is not None:
                self._struct(field.nested, element)
            else:
                self._value(field, field.element, element, is_nullable=False)
            self._flush()

    def _tagged(self, tagged: list[Field], source: str) -> None:
        """Write a struct's tagged fields: those that differ from their defaults (KIP-482)."""
        if not tagged:
            self._put("0", COMPACT_FORMAT)
            return
        self._flush()
        count, section = self.fresh("k"), self.fresh("t")
        self.line(f"{count} = 0")
        for field in tagged:
            expression = f"{source}.{field.name}"
            with self.block(f"if {self._differs(field, expression)}:"):
                with self.block(f"if not {count}:"):
                    self.line(f"{section} = bytearray()")
                self.line(f"{count} += 1")
                body, outer = self.fresh("o"), self._out
                self.line(f"{body} = bytearray()")
                self._out = body
                self._field(field, expression)
                self._flush()
                self._out = outer
                self.line(f"{section} += varuint({field.tag})")
                self.line(f"{section} += varuint(len({body}))")
                self.line(f"{section} += {body}")
        with self.block(f"if {count}:"):
            self.line(f"{self._out} += varuint({count})")
            self.line(f"{self._out} += {section}")
        with self.block("else:"):
            self.line(f"{self._out}.append(0)")

    def _differs(self, field: Field, expression: str) -> str:
        """Write the condition that a value is not its field's default."""
        default = field.default
        if default is None:
            return f"{expression} is not None"
        if isinstance(default, Struct):
            inner = " or ".join(
                self._differs(each, f"{expression}.{each.name}")
                for each in self._fields_that_count(type(default))
            )
            if field.nullable.low <= field.nullable.high:
                return f"({expression} is None or {inner})"
            return f"({inner})"
        if isinstance(default, list):
            return f"({expression} is None or len({expression}) != 0)"
        if isinstance(default, bool):
            return f"not {expression}" if default else expression
        return f"{expression} != {self.literal(field)}"

    def _fields_that_count(self, cls: type[Struct]) -> list[Field]:
        plain, tagged, absent = self.fields(cls)
        return [*plain, *tagged] or absent
