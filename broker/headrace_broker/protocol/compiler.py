"""Compiles a message class in one version, at first use, to two straight-line Python functions.

A loop over declared fields would cost several calls per field for each message; the generated
functions have none for fixed-size fields and move neighbouring ones by one ``struct`` call.
"""

from collections.abc import Callable
from typing import Any, Final

from .decoder import DecoderEmitter
from .encoder import EncoderEmitter
from .errors import DecodeError, EncodeError
from .schema import Message

_Compiled = dict[tuple[type[Message], int], Callable[..., Any]]
_DECODERS: Final[_Compiled] = {}
_ENCODERS: Final[_Compiled] = {}


def compile_decoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """Return ``decode(buffer, position=0) -> (message, end position)``."""
    known = _DECODERS.get((cls, version))
    if known is None:
        if not cls.info.versions.holds(version):
            raise DecodeError(f"{cls.__name__} has no version {version}")
        known = _DECODERS[cls, version] = DecoderEmitter(cls, version).generate()
    return known


def compile_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """Return ``encode(message) -> parts``."""
    known = _ENCODERS.get((cls, version))
    if known is None:
        if not cls.info.versions.holds(version):
            raise EncodeError(f"{cls.__name__} has no version {version}")
        known = _ENCODERS[cls, version] = EncoderEmitter(cls, version).generate()
    return known
