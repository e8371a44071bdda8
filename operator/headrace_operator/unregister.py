"""UnregisterBroker, a request that kafka-python does not have. Blocking.

Owns one connection for one request, which is sent only when a broker was removed for good. The
bytes are those of Kafka's UnregisterBrokerRequest version 0 with request header 2.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ask_first", "request_frame", "unregister_broker"]

API_KEY, API_VERSION, CORRELATION_ID = 64, 0, 1
CLIENT_ID = b"headrace-operator"
TIMEOUT_SECONDS = 10.0
# A refusal is a sentence; anything longer did not come from a broker.
RESPONSE_BYTES_MAX = 65_536


def unregister_broker(addresses: Sequence[tuple[str, int]], node_id: int) -> tuple[int, str]:
    """Ask the first broker that answers; it forwards the request to the controller.

    Returns the error code, 0 for success, and the broker's message. Raises
    `kafka.errors.KafkaConnectionError` if none answers.
    """
    return ask_first(addresses, encode_request(node_id))


def ask_first(addresses: Sequence[tuple[str, int]], frame: bytes) -> tuple[int, str]:
    """Send a request to the first broker that answers, and read an error code and a message.

    Raises `kafka.errors.KafkaConnectionError` if none answers.
    """
    from kafka.errors import KafkaConnectionError

    reason = "no broker is registered"
    for host, port in addresses:
        try:
            with socket.create_connection((host, port), timeout=TIMEOUT_SECONDS) as connection:
                connection.sendall(frame)
                return decode_response(_read_frame(connection))
        except (OSError, struct.error, IndexError) as error:
            reason = f"{host}:{port}: {error}"
    raise KafkaConnectionError(reason)


def encode_request(node_id: int) -> bytes:
    """Build the frame of UnregisterBroker: id, tags."""
    return request_frame(API_KEY, struct.pack(">i", node_id) + b"\0")


def request_frame(api_key: int, body: bytes) -> bytes:
    """Build a frame of version 0: size, header (key, version, correlation, client, tags), body."""
    header = struct.pack(">hhih", api_key, API_VERSION, CORRELATION_ID, len(CLIENT_ID))
    whole = header + CLIENT_ID + b"\0" + body
    return struct.pack(">i", len(whole)) + whole


def decode_response(frame: bytes) -> tuple[int, str]:
    """Read error code and message after the correlation id, tags and throttle time."""
    (code,) = struct.unpack_from(">h", frame, 9)
    # A compact string: its length plus one, as an unsigned varint; 0 is null.
    length, position, shift = 0, 11, 0
    while True:
        byte = frame[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has no high bit
            break
    return code, frame[position : position + max(0, length - 1)].decode(errors="replace")


def _read_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 0 < size <= RESPONSE_BYTES_MAX:
        raise OSError(f"a response of {size} bytes")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise OSError("the connection was closed")
        received += part
    return received
