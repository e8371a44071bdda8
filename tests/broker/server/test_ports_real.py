"""A real broker process whose ports are somebody else's."""

import socket

import pytest

from support.headrace_broker import HeadraceBroker
from support.processes import LOOPBACK, NotReadyError


@pytest.mark.parametrize("which", ["port", "controller_port", "http_port"])
def test_a_broker_whose_port_is_taken_says_which_and_is_a_member_of_nothing(tmp_path, which):
    broker = HeadraceBroker(tmp_path)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, getattr(broker, which)))
        taken.listen(1)
        with pytest.raises(NotReadyError):
            broker.start()
        told = (tmp_path / "broker.log").read_text()
        assert f"cannot listen on {LOOPBACK}:{getattr(broker, which)}: Address already" in told
        assert "broker registered" not in told
    with broker:
        assert broker.is_running
