"""Snapshots of the metadata on disk: Kafka's `<end offset>-<epoch>.checkpoint` files (KIP-630).

Owns the files' names, durability and completeness: a snapshot begins with a header record, ends
with a footer record, and is visible only when whole. The records in between are `metadata`'s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from headrace_broker.log.files import (
    as_a_whole,
    failing_the_directory,
    names_in,
    open_file,
    read_file,
    remove_quietly,
    rename_durably,
    sync_file,
)
from headrace_broker.protocol.batch import (
    ControlType,
    check_batch,
    iterate_batches,
    iterate_records,
    parse_batch_header,
    parse_control_type,
    patch_offset_and_epoch,
)
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.messages.records.snapshot_footer_record import SnapshotFooterRecord
from headrace_broker.protocol.messages.records.snapshot_header_record import SnapshotHeaderRecord
from headrace_broker.protocol.types import LeaderEpoch, Offset
from headrace_broker.raft.control import (
    ControlRecord,
    build_control_batch,
    kraft_version_record,
    voters_record,
)
from headrace_broker.raft.types import KRAFT_VERSION_DYNAMIC, OffsetAndEpoch, VotersAt

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_PART_SUFFIX = ".part"


class RaftSnapshots:
    """The snapshots in the folder of the metadata log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ids: list[OffsetAndEpoch] = []
        with failing_the_directory(directory):
            names = names_in(directory)
        for each in names:
            name = _NAME.fullmatch(each)
            if each.endswith(_PART_SUFFIX):
                remove_quietly(directory / each)
            elif name is not None:
                self.ids.append(OffsetAndEpoch(Offset(int(name[1])), LeaderEpoch(int(name[2]))))

    def path(self, snapshot_id: OffsetAndEpoch) -> Path:
        """Return where a snapshot is, or would be."""
        return self._directory / f"{snapshot_id.offset:020}-{snapshot_id.epoch:010}.checkpoint"

    def read(self, snapshot_id: OffsetAndEpoch) -> bytes:
        """Return a whole snapshot; raises LogDirectoryFailure."""
        with failing_the_directory(self._directory):
            return read_file(self.path(snapshot_id))

    def read_part(
        self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
    ) -> tuple[bytes, int]:
        """Return bytes from a position on, and the snapshot's size.

        Raises FileNotFoundError where it is gone, else LogDirectoryFailure, OutOfDescriptorsError.
        """
        path = self.path(snapshot_id)
        if not path.exists():
            raise FileNotFoundError(path)
        with failing_the_directory(path), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 <= position < size:
                return b"", size
            file.seek(position)
            return file.read(max_bytes), size

    def write(self, snapshot_id: OffsetAndEpoch, batches: Sequence[bytes | bytearray]) -> None:
        """Write a snapshot made by this node, durably.

        Raises LogDirectoryFailure; OutOfDescriptorsError, with nothing left of it.
        """
        with as_a_whole(self._directory):
            self.write_part(snapshot_id, 0, b"".join(batches))
            self._publish(snapshot_id)

    def write_part(
        self, snapshot_id: OffsetAndEpoch, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        """Write a piece of a leader's snapshot; position 0 starts over."""
        part, view = self._part(snapshot_id), memoryview(data)
        with failing_the_directory(part):
            fd = open_file(part, os.O_WRONLY | (0 if position else os.O_CREAT | os.O_TRUNC))
            try:
                while view:
                    written = os.pwrite(fd, view, position)
                    position, view = position + written, view[written:]
                os.ftruncate(fd, position)
            finally:
                os.close(fd)

    def install(self, snapshot_id: OffsetAndEpoch) -> bytes | None:
        """Make the fetched snapshot durable and return it; if it is not whole, discard it."""
        part = self._part(snapshot_id)
        with failing_the_directory(part):
            data = read_file(part)
        if not _is_whole(data):
            remove_quietly(part)
            return None
        self._publish(snapshot_id)
        return data

    def _part(self, snapshot_id: OffsetAndEpoch) -> Path:
        path = self.path(snapshot_id)
        return path.with_name(path.name + _PART_SUFFIX)

    def _publish(self, snapshot_id: OffsetAndEpoch) -> None:
        part = self._part(snapshot_id)
        sync_file(part)
        rename_durably(part, self.path(snapshot_id))
        if snapshot_id not in self.ids:
            self.ids = sorted([*self.ids, snapshot_id])

    def remove_before(self, offset: Offset) -> None:
        """Delete the snapshots that end below an offset."""
        for snapshot_id in [old for old in self.ids if old.offset < offset]:
            self.ids.remove(snapshot_id)
            remove_quietly(self.path(snapshot_id))


def build_snapshot(
    batches: Sequence[bytearray], control: VotersAt, timestamp_ms: int, end: OffsetAndEpoch
) -> list[bytearray]:
    """Return a snapshot's batches: header, the quorum's control state, the records, footer."""
    head = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp_ms)
    first: list[ControlRecord] = [(ControlType.SNAPSHOT_HEADER, head)]
    if control.kraft_version >= KRAFT_VERSION_DYNAMIC and control.offset >= 0:
        first += [kraft_version_record(control.kraft_version), voters_record(control.voters)]
    foot: list[ControlRecord] = [(ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord(version=0))]
    whole = [
        build_control_batch(first, timestamp_ms=timestamp_ms),
        *batches,
        build_control_batch(foot, timestamp_ms=timestamp_ms),
    ]
    # A snapshot numbers its own records from 0 (Kafka's RecordsSnapshotWriter).
    offset = Offset(0)
    for batch in whole:
        patch_offset_and_epoch(batch, offset, end.epoch)
        offset = Offset(offset + parse_batch_header(batch).last_offset_delta + 1)
    return whole


def _is_whole(data: bytes) -> bool:
    """Whether the checksums hold and the last batch is the footer."""
    last_kind = None
    end = 0
    try:
        for position, header in iterate_batches(data):
            check_batch(data, position)
            end = position + header.size_bytes
            last_kind = None
            if header.is_control:
                for record in iterate_records(data, position):
                    last_kind = parse_control_type(record.key)
    except DecodeError:
        return False
    return end == len(data) and last_kind == ControlType.SNAPSHOT_FOOTER
