"""How a follower's fetch names partitions."""

from __future__ import annotations

from typing import NamedTuple

from headrace_broker.protocol.messages import fetch
from headrace_broker.protocol.wire import uuid_of
from headrace_broker.replication.fetch_state import Position


class Key(NamedTuple):
    """A partition as fetches name it. The topic id's bytes hash many times faster than a UUID."""

    topic_id: bytes
    partition: int


def fetch_topics(dirty: list[tuple[Key, Position]], max_bytes: int) -> list[fetch.FetchTopic]:
    """Return the partitions that a request names, by topic."""
    topics: dict[bytes, fetch.FetchTopic] = {}
    for key, position in dirty:
        topic = topics.get(key.topic_id)
        if topic is None:
            topic = topics[key.topic_id] = fetch.FetchTopic(
                topic_id=uuid_of(key.topic_id), partitions=[]
            )
        topic.partitions.append(
            fetch.FetchPartition(
                partition=key.partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return list(topics.values())


def forgotten_topics(keys: list[Key]) -> list[fetch.ForgottenTopic]:
    """Return the partitions that a session drops, by topic."""
    topics: dict[bytes, fetch.ForgottenTopic] = {}
    for key in keys:
        topic = topics.setdefault(
            key.topic_id, fetch.ForgottenTopic(topic_id=uuid_of(key.topic_id), partitions=[])
        )
        topic.partitions.append(key.partition)
    return list(topics.values())
