"""Which topics a group may have as its dead-letter topic, and who may say so."""

import pytest

from headrace_broker.metadata.configs.group_config import GroupRules
from headrace_broker.metadata.settings.setting_types import TopicNamePrefix
from headrace_broker.protocol.errors import ApiError, ErrorCode

NAME = "errors.deadletterqueue.topic.name"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
VALUES = {PREFIX: "dlq."}


@pytest.mark.parametrize("name", ["", "dlq.orders"])
def test_a_name_with_the_prefix_is_taken_and_an_empty_one_turns_it_off(name):
    GroupRules(VALUES).validate({NAME: name})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("orders", "must begin with 'dlq.' (errors.deadletterqueue.topic.name.prefix)"),
        ("__consumer_offsets", "the cluster's own"),
        ("dlq.a/b", "other than ASCII alphanumerics"),
        ("dlq." + "x" * 246, "longer than the max allowed length 249"),
    ],
)
def test_another_name_is_refused_and_says_why(name, says):
    with pytest.raises(ApiError) as error:
        GroupRules(VALUES).validate({NAME: name})
    assert error.value.code is ErrorCode.INVALID_CONFIG
    assert NAME in error.value.message
    assert says in error.value.message


def test_the_prefix_is_the_clusters():
    GroupRules({PREFIX: ""}).validate({NAME: "orders"})
    with pytest.raises(ApiError):
        GroupRules({PREFIX: ""}).validate({NAME: "__orders"})


@pytest.mark.parametrize("prefix", ["a b", "__", "x" * 201])
def test_no_topic_begins_with_a_bad_prefix(prefix):
    with pytest.raises(ValueError, match=r"topics|own"):
        TopicNamePrefix().check(prefix)
