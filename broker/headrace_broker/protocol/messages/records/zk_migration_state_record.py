"""ZkMigrationStateRecord, a metadata record (type 21).

How far a migration from ZooKeeper came, kept for old logs.
"""

from typing import Annotated

from headrace_broker.protocol.schema import Int8, Message, message


@message(api_key=21, versions="0", flexible="0+")
class ZkMigrationStateRecord(Message):
    """Says how far a migration from ZooKeeper came, kept for old logs."""

    zk_migration_state: Annotated[int, Int8("0+")] = 0
