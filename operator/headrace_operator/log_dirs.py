"""Brokers' log directories, through kafka-python's admin client: their contents, and moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.plan.directories import Directory, DirectoryMove, Replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ask_moves", "describe_directories", "is_done"]


def describe_directories(admin: Any) -> list[Directory]:
    """Return every log directory of every broker that answers, by broker and path.

    Raises KafkaError.
    """
    found = []
    for answer in admin.describe_log_dirs():
        for each in answer["log_dirs"]:
            replicas = [
                Replica(
                    topic=topic["name"],
                    partition=held["partition_index"],
                    bytes=held["partition_size"],
                    is_future=held["is_future_key"],
                )
                for topic in each["topics"]
                for held in topic["partitions"]
            ]
            found.append(
                Directory(
                    broker=answer["broker"],
                    path=each["log_dir"],
                    is_online=each["error_code"] == 0,
                    free_bytes=each.get("usable_bytes", -1),
                    replicas=tuple(sorted(replicas)),
                )
            )
    return sorted(found, key=lambda each: (each.broker, each.path))


def ask_moves(admin: Any, moves: Iterable[DirectoryMove]) -> list[str]:
    """Have brokers start moves; return their refusals, one sentence each. Raises KafkaError."""
    from kafka.errors import NoError

    asked = {(each.topic, each.partition, each.broker): each.target for each in moves}
    answers = admin.alter_replica_log_dirs(asked)
    return [
        f"broker {replica.broker_id} does not move {replica.topic}-{replica.partition}: "
        f"{error.__name__}"
        for replica, error in sorted(answers.items(), key=lambda item: tuple(item[0]))
        if error is not NoError
    ]


def is_done(moves: Sequence[DirectoryMove], directories: Iterable[Directory]) -> bool:
    """Whether every replica is in its wanted directory, and only there."""
    places = {
        (each.broker, replica.topic, replica.partition, each.path, replica.is_future)
        for each in directories
        for replica in each.replicas
    }
    return all(
        (*_key(move), move.target, False) in places
        and (*_key(move), move.target, True) not in places
        for move in moves
    )


def _key(move: DirectoryMove) -> tuple[int, str, int]:
    return move.broker, move.topic, move.partition
