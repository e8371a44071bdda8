"""Which log directory holds which replica: what the controller is told, and how often."""

import asyncio
import uuid

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from headrace_broker.server.partitions.directory_assignments import DirectoryAssignments

TOPIC, DIRECTORY, FORMER = uuid.UUID(int=1), uuid.UUID(int=100), uuid.UUID(int=101)


class Controller:
    """Answers each partition with the next of its codes; there must be one left."""

    def __init__(self, **codes):
        self.codes = {int(name[1:]): list(listed) for name, listed in codes.items()}
        self.asked = []

    async def to_controller(self, request, *, timeout_ms):
        assert timeout_ms > 0
        answered, indexes = [], []
        for directory in request.directories:
            for topic in directory.topics:
                partitions = []
                for each in topic.partitions:
                    indexes.append(each.partition_index)
                    partitions.append(
                        AssignReplicasToDirsResponsePartitionData(
                            partition_index=each.partition_index,
                            error_code=self.codes[each.partition_index].pop(0),
                        )
                    )
                topics = [
                    AssignReplicasToDirsResponseTopicData(
                        topic_id=topic.topic_id, partitions=partitions
                    )
                ]
                answered.append(
                    AssignReplicasToDirsResponseDirectoryData(id=directory.id, topics=topics)
                )
        self.asked.append(indexes)
        return AssignReplicasToDirsResponse(directories=answered)


@pytest.mark.parametrize(
    "final",
    [
        ErrorCode.NONE,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_what_the_controller_did_not_decide_is_said_again_and_nothing_else(final):
    async def scenario():
        controller = Controller(_0=[final], _1=[ErrorCode.UNKNOWN_SERVER_ERROR, final])
        assignments = DirectoryAssignments(1, controller, lambda: 5, pytest.fail)
        for index in (0, 1):
            assignments.note(TOPIC, index, FORMER, DIRECTORY)
        assignments.start()
        await asyncio.wait_for(asyncio.gather(assignments._sender), 30)
        assert controller.asked == [[0, 1], [1]]

    asyncio.run(scenario())


def test_what_the_metadata_says_already_is_not_said():
    async def scenario():
        controller = Controller(_0=[ErrorCode.NONE], _1=[])
        assignments = DirectoryAssignments(1, controller, lambda: 5, pytest.fail)
        assignments.note(TOPIC, 1, FORMER, DIRECTORY)
        assignments.note(TOPIC, 1, DIRECTORY, DIRECTORY)
        assignments.note(TOPIC, 0, FORMER, DIRECTORY)
        assignments.start()
        await asyncio.wait_for(asyncio.gather(assignments._sender), 30)
        assert controller.asked == [[0]]

    asyncio.run(scenario())
