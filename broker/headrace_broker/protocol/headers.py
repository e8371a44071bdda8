"""The headers of requests and responses.

A header's version follows from the API and its version: flexible versions have tagged fields in the
header too. The exception is the ApiVersions response, which never has them, because a client that
does not know the broker's versions yet must be able to read it (KIP-511).
"""

from struct import Struct as Layout
from typing import Annotated, Final

from .apis import API_TABLE, ApiKey
from .codec import Decoder, decoder, encoder
from .errors import DecodeError
from .schema import Int16, Int32, Message, String, message
from .types import Buffer, Part

_KEY_AND_VERSION: Final = Layout(">hh")
_SIZE: Final = Layout(">i")
_SIZE_AND_CORRELATION: Final = Layout(">ii")


@message(versions="0-2", flexible="2+")
class RequestHeader(Message):
    """The header of a request; only ControlledShutdown used version 0."""

    request_api_key: Annotated[int, Int16("0+")] = 0
    request_api_version: Annotated[int, Int16("0+")] = 0
    correlation_id: Annotated[int, Int32("0+")] = 0
    # Never compact: a broker must read it in an ApiVersions request of any version.
    client_id: Annotated[str | None, String("1+", nullable="1+", flexible="none")] = ""


@message(versions="0-1", flexible="1+")
class ResponseHeader(Message):
    """The header of a response."""

    correlation_id: Annotated[int, Int32("0+")] = 0


def request_header_version(api_key: ApiKey, api_version: int) -> int:
    """Return the version of a request's header."""
    return 2 if API_TABLE[api_key].is_flexible(api_version) else 1


def response_header_version(api_key: ApiKey, api_version: int) -> int:
    """Return the version of a response's header."""
    if api_key is ApiKey.API_VERSIONS:
        return 0
    return 1 if API_TABLE[api_key].is_flexible(api_version) else 0


def decode_request_header(buffer: Buffer, position: int = 0) -> tuple[RequestHeader, int]:
    """Decode the header of a frame without its size; return it and where the body starts.

    An unknown API is a DecodeError, because its header is unknown. A known API in an unknown
    version is not: the caller answers UNSUPPORTED_VERSION.
    """
    if len(buffer) - position < _KEY_AND_VERSION.size:
        raise DecodeError(f"a request of {len(buffer) - position} bytes has no header")
    key, version = _KEY_AND_VERSION.unpack_from(buffer, position)
    api = API_TABLE.get(key)
    if api is None:
        raise DecodeError(f"unknown API key {key}")
    decode = _DECODE_FLEXIBLE if api.is_flexible(version) else _DECODE_PLAIN
    return decode(buffer, position)


_DECODE_PLAIN: Final[Decoder[RequestHeader]] = decoder(RequestHeader, 1)
_DECODE_FLEXIBLE: Final[Decoder[RequestHeader]] = decoder(RequestHeader, 2)


def frame_response(
    api_key: ApiKey, api_version: int, correlation_id: int, response: Message
) -> list[Part]:
    """Encode a whole response frame, size and header included, as parts to write in order."""
    parts = encoder(type(response), api_version)(response)
    if response_header_version(api_key, api_version):
        head = _SIZE_AND_CORRELATION.pack(5 + sum(map(len, parts)), correlation_id) + b"\0"
    else:
        head = _SIZE_AND_CORRELATION.pack(4 + sum(map(len, parts)), correlation_id)
    # One part less to write: the body's first part is small unless it is the whole body.
    if parts and len(parts[0]) <= _JOIN_SIZE_MAX:
        parts[0] = head + parts[0]
    else:
        parts.insert(0, head)
    return parts


_JOIN_SIZE_MAX: Final = 4096
