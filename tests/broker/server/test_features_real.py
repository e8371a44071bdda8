"""UpdateFeatures, as Kafka's own tool and a second client ask for it, against real brokers.

What is refused is refused in Kafka's words: they were written down from Apache Kafka 4.2.1.
"""

import pytest
from kafka import KafkaAdminClient
from kafka.admin import UpdateFeatureType
from kafka.errors import KafkaError

from support.headrace_cluster import HeadraceCluster
from support.kafka_peer import ToolFailedError, run_tool

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with HeadraceCluster(tmp_path_factory.mktemp("features")) as running:
        yield running


def features(cluster, *arguments):
    return run_tool("features", "--bootstrap-server", cluster.bootstrap, *arguments)


def described(cluster):
    """By feature: the lowest and highest level that is supported, and the finalized one."""
    rows = [line.split("\t") for line in features(cluster, "describe").splitlines()]
    return {
        row[0].removeprefix("Feature: "): tuple(each.split(": ")[1] for each in row[1:4])
        for row in rows
    }


def test_the_tool_shows_lowers_and_raises_levels_that_a_restart_keeps(cluster):
    assert described(cluster) == {
        "eligible.leader.replicas.version": ("0", "1", "1"),
        "group.version": ("0", "1", "1"),
        "kraft.version": ("0", "1", "1"),
        "metadata.version": ("3.3-IV3", "4.2-IV1", "4.2-IV1"),
        "share.version": ("0", "1", "1"),
        "transaction.version": ("0", "2", "2"),
    }
    assert "can be downgraded to 23" in features(
        cluster, "downgrade", "--metadata", "4.0-IV1", "--dry-run"
    )
    assert described(cluster)["metadata.version"][2] == "4.2-IV1"
    assert "was downgraded to 23" in features(cluster, "downgrade", "--metadata", "4.0-IV1")
    for node in cluster.nodes:
        node.kill()
    cluster.start()
    cluster.wait_complete()
    assert described(cluster)["metadata.version"][2] == "4.0-IV1"
    assert "was upgraded to 29" in features(cluster, "upgrade", "--metadata", "4.2-IV1")
    assert described(cluster)["metadata.version"][2] == "4.2-IV1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("downgrade", "--metadata", "4.0-IV0"),
            (
                "Unsupported metadata.version downgrade from 29 to 22. Refusing to perform the"
                " requested downgrade because it might delete metadata information."
            ),
        ),
        (
            ("downgrade", "--unsafe", "--metadata", "4.0-IV0"),
            (
                "Unsupported metadata.version downgrade from 29 to 22. Unsafe metadata downgrade is"
                " not supported in this version."
            ),
        ),
        (
            ("upgrade", "--feature", "metadata.version=40"),
            "only supports versions 7-29",
        ),
        (("upgrade", "--feature", "nope.version=1"), "does not support this feature."),
        (
            ("downgrade", "--feature", "kraft.version=0"),
            (
                "Invalid update version 0 for feature kraft.version. Can't downgrade the version of"
                " this feature."
            ),
        ),
        (
            ("upgrade", "--feature", "metadata.version=28"),
            (
                "Can't downgrade the version of this feature without setting the upgrade type to"
                " either safe or unsafe downgrade."
            ),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_kafkas_words(cluster, arguments, said):
    with pytest.raises(ToolFailedError) as refused:
        features(cluster, *arguments)
    assert said in str(refused.value)


def test_a_second_client_changes_features_and_reads_them_back(cluster):
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        before = admin.describe_features()["metadata.version"]
        lower = {"metadata.version": (UpdateFeatureType.SAFE_DOWNGRADE, 28)}
        assert admin.update_features(lower, validate_only=True) == {"metadata.version": "OK"}
        assert admin.describe_features()["metadata.version"]["finalized"] == (29, 29)
        assert admin.update_features(lower) == {"metadata.version": "OK"}
        found = admin.describe_features()["metadata.version"]
        assert (found["supported"], found["finalized"]) == ((7, 29), (28, 28))
        assert found["finalized_epoch"] > before["finalized_epoch"]
        with pytest.raises(KafkaError):
            admin.update_features({"metadata.version": 40})
        admin.update_features({"metadata.version": 29})
        assert admin.describe_features()["metadata.version"]["finalized"] == (29, 29)
    finally:
        admin.close()
