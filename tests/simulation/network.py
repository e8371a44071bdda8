"""A simulated network: byte streams between hosts, with every way to go wrong that TCP has.

Owns latency, how bytes are cut into reads, partitions in either direction, resets, half-open
connections after a power cut, and refusals where no process listens. The kernel of a host answers
for a process that is stopped (its connections are accepted, its bytes are buffered), and closes the
connections of one that died.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from simulation.loop import CURRENT, Process, SimulatedLoop

RECEIVE_BUFFER_BYTES = 65536
SYN_RETRY_SECONDS = (1.0, 3.0, 7.0, 15.0, 31.0)
RETRANSMIT_SECONDS = 0.2


class SimulatedSocket:
    """A bound address, as `socket.socket` would show it."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None:
        """Nothing to give back."""


class Server:
    """What `create_server` returns."""

    def __init__(self, network: "Network", address: tuple[str, int], backlog: int) -> None:
        self.network = network
        self.address = address
        self.backlog = backlog
        self.waiting = 0
        self.sockets = (SimulatedSocket(*address),)

    def close(self) -> None:
        self.network.unlisten(self)

    async def wait_closed(self) -> None:
        """Nothing to wait for."""

    def is_serving(self) -> bool:
        return self.network.servers.get(self.address, (None,))[0] is self


class Pipe:
    """One direction of a connection: what was written, and what has arrived."""

    def __init__(self, network: "Network", source: str, target: str) -> None:
        self.network = network
        self.source, self.target = source, target
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.arrived = bytearray()
        self.is_pumping = False
        self.stalled_until = 0.0
        """Lost packets, sent again and again: nothing of this connection arrives until then."""
        self.ends = False
        """The writer has closed: a FIN follows the bytes."""
        self.has_ended = False
        self.receiver: Transport
        self.sender: Transport

    def write(self, data: bytes) -> None:
        self.unsent.append(data)
        self.unsent_bytes += len(data)
        self.start()

    def start(self) -> None:
        """Send on, unless it is under way already."""
        if not self.is_pumping:
            self.is_pumping = True
            process = self.sender.process
            until = max(process.busy_until, self.stalled_until)
            stalled = max(0.0, until - self.network.loop.time())
            slow = self.network.slow.get(self.target, 0.0)
            self.network.after(self.network.latency() + stalled + slow, self._pump)

    def _pump(self) -> None:
        self.is_pumping = False
        network = self.network
        if self.stalled_until > network.loop.time():
            self.start()
            return
        if self.receiver.is_gone and not self.receiver.is_silent:
            self.receiver.reset_peer()
            return
        if self.has_ended or network.is_blocked(self.source, self.target):
            return  # healing starts it again: the sender's kernel retransmits
        if self.receiver.is_silent:
            return
        room = RECEIVE_BUFFER_BYTES - len(self.arrived)
        if self.unsent and room > 0:
            self._move(min(room, network.chunk()))
            network.loop.spawn(self.receiver.process, self.receiver.receive)
        if self.unsent:
            if room > 0:
                self.start()
        elif self.ends:
            self.has_ended = True
            network.loop.spawn(self.receiver.process, self.receiver.receive)
        self.sender.drained()

    def _move(self, size: int) -> None:
        while size > 0 and self.unsent:
            part = self.unsent[0]
            if len(part) <= size:
                self.unsent.popleft()
            else:
                self.unsent[0] = part[size:]
                part = part[:size]
            self.arrived += part
            self.unsent_bytes -= len(part)
            size -= len(part)


class Transport(asyncio.Transport):
    """One end of a connection, owned by one process."""

    def __init__(
        self, network: "Network", process: Process, local: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer, "sockname": local, "socket": None})
        self.network = network
        self.process = process
        self.protocol: Any = None
        self.peer: Transport
        self.outgoing: Pipe
        self.incoming: Pipe
        self.is_gone = False
        """The socket is closed here."""
        self.is_silent = False
        """The host is down: nobody answers, not even with a reset."""
        self._is_closing = False
        self._reads = True
        self._writes_paused = False
        self._high = 65536
        self._low = 16384
        self._saw_end = False

    # ---- asyncio.Transport

    def set_protocol(self, protocol) -> None:
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self) -> bool:
        return self._is_closing or self.is_gone

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            self.network.loop.spawn(self.process, self.receive)

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self.outgoing.unsent_bytes - RECEIVE_BUFFER_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def write(self, data) -> None:
        if self.is_closing() or self.process.is_dead or not data:
            return
        data = bytes(data)
        self.network.loop.note(f"write {self.network.number(self)}", data)
        self.outgoing.write(data)
        if self.get_write_buffer_size() > self._high and not self._writes_paused:
            self._writes_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.outgoing.ends = True
        self.outgoing.start()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self.outgoing.ends = True
        self.outgoing.start()
        self.network.loop.spawn(self.process, self.lose, None)

    def abort(self) -> None:
        if self.is_gone:
            return
        self._is_closing = True
        self.network.loop.spawn(self.process, self.lose, None)
        self.reset_peer()

    # ---- from the network

    def receive(self) -> None:
        """Give the protocol what has arrived."""
        if self.protocol is None:
            return  # not accepted yet; `_accept` looks again
        pipe = self.incoming
        while pipe.arrived and self._reads and not self.is_closing():
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer = self.protocol.get_buffer(-1)
                count = min(len(buffer), len(pipe.arrived))
                buffer[:count] = pipe.arrived[:count]
                del pipe.arrived[:count]
                self.protocol.buffer_updated(count)
            else:
                data = bytes(pipe.arrived)
                pipe.arrived.clear()
                self.protocol.data_received(data)
        if pipe.unsent:
            pipe.start()
        if pipe.has_ended and not pipe.arrived and not self._saw_end and not self.is_closing():
            self._saw_end = True
            if not self.protocol.eof_received():
                self.close()

    def drained(self) -> None:
        """Tell the protocol that it may write again."""
        if self._writes_paused and self.get_write_buffer_size() <= self._low:
            self._writes_paused = False
            if not self.is_gone:
                self.network.loop.spawn(self.process, self.protocol.resume_writing)

    def lose(self, error: Exception | None) -> None:
        """Tell the protocol that the connection is over."""
        if self.is_gone:
            return
        self.is_gone = True
        self._is_closing = True
        self.network.forget(self)
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def reset_peer(self) -> None:
        """Send a RST, which may be lost as any packet may."""
        pipe = self.outgoing
        if self.is_silent or pipe.has_ended:
            return
        pipe.has_ended = True
        self.network.after(self.network.latency(), self._deliver_reset)

    def _deliver_reset(self) -> None:
        peer = self.peer
        if peer.is_gone or self.network.is_blocked(self.outgoing.source, self.outgoing.target):
            return
        peer._is_closing = True
        error = ConnectionResetError("connection reset by peer")
        self.network.loop.spawn(peer.process, peer.lose, error)


class Network:
    """All hosts, links and connections."""

    def __init__(self, loop: SimulatedLoop, rng) -> None:
        self.loop = loop
        self.rng = rng
        self.servers: dict[tuple[str, int], tuple[Server, Process, Callable[[], Any]]] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.held: set[tuple[str, str]] = set()
        """Blocked for longer than others: `heal` leaves them, `let_go` does not."""
        self.down: set[str] = set()
        self.transports: dict[Transport, int] = {}
        self.latency_mean = 0.0003
        self.slow: dict[str, float] = {}
        """By host: how much longer than usual everything takes that goes there."""
        self._ports = itertools.count(40000)
        self._numbers = itertools.count(1)
        loop.network = self

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Have the network do something later, whoever asks."""
        self.loop.call_in(self.loop.kernel, delay, callback, *args)

    def number(self, transport: Transport) -> int:
        return self.transports.get(transport, 0)

    def latency(self) -> float:
        delay = 0.00005 + self.rng.expovariate(1 / self.latency_mean)
        if self.rng.random() < 0.002:
            delay += self.rng.uniform(0.01, 0.3)
        return delay

    def chunk(self) -> int:
        """How many bytes one read takes: mostly all, sometimes a few."""
        return self.rng.choice((65536, 65536, 65536, 16384, 1500, self.rng.randint(1, 300)))

    # ---- servers and connections

    def bind(self, host: str, port: int) -> SimulatedSocket:
        """Take an address for the current process's host, as `socket.bind` would."""
        process = CURRENT.get()
        if process is None:
            raise RuntimeError("only a simulated process can bind")
        if (process.host, port) in self.servers:
            raise OSError(98, f"address in use: {process.host}:{port}")
        return SimulatedSocket(host or process.host, port or next(self._ports))

    def listen(self, factory, host, port, *, sock=None, backlog: int = 100, **_options) -> Server:
        process = CURRENT.get()
        if process is None:
            raise RuntimeError("only a simulated process can listen")
        name = sock.getsockname() if sock is not None else (host, port or next(self._ports))
        address = (process.host, name[1])
        server = Server(self, address, backlog)
        self.servers[address] = (server, process, factory)
        process.on_end.append(server.close)
        return server

    def unlisten(self, server: Server) -> None:
        if self.servers.get(server.address, (None,))[0] is server:
            del self.servers[server.address]

    async def connect(self, factory, host: str, port: int):
        """As `loop.create_connection`: SYNs are sent again until somebody answers."""
        process = CURRENT.get()
        if process is None:
            raise RuntimeError("only a simulated process can connect")
        for wait in SYN_RETRY_SECONDS:
            await asyncio.sleep(self.latency())
            server, owner, make = self.servers.get((host, port), (None, None, None))
            answered = not (
                self.is_blocked(process.host, host)
                or self.is_blocked(host, process.host)
                or host in self.down
                or (server is not None and server.waiting >= server.backlog)
            )
            if answered:
                break
            await asyncio.sleep(wait)
        else:
            raise TimeoutError(110, f"connection to {host}:{port} timed out")
        if server is None or owner is None:
            await asyncio.sleep(self.latency())
            raise ConnectionRefusedError(111, f"connection to {host}:{port} refused")
        local = (process.host, next(self._ports))
        near = self._pair(process, owner, local, (host, port))
        server.waiting += 1
        self.loop.spawn(owner, self._accept, server, near.peer, make)
        await asyncio.sleep(self.latency())
        if near.is_gone:
            raise ConnectionResetError(104, f"connection to {host}:{port} reset")
        near.protocol = factory()
        near.protocol.connection_made(near)
        self.loop.spawn(process, near.receive)
        return near, near.protocol

    def _accept(self, server: Server, far: Transport, factory) -> None:
        server.waiting -= 1
        if far.is_gone or not server.is_serving():
            far.abort()
            return
        far.protocol = factory()
        far.protocol.connection_made(far)
        far.receive()

    def _pair(self, process: Process, owner: Process, local, remote) -> Transport:
        near = Transport(self, process, local, remote)
        far = Transport(self, owner, remote, local)
        near.peer, far.peer = far, near
        there = Pipe(self, process.host, owner.host)
        back = Pipe(self, owner.host, process.host)
        there.sender, there.receiver = near, far
        back.sender, back.receiver = far, near
        near.outgoing, near.incoming = there, back
        far.outgoing, far.incoming = back, there
        number = next(self._numbers)
        self.transports[near] = self.transports[far] = number
        for transport in (near, far):
            transport.process.on_end.append(transport_end(transport))
        return near

    def forget(self, transport: Transport) -> None:
        self.transports.pop(transport, None)

    # ---- faults

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self.blocked or (source, target) in self.held

    def block(self, source: str, target: str) -> None:
        """Drop every packet in one direction."""
        self.blocked.add((source, target))

    def heal(self) -> None:
        """Let everything through again; what was held back is sent again."""
        self.blocked.clear()
        self._send_again()

    def hold(self, source: str, target: str) -> None:
        """Drop every packet in one direction, whatever else is healed meanwhile."""
        self.held.add((source, target))

    def let_go(self) -> None:
        """End what `hold` began."""
        if self.held:
            self.held.clear()
            self._send_again()

    def _send_again(self) -> None:
        for transport in list(self.transports):
            pipe = transport.outgoing
            if pipe.unsent or pipe.ends:
                self.after(self.rng.uniform(0, RETRANSMIT_SECONDS), pipe.start)

    def power_off(self, host: str) -> None:
        """The host is gone without a word: its peers hear nothing until it is up again."""
        self.down.add(host)
        for transport in list(self.transports):
            if transport.process.host == host:
                transport.is_silent = True
                transport.is_gone = True
                self.transports.pop(transport)

    def power_on(self, host: str) -> None:
        """The host's kernel is up and answers packets of forgotten connections with resets."""
        self.down.discard(host)
        for transport in list(self.transports):
            peer = transport.peer
            if peer.process.host == host and peer.is_silent:
                peer.is_silent = False
                if transport.outgoing.unsent or transport.outgoing.ends:
                    transport.outgoing.start()

    def stall(self, host: str, seconds: float, share: float = 1.0) -> None:
        """Hold back what a host sends by connections it has now, even beyond its process's end."""
        for transport in list(self.transports):
            if transport.process.host == host and self.rng.random() < share:
                transport.outgoing.stalled_until = self.loop.time() + seconds

    def stall_answers(self, host: str, asker: str, seconds: float) -> bool:
        """Hold back what one host answers another, while what it asks the other goes through.

        Returns whether there is a connection for that.
        """
        found = False
        for transport in list(self.transports):
            port = transport.get_extra_info("sockname")[1]
            is_of_both = transport.process.host == host and transport.peer.process.host == asker
            if is_of_both and (host, port) in self.servers:
                transport.outgoing.stalled_until = self.loop.time() + seconds
                found = True
        return found

    def reset_some(self, host: str) -> None:
        """Reset connections of a host, as a middle box would."""
        for transport in list(self.transports):
            if transport.process.host == host and self.rng.random() < 0.5:
                for end in (transport, transport.peer):
                    self.loop.spawn(end.process, end.lose, ConnectionResetError("reset"))


def transport_end(transport: Transport) -> Callable[[], None]:
    """What a kernel does with a socket whose process died: FIN, or RST where bytes are unread."""

    def end() -> None:
        if transport.is_gone:
            return
        transport.is_gone = True
        transport.network.forget(transport)
        if transport.incoming.arrived or transport.incoming.unsent:
            transport.reset_peer()
        else:
            transport.outgoing.ends = True
            transport.outgoing.start()

    return end
