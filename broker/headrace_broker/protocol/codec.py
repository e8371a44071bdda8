"""Messages to bytes and back: the entry points of the compiled codec.

``decode`` and ``encode`` are for single messages; code that handles many of one kind keeps the
function that ``decoder`` or ``encoder`` returns.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from .compiler import compile_decoder, compile_encoder
from .schema import Message
from .types import Buffer, Part

MessageT = TypeVar("MessageT", bound=Message)
MessageT_co = TypeVar("MessageT_co", bound=Message, covariant=True)


class Decoder(Protocol[MessageT_co]):
    """A compiled decoder of one class and version."""

    def __call__(self, b: Buffer, p: int = 0, /) -> tuple[MessageT_co, int]:
        """Decode from a position on; raises DecodeError, and nothing else, on malformed bytes."""


def decoder(cls: type[MessageT], version: int) -> Decoder[MessageT]:
    """Return the compiled decoder; records fields are views of the buffer it is given."""
    return cast("Decoder[MessageT]", compile_decoder(cls, version))


def encoder(cls: type[MessageT], version: int) -> Callable[[MessageT], list[Part]]:
    """Return the compiled encoder; it returns records fields unchanged."""
    return cast("Callable[[MessageT], list[Part]]", compile_encoder(cls, version))


def decode(
    cls: type[MessageT], buffer: Buffer, version: int, position: int = 0
) -> tuple[MessageT, int]:
    """Decode one message; return it and the position behind it."""
    return decoder(cls, version)(buffer, position)


def encode(message: Message, version: int) -> list[Part]:
    """Encode one message as parts to be written one after another."""
    return encoder(type(message), version)(message)


def encode_bytes(message: Message, version: int) -> bytes:
    """Encode one message as one piece, which copies its records."""
    return b"".join(encode(message, version))
