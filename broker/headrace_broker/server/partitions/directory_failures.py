"""What follows when a log directory fails (KIP-112): what is in it goes offline, the rest goes on.

The controller hears of it in a heartbeat that goes out at once, and moves leaders to the replicas
of other brokers. Without the directory of the metadata log, or without any, the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.types import PartitionIndex

if TYPE_CHECKING:
    from headrace_broker.log.log_directories import LogDirectories
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

log = structlog.get_logger()


def take_offline(
    failure: LogDirectoryFailure,
    directories: LogDirectories,
    replicas: ReplicaManager,
    *,
    unload: Mapping[str, Callable[[PartitionIndex], None]],
    report: Callable[[list[UUID]], None],
) -> LogDirectoryFailure | None:
    """Give up the directory of a failure; return why the process has to end, None if it need not.

    What coordinators keep in a partition that is lost is unloaded, by `unload`'s topics; the failed
    directories' ids are reported.

    What was under way in a thread may fail after its directory: that is ignored.
    """
    directory = directories.owner(failure.path)
    if directory is None:
        return None if directories.is_failed(failure.path) else failure
    lost = replicas.directory_failed(directory)
    directories.fail(directory, failure.cause)
    log.critical(
        "log directory is offline",
        path=str(directory.path),
        partitions=len(lost),
        exc_info=failure,
    )
    for partition in lost:
        if partition.topic in unload:
            unload[partition.topic](partition.index)
    if directory is directories.metadata:
        reason = "it holds the metadata log, without which this node cannot go on"
        return LogDirectoryFailure(failure.path, f"{failure.cause}; {reason}")
    if not any(directories):
        reason = "it was the last one: all log directories have failed"
        return LogDirectoryFailure(failure.path, f"{failure.cause}; {reason}")
    report(directories.failed_ids)
    return None
