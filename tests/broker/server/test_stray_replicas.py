"""Which folders are strays of a broker that was down, and what becomes of them."""

import shutil

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.server.partitions.stray_replicas import set_strays_aside
from support.headrace_broker import HeadraceBroker
from support.log import ManualClock, append, batch_of
from support.metadata import creatable, create, image_with_brokers
from support.processes import wait_until

NODE, OTHER = 1, 2


@pytest.fixture
def directories(tmp_path):
    path = tmp_path / "data"
    opened = LogDirectories.open([path], path, node_id=NODE, cluster_id="", clock=ManualClock())
    yield opened
    for directory in opened:
        directory.abandon()


def fill(directories, topic, index, topic_id):
    """Leave a folder with a record, as the former process did."""
    (directory,) = directories
    log = directory.create(topic, index, LogConfig(), topic_id=topic_id)
    append(log, batch_of(b"v"))
    log.flush()
    log.abandon()
    del directory.logs[topic, index]


def folders(directories):
    (directory,) = directories
    return sorted(path.name for path in directory.path.iterdir() if path.is_dir())


def set_aside(directories, image, opened=()):
    failures = []
    set_strays_aside(directories, image, NODE, opened, failures.append)
    assert failures == []
    return folders(directories)


@pytest.fixture
def image():
    image = image_with_brokers(2)
    return create(
        image,
        creatable("moved", assignments=[[OTHER], [NODE]]),
        creatable("here", assignments=[[NODE, OTHER]]),
    )[0]


def test_what_was_moved_away_is_renamed_and_keeps_its_records(directories, image):
    for index in (0, 1):
        fill(directories, "moved", index, image.topics["moved"].topic_id)
    stray, kept = set_aside(directories, image)
    assert kept == "moved-1"
    assert stray.startswith("moved-0.")
    assert stray.endswith("-stray")
    (directory,) = directories
    assert (directory.path / stray / f"{0:020}.log").stat().st_size > 0
    directory.remove_deleted()
    assert folders(directories) == [stray, "moved-1"]


def test_what_was_deleted_is_renamed_whatever_bears_its_name_now(directories, image):
    deleted = image.topics["moved"].topic_id
    fill(directories, "here", 0, deleted)
    fill(directories, "gone", 3, image.topics["here"].topic_id)
    assert [name.rpartition("-")[2] for name in set_aside(directories, image)] == ["stray"] * 2


def test_what_is_open_and_what_nobody_can_tell_stay(directories, image):
    fill(directories, "unknown", 0, None)
    fill(directories, "here", 0, image.topics["here"].topic_id)
    (directory,) = directories
    directory.create("moved", 0, LogConfig(), topic_id=image.topics["moved"].topic_id)
    assert set_aside(directories, image) == ["here-0", "moved-0", "unknown-0"]


def test_a_second_folder_of_a_replica_that_is_open_in_another_directory_is_renamed(
    directories, image
):
    topic_id = image.topics["here"].topic_id
    fill(directories, "here", 0, topic_id)
    (stray,) = set_aside(directories, image, {(topic_id, 0)})
    assert stray.endswith("-stray")


def test_a_broker_sets_the_folder_of_a_deleted_topic_aside_when_it_starts(tmp_path):
    broker = HeadraceBroker(tmp_path)
    folder, kept = broker.log_directory / "t-0", tmp_path / "copy"
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1), NewTopic("u", 1, 1)])["t"].result(30)
        wait_until((folder / "partition.metadata").exists, what="the replica is not there yet")
        shutil.copytree(folder, kept)
        admin.delete_topics(["t"])["t"].result(30)
        wait_until(lambda: not folder.exists(), what="the replica is still there")
    shutil.copytree(kept, folder)
    with broker:
        wait_until(lambda: not folder.exists(), what="the stray keeps its name")
        (stray,) = broker.log_directory.glob("t-0.*-stray")
        assert (stray / "partition.metadata").exists()
        assert (broker.log_directory / "u-0").exists()
