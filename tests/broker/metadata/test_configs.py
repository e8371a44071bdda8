"""Changes and descriptions of configuration."""

import pytest

from headrace_broker.metadata.configs.alter_configs import (
    ConfigOperation,
    decide_alter_configs,
    decide_incremental_alter_configs,
)
from headrace_broker.metadata.configs.config_description import describe_configs
from headrace_broker.metadata.settings.broker_settings import BrokerSetting, BrokerSettings
from headrace_broker.metadata.settings.resources import (
    ConfigResourceType,
    ConfigSource,
    ConfigType,
    broker_resource,
    topic_resource,
)
from headrace_broker.metadata.settings.setting_types import ResetPolicy
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import alter_configs as legacy
from headrace_broker.protocol.messages import incremental_alter_configs as incremental
from headrace_broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace_broker.protocol.types import NodeId
from support.metadata import creatable, create, image_with_brokers, replayed

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
SECRET = "hidden"  # noqa: S105 - a made-up value that must not come back

SETTINGS = BrokerSettings(
    values={"group.consumer.max.session.timeout.ms": 60_000},
    node_id=NodeId(1),
    static={"num.partitions": "3", "log.retention.ms": "50", "sasl.jaas.config": SECRET},
    known={
        name: BrokerSetting(name=name, type=kind, default=default, doc="doc")
        for name, kind, default in [
            ("num.partitions", ConfigType.INT, 1),
            ("sasl.jaas.config", ConfigType.PASSWORD, None),
        ]
    },
)


@pytest.fixture
def image():
    return create(image_with_brokers(2), creatable("t", retention_ms="100"))[0]


def _alter(image, kind, name, *operations, validate_only=False):
    configs = [
        incremental.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in operations
    ]
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind, resource_name=name, configs=configs
            )
        ],
        validate_only=validate_only,
    )
    decision = decide_incremental_alter_configs(image, request, SETTINGS)
    (response,) = decision.response.responses
    return replayed(image, list(decision.records)), response


def _replace(image, kind, name, **configs):
    request = legacy.AlterConfigsRequest(
        resources=[
            legacy.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    legacy.AlterableConfig(name=key.replace("_", "."), value=value)
                    for key, value in configs.items()
                ],
            )
        ]
    )
    decision = decide_alter_configs(image, request, SETTINGS)
    return replayed(image, list(decision.records)), decision.response.responses[0]


def _describe(image, kind, name, keys=None, **flags):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        ],
        **flags,
    )
    (result,) = describe_configs(image, request, SETTINGS).results
    return result, {entry.name: entry for entry in result.configs}


@pytest.mark.parametrize("flags", [{}, {"include_synonyms": True, "include_documentation": True}])
def test_many_topics_are_described_as_each_of_them_alone(flags):
    topics = [creatable(name, retention_ms="100") for name in ("t", "same")]
    topics += [creatable(name) for name in ("other", "another")]
    image = create(image_with_brokers(2), *topics)[0]
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=keys)
        for keys in (None, ["retention.ms", "segment.ms"], [])
        for name in ("t", "same", "other", "another", "none", "a b")
    ]
    together = describe_configs(
        image, DescribeConfigsRequest(resources=resources, **flags), SETTINGS
    )
    alone = [
        describe_configs(image, DescribeConfigsRequest(resources=[each], **flags), SETTINGS)
        for each in resources
    ]
    assert together.results == [answer.results[0] for answer in alone]
    assert together.results[0].configs is together.results[1].configs


def test_settings_are_set_and_deleted_one_by_one(image):
    image, response = _alter(image, TOPIC, "t", ("segment.ms", SET, "7"))
    assert response.error_code == ErrorCode.NONE
    assert image.config(topic_resource("t")) == {"retention.ms": "100", "segment.ms": "7"}
    image, _ = _alter(image, TOPIC, "t", ("retention.ms", DELETE, None))
    assert image.config(topic_resource("t")) == {"segment.ms": "7"}


def test_a_list_is_appended_to_from_its_inherited_value_and_subtracted_from(image):
    image, _ = _alter(image, TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
    assert image.config(topic_resource("t"))["cleanup.policy"] == "delete,compact"
    image, _ = _alter(image, TOPIC, "t", ("cleanup.policy", APPEND, "compact"))
    assert image.config(topic_resource("t"))["cleanup.policy"] == "delete,compact"
    image, _ = _alter(image, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))
    assert image.config(topic_resource("t"))["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("kind", "name", "operation", "code", "says"),
    [
        (TOPIC, "none", ("retention.ms", SET, "1"), "UNKNOWN_TOPIC_OR_PARTITION", "none"),
        (TOPIC, "a b", ("retention.ms", SET, "1"), "INVALID_TOPIC_EXCEPTION", "a b"),
        (TOPIC, "t", ("no.such", SET, "1"), "INVALID_CONFIG", "no.such"),
        (TOPIC, "", ("retention.ms", SET, "1"), "INVALID_REQUEST", "Default topic"),
        (TOPIC, "t", ("retention.ms", SET, "x"), "INVALID_CONFIG", "retention.ms"),
        (TOPIC, "t", ("retention.ms", SET, None), "INVALID_REQUEST", "Null"),
        (TOPIC, "t", ("retention.ms", APPEND, "1"), "INVALID_CONFIG", "not LIST"),
        (TOPIC, "t", ("retention.ms", 9, "1"), "INVALID_REQUEST", "Unknown operation 9"),
        (BROKER, "x", ("log.retention.ms", SET, "1"), "INVALID_REQUEST", "'x'"),
        (BROKER, "9", ("log.retention.ms", SET, "1"), "INVALID_REQUEST", "9"),
        (BROKER, "1", ("num.partitions", SET, "1"), "INVALID_REQUEST", "dynamically"),
        (BROKER, "1", ("broker.id", SET, "1"), "INVALID_REQUEST", "dynamically"),
        (BROKER, "", ("request.timeout.ms", SET, "1"), "INVALID_REQUEST", "dynamically"),
        (BROKER, "1", ("queued.max.requests", SET, "1"), "INVALID_REQUEST", "dynamically"),
        (BROKER, "1", ("max.connections", SET, "0"), "INVALID_CONFIG", "max.connections"),
        (BROKER, "", ("log.retention.ms", SET, "-5"), "INVALID_CONFIG", "log.retention.ms"),
        (BROKER, "", ("log.cleanup.policy", APPEND, "x"), "INVALID_CONFIG", "cleanup"),
        (ConfigResourceType.BROKER_LOGGER, "1", ("a", SET, "1"), "INVALID_REQUEST", "LOGGER"),
        (ConfigResourceType.GROUP, "g", ("a", SET, "1"), "INVALID_CONFIG", "group config name: a"),
        (ConfigResourceType.GROUP, "", ("a", SET, "1"), "INVALID_REQUEST", "not allowed"),
        (
            ConfigResourceType.GROUP,
            "g",
            ("consumer.session.timeout.ms", SET, "60001"),
            "INVALID_CONFIG",
            "group.consumer.max.session.timeout.ms",
        ),
        (77, "g", ("a", SET, "1"), "INVALID_REQUEST", "77"),
    ],
)
def test_a_change_that_may_not_be_is_refused_with_its_reason(
    image, kind, name, operation, code, says
):
    after, response = _alter(image, kind, name, operation)
    assert response.error_code == ErrorCode[code]
    assert says in response.error_message
    assert after.configs == image.configs


@pytest.mark.parametrize(
    ("kind", "name", "setting"),
    [(TOPIC, "t", "no.such"), (BROKER, "1", "broker.id"), (ConfigResourceType.GROUP, "g", "no")],
)
def test_what_is_not_set_may_be_deleted(image, kind, name, setting):
    after, response = _alter(image, kind, name, (setting, DELETE, None))
    assert response.error_code == ErrorCode.NONE
    assert after.configs == image.configs


def test_a_policy_may_be_named_again(image):
    image, response = _alter(image, TOPIC, "t", ("cleanup.policy", SET, "delete,compact,delete"))
    assert response.error_code == ErrorCode.NONE
    assert image.config(topic_resource("t"))["cleanup.policy"] == "delete,compact,delete"


def test_a_setting_twice_in_one_resource_is_refused(image):
    _, response = _alter(image, TOPIC, "t", ("a", SET, "1"), ("a", SET, "2"))
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_a_resource_twice_in_one_request_is_refused(image):
    resource = legacy.AlterConfigsResource(resource_type=TOPIC, resource_name="t")
    request = legacy.AlterConfigsRequest(resources=[resource, resource])
    decision = decide_alter_configs(image, request, SETTINGS)
    codes = [response.error_code for response in decision.response.responses]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert decision.records == []


def test_validate_only_and_unchanged_values_write_nothing(image):
    after, _ = _alter(image, TOPIC, "t", ("segment.ms", SET, "7"), validate_only=True)
    assert after.configs == image.configs
    after, _ = _alter(image, TOPIC, "t", ("retention.ms", SET, "100"))
    assert after.offset == image.offset


def test_the_older_request_deletes_what_it_does_not_name(image):
    image, response = _replace(image, TOPIC, "t", segment_ms="7")
    assert response.error_code == ErrorCode.NONE
    assert image.config(topic_resource("t")) == {"segment.ms": "7"}
    image, _ = _replace(image, BROKER, "", log_retention_ms="9")
    assert image.config(broker_resource(None)) == {"log.retention.ms": "9"}
    image, _ = _replace(image, BROKER, "")
    assert image.config(broker_resource(None)) == {}


def test_a_topics_value_is_described_with_everything_that_it_hides(image):
    image, _ = _alter(image, BROKER, "", ("log.retention.ms", SET, "70"))
    image, _ = _alter(image, BROKER, "1", ("log.retention.ms", SET, "60"))
    _, entries = _describe(image, TOPIC, "t", include_synonyms=True)
    entry = entries["retention.ms"]
    assert (entry.value, entry.config_source) == ("100", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(item.name, item.value, item.source) for item in entry.synonyms] == [
        ("retention.ms", "100", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "60", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "70", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.ms", "50", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]


def test_a_groups_own_value_is_described_before_the_default(image):
    name = "share.auto.offset.reset"
    group = ConfigResourceType.GROUP
    _, entries = _describe(image, group, "g", [name])
    default = entries[name]
    assert list(entries) == [name]
    assert (default.value, default.config_source) == ("latest", ConfigSource.DEFAULT_CONFIG)
    image, _ = _alter(image, group, "g", (name, SET, "earliest"))
    _, entries = _describe(image, group, "g", include_synonyms=True)
    own = entries[name]
    assert (own.value, own.config_source) == ("earliest", ConfigSource.GROUP_CONFIG)
    assert [each.value for each in own.synonyms] == ["earliest", "latest"]


@pytest.mark.parametrize("duration", [f"P{'9' * 400}D", "PT1.2.3S", "PT.S", "P", "PT"])
def test_a_duration_that_is_none_is_refused(duration):
    with pytest.raises(ValueError, match=r"by_duration:PnDTnHnMn\.nS"):
        ResetPolicy().check(f"by_duration:{duration}")


def test_only_what_is_asked_for_is_described(image):
    _, entries = _describe(image, TOPIC, "t", ["segment.ms"])
    assert list(entries) == ["segment.ms"]
    entry = entries["segment.ms"]
    assert (entry.synonyms, entry.documentation, entry.config_type) == ([], None, ConfigType.LONG)
    _, entries = _describe(image, TOPIC, "t", ["segment.ms"], include_documentation=True)
    assert entries["segment.ms"].documentation
    assert len(_describe(image, TOPIC, "t")[1]) == 34


def test_a_secret_is_never_described(image):
    _, entries = _describe(image, BROKER, "1", include_synonyms=True)
    secret = entries["sasl.jaas.config"]
    assert secret.is_sensitive
    assert SECRET not in repr(secret)


def test_a_broker_says_what_a_restart_is_needed_for(image):
    _, entries = _describe(image, BROKER, "1")
    assert entries["num.partitions"].read_only
    assert entries["num.partitions"].value == "3"
    assert entries["num.partitions"].config_source == ConfigSource.STATIC_BROKER_CONFIG
    assert not entries["log.retention.ms"].read_only
    assert (entries["log.retention.hours"].value, entries["log.retention.minutes"].value) == (
        "168",
        None,
    )


def test_the_clusters_default_lists_only_what_is_set(image):
    assert _describe(image, BROKER, "")[1] == {}
    image, _ = _alter(image, BROKER, "", ("log.retention.ms", SET, "70"))
    _, entries = _describe(image, BROKER, "")
    assert list(entries) == ["log.retention.ms"]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "none", "UNKNOWN_TOPIC_OR_PARTITION"),
        (BROKER, "2", "INVALID_REQUEST"),
        (ConfigResourceType.CLIENT_METRICS, "c", "INVALID_REQUEST"),
    ],
)
def test_what_cannot_be_described_has_an_error(image, kind, name, code):
    result, entries = _describe(image, kind, name)
    assert result.error_code == ErrorCode[code]
    assert entries == {}


def test_a_groups_default_is_described_under_its_brokers_name_where_it_has_one(image):
    _, entries = _describe(image, ConfigResourceType.GROUP, "g", include_synonyms=True)
    names = {name: [each.name for each in entry.synonyms] for name, entry in entries.items()}
    assert names["consumer.session.timeout.ms"] == ["group.consumer.session.timeout.ms"]
    assert names["share.auto.offset.reset"] == ["share.auto.offset.reset"]


def test_a_brokers_list_is_appended_to_from_the_default_where_nothing_sets_it(image):
    image, _ = _alter(image, BROKER, "", ("log.cleanup.policy", APPEND, "compact"))
    assert image.config(broker_resource(None))["log.cleanup.policy"] == "delete,compact"
