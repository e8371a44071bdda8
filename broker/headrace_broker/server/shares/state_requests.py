"""What the requests about share groups' state have in common: topics, and their partitions."""

from collections.abc import Awaitable, Callable
from typing import Any

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.errors import ApiError


async def answer_each(
    request: Any,
    results: list[Any],
    make: tuple[Callable[..., Any], Callable[..., Any]],
    act: Callable[[ShareKey, Any, Any], Awaitable[None]],
) -> None:
    """Append to `results` the outcome for each partition of a request, one after the other.

    `make` has the result types for a topic and a partition. `act` gets the partition's key, its
    data and the result to fill in; its ApiError concerns that partition alone.
    """
    make_topic, make_partition = make
    for topic in request.topics:
        result = make_topic(topic_id=topic.topic_id)
        results.append(result)
        for asked in topic.partitions:
            outcome = make_partition(partition=asked.partition)
            result.partitions.append(outcome)
            key = ShareKey(
                group_id=request.group_id, topic_id=topic.topic_id, partition=asked.partition
            )
            try:
                await act(key, asked, outcome)
            except ApiError as error:
                outcome.error_code, outcome.error_message = error.code, error.message
