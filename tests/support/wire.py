"""A raw Kafka client: frames by hand, messages through kio (an implementation we did not write).

Tests use it where a real client would hide what the broker answers.
"""

import io
import socket
import struct
from contextlib import suppress
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.serial import entity_reader, entity_writer

CLIENT_ID = "headrace-tests"


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def request_class(api_key: int, version: int) -> type[Any]:
    """Return kio's request class of an API at a version."""
    return load_request_schema(api_key, version)


def encode_request(request: Any, correlation_id: int, client_id: str | None = CLIENT_ID) -> bytes:
    """Return header and body of a kio request, without the frame's length."""
    header_class = request.__header_schema__
    header = header_class(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(header_class)(buffer, header)
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


def decode_response(request: Any, body: bytes) -> tuple[int, Any]:
    """Return correlation id and kio's response of a frame that answers `request`."""
    response_class = load_response_schema(request.__api_key__, request.__version__)
    header_class = response_class.__header_schema__
    header, header_size = entity_reader(header_class)(body, 0)
    response, body_size = entity_reader(response_class)(body, header_size)
    if header_size + body_size != len(body):
        raise ValueError(f"{len(body) - header_size - body_size} bytes follow the response")
    return header.correlation_id, response


class RawConnection:
    """One TCP connection to a broker; every call says exactly which bytes go out."""

    def __init__(self, address: str, timeout_seconds: float = 10) -> None:
        self.socket = socket.create_connection(split_address(address), timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a TCP reset instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(body)) + body)

    def send(self, request: Any) -> int:
        """Send a kio request and return its correlation id."""
        self._correlation_id += 1
        self.send_frame(encode_request(request, self._correlation_id))
        return self._correlation_id

    def receive_frame(self) -> bytes:
        """Return a frame's body; `ConnectionError` when the broker closed the connection."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def receive(self, request: Any) -> Any:
        """Return kio's response to `request`, which must be the oldest one not yet answered."""
        correlation_id, response = decode_response(request, self.receive_frame())
        self.last_correlation_id = correlation_id
        return response

    def call(self, request: Any) -> Any:
        correlation_id = self.send(request)
        response = self.receive(request)
        if self.last_correlation_id != correlation_id:
            raise ValueError(f"answered {self.last_correlation_id}, asked {correlation_id}")
        return response

    def is_closed_by_peer(self, timeout_seconds: float = 10) -> bool:
        """Whether the broker closes the connection without another byte."""
        self.socket.settimeout(timeout_seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def _receive_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionError(f"closed after {len(parts)} of {count} bytes")
            parts += part
        return bytes(parts)


def answers_api_versions(address: str) -> bool:
    """Whether a broker answers at all: the first request of every client."""
    with suppress(OSError, ValueError), RawConnection(address, timeout_seconds=2) as connection:
        return int(connection.call(ApiVersionsRequest()).error_code) == 0
    return False


def broker_ids(address: str) -> set[int]:
    """Return the ids of the brokers in the metadata that `address` answers; empty when it fails."""
    request = request_class(3, 4)(topics=(), allow_auto_topic_creation=False)
    with suppress(OSError, ValueError), RawConnection(address, timeout_seconds=2) as connection:
        return {int(broker.node_id) for broker in connection.call(request).brokers}
    return set()
