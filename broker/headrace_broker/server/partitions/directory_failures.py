"""What happens when a log directory fails (KIP-112): its replicas go offline, all others stay up.

The next heartbeat, sent at once, reports the failure; the controller then moves leadership to
replicas on other brokers. If the metadata log's directory or the last directory fails, the process
exits.
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
    """Take a failed directory offline; return why the process must exit, None if it need not.

    `unload` maps each coordinator topic to the function that unloads one of its partitions; it is
    called for every partition lost. The ids of the failed directories go to `report`.

    Work that was running in a thread may fail after its directory did: such a failure is ignored.
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
