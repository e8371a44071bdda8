"""Checkpoint files: what was written is read, and no part of it is taken for the whole."""

import pytest

from headrace_broker.log.checkpoints import read_checkpoint, write_checkpoint
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.files import LogDirectoryFailure


def read(path):
    return read_checkpoint(path, lambda words: (int(words[0]), int(words[1])))


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    assert read(path) is None
    for entries in ([], [(0, 0)], [(0, 0), (2, 134)]):
        write_checkpoint(path, (f"{epoch} {start}" for epoch, start in entries))
        assert read(path) == entries


def test_a_file_that_was_torn_anywhere_is_damaged(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    write_checkpoint(path, ["0 0", "2 134"])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read(path) is None, whole[:length]
    for kept in range(len(whole)):
        # A file system may keep the length and lose the bytes.
        path.write_bytes(whole[:kept].ljust(len(whole), b"\0"))
        assert read(path) is None, kept


def test_a_file_with_any_byte_changed_is_damaged(tmp_path):
    # A power cut changed a digit of a file that was written without an fsync, and a start believed
    # it (seed 8000635).
    path = tmp_path / "leader-epoch-checkpoint"
    write_checkpoint(path, ["0 0", "32 114"])
    whole = path.read_bytes()
    for position in range(len(whole)):
        for changed in {*b"0123456789 \n", whole[position] ^ 1} - {whole[position]}:
            path.write_bytes(whole[:position] + bytes([changed]) + whole[position + 1 :])
            assert read(path) is None, path.read_bytes()


def test_a_file_of_the_former_version_is_read(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n2 134\n")  # Kafka's format, without a checksum
    assert read(path) == [(0, 0), (2, 134)]


def test_a_file_that_cannot_be_read_fails_its_directory(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    path.symlink_to("/proc/self/mem")  # a read at position 0 fails with EIO
    with pytest.raises(LogDirectoryFailure, match="Input/output"):
        read(path)


def test_a_missing_file_of_epochs_is_made_again_as_a_whole(tmp_path):
    cache = LeaderEpochCache(tmp_path, lambda: 3)

    def batches():
        for number in range(3):
            assert not cache.path.exists()  # a part of it would pass for the whole
            yield number, number

    cache.recover(0, batches())
    assert LeaderEpochCache(tmp_path, lambda: 3).entries == [(0, 0), (1, 1), (2, 2)]


@pytest.fixture
def three_epochs(tmp_path):
    """A cache whose file has epochs 0, 1 and 2 of a record each."""
    cache = LeaderEpochCache(tmp_path, lambda: 3)
    for number in range(3):
        cache.assign(number, number)
    return cache


def test_recovered_epochs_replace_what_was_noted_as_a_whole(tmp_path, three_epochs):
    cache = three_epochs
    noted = cache.path.read_bytes()

    def batches():
        for epoch, base_offset in ((1, 1), (1, 2), (4, 4)):
            assert cache.path.read_bytes() == noted
            yield epoch, base_offset

    cache.recover(1, batches())
    assert LeaderEpochCache(tmp_path, lambda: 5).entries == [(0, 0), (1, 1), (4, 4)]


def test_recovery_keeps_an_epoch_that_compaction_left_no_batch_of(tmp_path, three_epochs):
    three_epochs.recover(0, [(2, 3)])
    again = LeaderEpochCache(tmp_path, lambda: 4)
    assert again.entries == [(0, 0), (1, 1), (2, 2)]
    assert again.end_offset_for(1) == (1, 2)


def test_recovery_that_finds_what_is_noted_writes_nothing(three_epochs):
    inode = three_epochs.path.stat().st_ino
    three_epochs.recover(0, [(0, 0), (0, 0), (1, 1), (2, 2)])
    assert three_epochs.path.stat().st_ino == inode
