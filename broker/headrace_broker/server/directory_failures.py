"""What follows when a log directory fails (KIP-112): what is in it goes offline, the rest goes on.

The controller hears of it in a heartbeat that goes out at once, and moves leaders to the replicas
of other brokers. Without the directory of the metadata log, or without any, the process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

log = structlog.get_logger()


def take_offline(broker: Broker, failure: LogDirectoryFailure) -> LogDirectoryFailure | None:
    """Give up the directory of a failure; return why the process has to end, None if it need not.

    What was under way in a thread may fail later than its directory: that is no news.
    """
    directories = broker.directories
    directory = directories.owner(failure.path)
    if directory is None:
        return None if directories.is_failed(failure.path) else failure
    lost = broker.replicas.directory_failed(directory)
    directories.fail(directory, failure.cause)
    log.critical(
        "log directory is offline",
        path=str(directory.path),
        partitions=len(lost),
        exc_info=failure,
    )
    for partition in lost:
        if partition.topic == GROUP_METADATA_TOPIC:
            broker.groups.unload(partition.index)
    if directory is directories.metadata:
        reason = "it holds the metadata log, without which this node cannot go on"
        return LogDirectoryFailure(failure.path, f"{failure.cause}; {reason}")
    if not any(directories):
        reason = "it was the last one: all log directories have failed"
        return LogDirectoryFailure(failure.path, f"{failure.cause}; {reason}")
    broker.lifecycle.report_failed_directories(directories.failed_ids)
    return None
