"""Connections to other nodes: against real listeners, and sockets that hang, lie or are gone."""

import asyncio
import contextlib
import itertools
import socket
import threading

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsResponse,
)
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.peers.peers import (
    Address,
    Lane,
    PeerConnections,
    PeerUnavailable,
    says_not_controller,
)
from support.waiting import until

LOOPBACK = "127.0.0.1"


class Book:
    """Addresses as the test sets them."""

    def __init__(self):
        self.brokers, self.voters, self.controller = {}, {}, None

    def broker_address(self, node_id):
        return self.brokers.get(node_id)

    def voter_address(self, node_id):
        return self.voters.get(node_id)

    def active_controller(self):
        return self.controller


@contextlib.asynccontextmanager
async def _peers(book=None):
    peers = PeerConnections(book or Book(), client_id="test", frame_bytes_max=1 << 20)
    try:
        yield peers
    finally:
        await peers.close()


@contextlib.asynccontextmanager
async def _broker(directory, node_id=1, port=0):
    failures = []
    broker = Broker(
        parse_config(
            f"node.id={node_id}\nlisteners=PLAINTEXT://{LOOPBACK}:{port}\nlog.dirs={directory}\n"
        ),
        on_failure=failures.append,
    )
    await broker.start()
    try:
        yield broker, Address(LOOPBACK, broker.listeners[0].port)
    finally:
        await broker.stop()
        assert not failures


@contextlib.asynccontextmanager
async def _silent_server():
    """A port that accepts and never answers, as a stopped process does."""
    writers = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), LOOPBACK, 0)
    try:
        yield Address(*server.sockets[0].getsockname())
    finally:
        server.close()
        for writer in writers:
            writer.close()


def test_requests_to_two_nodes_share_a_connection_each_and_find_their_answers(tmp_path):
    async def run():
        book = Book()
        async with (
            _broker(tmp_path / "1", 1) as (_, first),
            _broker(tmp_path / "2", 2) as (_, second),
            _peers(book) as peers,
        ):
            book.brokers = {NodeId(1): first, NodeId(2): second}
            names = [f"t{n}" for n in range(40)]
            answers = await asyncio.gather(
                *(
                    peers.send(
                        NodeId(1 + n % 2),
                        MetadataRequest(
                            topics=[MetadataRequestTopic(name=name)],
                            allow_auto_topic_creation=False,
                        ),
                    )
                    for n, name in enumerate(names)
                )
            )
            assert [answer.topics[0].name for answer in answers] == names
            assert [answer.brokers[0].node_id for answer in answers] == [1, 2] * 20
            assert len(peers._destinations) == 2

    asyncio.run(run())


def test_a_large_answer_comes_whole(tmp_path):
    async def run():
        async with _broker(tmp_path) as (_, address), _peers() as peers:
            names = [f"{n:05}" + "x" * 90 for n in range(5000)]
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
            answers = await asyncio.gather(*(peers.send(address, request) for _ in range(3)))
            for answer in answers:
                assert [topic.name for topic in answer.topics] == names

    asyncio.run(run())


def test_what_the_peer_does_not_serve_is_not_sent(tmp_path):
    async def run():
        async with _broker(tmp_path) as (_, address), _peers() as peers:
            with pytest.raises(PeerUnavailable, match="does not serve VOTE") as raised:
                await peers.send(address, VoteRequest())
            assert not raised.value.was_sent

    asyncio.run(run())


def test_a_peer_that_hangs_fails_by_the_time_out():
    async def run():
        async with _silent_server() as address, _peers() as peers:
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(PeerUnavailable):
                await peers.send(address, MetadataRequest(), timeout_ms=150)
            assert 0.1 < loop.time() - began < 1

    asyncio.run(run())


def test_a_process_that_dies_is_noticed_at_once_and_found_again_when_it_is_back(tmp_path):
    async def run():
        book, died = Book(), asyncio.Event()
        async with _peers(book) as peers:
            peers.on_process_died(lambda node_id: died.set() if node_id == 1 else None)
            async with _broker(tmp_path) as (_, address):
                book.brokers[NodeId(1)] = address
                peers.watch(NodeId(1))
                await peers.send(NodeId(1), MetadataRequest(topics=[]))
                await asyncio.sleep(0.05)
                assert not died.is_set()
            await asyncio.wait_for(died.wait(), 2)
            with pytest.raises(PeerUnavailable) as raised:
                await peers.send(NodeId(1), MetadataRequest(topics=[]))
            assert not raised.value.was_sent
            async with _broker(tmp_path) as (_, address):
                book.brokers[NodeId(1)] = address
                assert (await peers.send(NodeId(1), MetadataRequest(topics=[]))).brokers

    asyncio.run(run())


def test_a_process_that_is_back_is_not_broken_though_no_one_needs_its_other_lanes(tmp_path):
    async def run():
        book = Book()
        async with _peers(book) as peers:
            async with _broker(tmp_path) as (_, address):
                book.brokers[NodeId(1)] = address
                request = MetadataRequest(topics=[])
                await peers.send(NodeId(1), request, lane=Lane.FETCH)
                await peers.send(NodeId(1), request, lane=Lane.REQUEST)
                assert not peers.broken
            await until(lambda: peers.refusing == {1})
            assert peers.broken == {1}
            async with _broker(tmp_path, port=address.port):
                await peers.send(NodeId(1), request, lane=Lane.REQUEST)
                assert not peers.broken
                assert not peers.refusing

    asyncio.run(run())


def test_a_node_without_an_address_is_unavailable():
    async def run():
        async with _peers() as peers:
            with pytest.raises(PeerUnavailable, match="no address"):
                await peers.send(NodeId(7), MetadataRequest())
            with pytest.raises(PeerUnavailable, match="no active controller"):
                await peers.to_controller(MetadataRequest(), timeout_ms=50)

    asyncio.run(run())


def test_not_controller_is_seen_at_the_top_and_in_each_topic():
    refused = CreatableTopicResult(name="t", error_code=ErrorCode.NOT_CONTROLLER)
    made = CreatableTopicResult(name="t")
    assert says_not_controller(CreateTopicsResponse(topics=[refused]))
    assert not says_not_controller(CreateTopicsResponse(topics=[made]))
    assert not says_not_controller(CreateTopicsResponse(topics=[]))


class SlowNames:
    """What a name server that loses packets makes of `getaddrinfo`: lookups of such lengths."""

    def __init__(self, monkeypatch, *seconds):
        self._seconds = itertools.chain(seconds, itertools.repeat(60))
        self._real = socket.getaddrinfo
        self.ended = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host, port, *arguments, **named):
        if host != NAME:
            return self._real(host, port, *arguments, **named)
        self.ended.wait(next(self._seconds))
        return self._real(LOOPBACK, port, *arguments, **named)


NAME = "c-a-1.c-brokers.default.svc"


@pytest.mark.parametrize("seconds", [(3,), (60, 0)], ids=["it is slow", "it hangs once"])
def test_a_peer_is_reached_though_its_name_is_found_later_than_an_attempt_may_take(
    tmp_path, monkeypatch, seconds
):
    async def answer(peers, address):
        while True:
            with contextlib.suppress(PeerUnavailable):
                return await peers.send(address, MetadataRequest(topics=[]), timeout_ms=1000)
            await asyncio.sleep(0.1)

    async def run():
        names = SlowNames(monkeypatch, *seconds)
        async with _broker(tmp_path) as (_, address), _peers() as peers:
            found = await asyncio.wait_for(answer(peers, Address(NAME, address.port)), 50)
            names.ended.set()
        assert found.brokers

    asyncio.run(run())
