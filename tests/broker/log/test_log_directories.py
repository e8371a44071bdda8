"""All log directories of a process: identity, where replicas go, and what a failure leaves."""

import shutil
import uuid

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.log_directory import LogDirectory, LogDirectoryInUseError
from headrace_broker.log.meta_properties import MetaPropertiesError

UNASSIGNED = uuid.UUID(int=1)
CONFIG = LogConfig()


@pytest.fixture
def open_all(tmp_path, clock):
    opened = []

    def open_them(*names, metadata=None, cluster_id=""):
        paths = [tmp_path / name for name in names or ("a", "b", "c")]
        metadata_path = paths[0] if metadata is None else tmp_path / metadata
        found = LogDirectories.open(
            paths, metadata_path, node_id=1, cluster_id=cluster_id, clock=clock
        )
        opened.append(found)
        return found

    yield open_them
    for each in opened:
        for directory in each:
            directory.abandon()


def _create(directories, topic, index, assigned=UNASSIGNED, cordoned=()):
    directory = directories.place(topic, index, assigned, cordoned)
    directory.create(topic, index, CONFIG)
    return directory.path.name


def _obstruct(tmp_path, name):
    """Put a file where a directory should be: nothing can be opened below it, not even by root."""
    (tmp_path / name).write_text("no directory")


def test_all_are_of_one_cluster_and_each_has_an_id(open_all):
    directories = open_all()
    assert len({each.directory_id for each in directories}) == 3
    assert {each.cluster_id for each in directories} == {directories.cluster_id}


def test_a_new_directory_joins_the_cluster_of_the_others(open_all):
    first = open_all("a")
    cluster_id = first.cluster_id
    first.close(broker_epoch=1)
    again = open_all("new", "a")
    assert {each.cluster_id for each in again} == {cluster_id}


def test_a_new_partition_goes_where_there_are_fewest(open_all):
    directories = open_all()
    names = [_create(directories, "t", index) for index in range(6)]
    assert sorted(names) == ["a", "a", "b", "b", "c", "c"]


def test_a_cordoned_directory_gets_none_unless_all_are(open_all):
    directories = open_all()
    a, b, c = (str(path) for path in directories.paths)
    assert {_create(directories, "t", index, cordoned={a, c}) for index in range(4)} == {"b"}
    assert _create(directories, "u", 0, cordoned={a, b, c}) == "a"


def test_a_replica_stays_where_it_is_and_a_new_one_goes_where_it_is_assigned(open_all):
    directories = open_all()
    ids = {each.path.name: each.directory_id for each in directories}
    assert _create(directories, "t", 0, assigned=ids["c"]) == "c"
    assert _create(directories, "t", 0, assigned=ids["b"]) == "c"
    directories.close(broker_epoch=1)
    assert _create(open_all(), "t", 0) == "c"


def test_a_replica_may_be_in_the_directory_that_does_not_open(open_all, tmp_path):
    directories = open_all()
    lost = next(each.directory_id for each in directories if each.path.name == "b")
    directories.close(broker_epoch=1)
    shutil.rmtree(tmp_path / "b")
    _obstruct(tmp_path, "b")
    again = open_all()
    assert [each.path.name for each in again] == ["a", "c"]
    assert list(again.failed) == [tmp_path / "b"]
    assert again.place("t", 0, lost) is None
    assert again.place("t", 0, UNASSIGNED) is None, "it may be there, and nobody was told yet"
    assert again.place("t", 0, UNASSIGNED, is_new=True) is not None


def test_one_on_a_replaced_disk_is_recreated(open_all, tmp_path):
    directories = open_all()
    lost = next(each.directory_id for each in directories if each.path.name == "b")
    directories.close(broker_epoch=1)
    shutil.rmtree(tmp_path / "b")
    assert open_all().place("t", 0, lost) is not None


def test_the_shutdown_was_clean_only_if_every_directory_says_so(open_all, tmp_path):
    directories = open_all()
    directories.close(broker_epoch=7)
    again = open_all()
    assert again.previous_broker_epoch == 7
    again.close(broker_epoch=8)
    shutil.rmtree(tmp_path / "c")
    new = open_all()
    assert new.previous_broker_epoch == -1
    new.close(broker_epoch=9)
    shutil.rmtree(tmp_path / "b")
    _obstruct(tmp_path, "b")
    assert open_all().previous_broker_epoch == -1


def test_a_failed_directory_is_given_up_without_a_marker_and_the_others_are_closed(open_all, clock):
    directories = open_all()
    a, b, _ = list(directories)
    for directory in (a, b):
        directory.create("t", 0, CONFIG)
    path = b.path / "t-0" / "00000000000000000000.log"
    assert directories.owner(path) is b
    directories.fail(b, "gone")
    assert directories.owner(path) is None
    assert directories.is_failed(path)
    assert directories.failed_ids == [b.directory_id]
    b.checkpoint()
    directories.close(broker_epoch=1)
    assert (a.path / ".kafka_cleanshutdown").exists()
    assert not (b.path / ".kafka_cleanshutdown").exists()
    assert not (b.path / "recovery-point-offset-checkpoint").exists()
    LogDirectory.open(b.path, node_id=1, cluster_id="", clock=clock).abandon()


def test_the_metadata_logs_directory_has_to_open(open_all, tmp_path):
    _obstruct(tmp_path, "a")
    with pytest.raises(LogDirectoryFailure):
        open_all("a", "b")
    assert open_all("a", "b", metadata="b").failed


def test_one_directory_for_partitions_has_to_open(open_all, tmp_path):
    _obstruct(tmp_path, "a")
    with pytest.raises(LogDirectoryFailure, match=r"no directory of log\.dirs"):
        open_all("a", metadata="m")


def test_what_another_process_holds_or_was_copied_is_no_failed_disk(open_all, tmp_path, clock):
    held = LogDirectory.open(tmp_path / "b", node_id=1, cluster_id="", clock=clock)
    with pytest.raises(LogDirectoryInUseError):
        open_all("a", "b")
    held.abandon()
    open_all("a", "b").close(broker_epoch=1)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    with pytest.raises(MetaPropertiesError, match="copy of the other"):
        open_all("a", "copy")
    open_all("a", "b")
