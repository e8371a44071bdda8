import pytest
from kafka.errors import KafkaConnectionError

from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from headrace_operator.unregister import decode_response, encode_request, unregister_broker
from support.processes import free_port

HEADER_BYTES = 4 + 8 + len("\0\0headrace-operator") + 1


def test_the_request_is_what_the_protocol_says() -> None:
    frame = encode_request(7)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert frame[4:12] == bytes([0, 64, 0, 0, 0, 0, 0, 1])
    request, end = decode(UnregisterBrokerRequest, frame, 0, HEADER_BYTES)
    assert request == UnregisterBrokerRequest(broker_id=7)
    assert end == len(frame)


@pytest.mark.parametrize("message", ["", "no such broker", "é" * 200])
def test_the_answer_is_read_as_the_protocol_says(message: str) -> None:
    answer = UnregisterBrokerResponse(error_code=102, error_message=message)
    assert decode_response(b"\0\0\0\1\0" + encode_bytes(answer, 0)) == (102, message)
    silent = UnregisterBrokerResponse(error_message=None)
    assert decode_response(b"\0\0\0\1\0" + encode_bytes(silent, 0)) == (0, "")


def test_where_no_broker_answers_the_address_is_named() -> None:
    port = free_port()
    with pytest.raises(KafkaConnectionError, match=str(port)):
        unregister_broker([("127.0.0.1", port)], 1)
