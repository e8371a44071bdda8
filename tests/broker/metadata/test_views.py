"""What clients of one listener are told of a leader that they cannot reach."""

from dataclasses import replace

import pytest

from headrace_broker.metadata.records import BrokerEndpoint
from headrace_broker.metadata.views import ClusterView
from headrace_broker.protocol.errors import ErrorCode
from support.metadata import broker_record, creatable, create, image_of


def _image():
    """Of three brokers one is fenced, and one is not on the listener EXTERNAL."""
    inside, outside, fenced = broker_record(1), broker_record(2), broker_record(3, fenced=True)
    for record in (outside, fenced):
        host = f"external{record.broker_id}"
        record.end_points.append(BrokerEndpoint(name="EXTERNAL", host=host, port=1))
    image = image_of(inside, outside, fenced)
    return create(image, creatable("t", assignments=[[1], [2]]))[0]


@pytest.mark.parametrize(
    ("listener", "index", "error"),
    [
        ("PLAINTEXT", 0, ErrorCode.NONE),
        ("PLAINTEXT", 1, ErrorCode.NONE),
        ("EXTERNAL", 0, ErrorCode.LISTENER_NOT_FOUND),
        ("EXTERNAL", 1, ErrorCode.NONE),
    ],
)
def test_a_leader_is_reached_where_it_has_the_clients_listener(listener, index, error):
    image = _image()
    partition = image.topics["t"].partitions[index]
    assert ClusterView(image, listener).partition_error(partition) == error


@pytest.mark.parametrize("leader", [-1, 3, 9])
def test_nobody_a_fenced_broker_and_an_unknown_one_are_no_leader_to_reach(leader):
    image = _image()
    partition = image.topics["t"].partitions[0]
    gone = replace(partition, leader=leader)
    assert ClusterView(image, "EXTERNAL").partition_error(gone) == ErrorCode.LEADER_NOT_AVAILABLE


def test_the_controller_that_clients_are_told_of_is_the_one_that_answers_if_it_may():
    view = ClusterView(_image(), "EXTERNAL")
    assert view.controller_id(2) == 2
    assert view.controller_id(3) == 2
