"""One replica of the metadata quorum, driven by single steps; its peers are what a test says."""

import random

from headrace_broker.protocol.messages.vote import (
    VoteResponse,
    VoteResponsePartitionData,
    VoteResponseTopicData,
)
from headrace_broker.raft import effects as fx
from headrace_broker.raft import events as ev
from headrace_broker.raft.node import RaftNode
from headrace_broker.raft.roles import Role
from headrace_broker.raft.types import METADATA_TOPIC, LogState, QuorumState
from support.raft_process import config_of


def node_of(
    node_id: int = 1, voters: int = 3, state: QuorumState | None = None, log: LogState | None = None
) -> RaftNode:
    made = RaftNode(
        config_of(node_id, voters),
        random.Random(1),
        state=state or QuorumState(),
        log=log or LogState(),
    )
    made.start(0)
    return made


def ask(node: RaftNode, request, version: int, now_ms: int = 1):
    """Return the answer to a request, and all effects of the step."""
    effects = node.step(ev.ReceivedRequest(7, request, version), now_ms)
    (reply,) = [e for e in effects if isinstance(e, fx.Reply) and e.ticket == 7]
    return reply.response, effects


def sent(effects) -> dict[int, fx.Send]:
    """Return the requests among effects, by whom they go to."""
    return {e.destination.node_id: e for e in effects if isinstance(e, fx.Send)}


def vote_answer(*, epoch: int, granted: bool) -> VoteResponse:
    partition = VoteResponsePartitionData(
        leader_id=-1, leader_epoch=epoch, vote_granted=granted, partition_index=0
    )
    topic = VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    return VoteResponse(topics=[topic])


def elect(node: RaftNode) -> tuple[list[fx.Effect], int]:
    """Let node 2 grant a pre-vote and a vote; return the last step's effects, and when it was."""
    now_ms = node.next_deadline_ms
    effects = node.step(ev.Tick(), now_ms)
    for epoch in (node.epoch, node.epoch + 1):
        answer = vote_answer(epoch=epoch, granted=True)
        effects = node.step(ev.ReceivedResponse(sent(effects)[2].correlation_id, answer), now_ms)
    assert node.role is Role.LEADER
    return effects, now_ms
