"""Mutants of clients' requests: bits, lengths and counts change, frames are spliced.

A mutant is made by its number, the run's seed and the frames that were recorded, and by nothing
else: the three together are a replay.
"""

import asyncio
import json
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from support.wire import split_address

#: What a count or a length is likely to be believed as.
_API_KEY_BYTES = 2
_EXTREMES = [-1, 0, 1, 127, 128, 255, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), -2]
_HEADER_BYTES = 8  # API key, version, correlation id
_CONNECTIONS = 48
#: What waits longer than this waits for data or members: a long poll is no reason to wait.
_ANSWER_SECONDS = 0.15
_ANSWER_BYTES = 1 << 16


class Corpus:
    """The frames that clients sent, without the length before each, the same one only once."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        # A correlation id does not make a request another one.
        self.frames = list({frame[:4] + frame[8:]: frame for frame in frames}.values())

    @classmethod
    def read(cls, path: Path) -> "Corpus":
        return cls([bytes.fromhex(line) for line in json.loads(path.read_text())])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([frame.hex() for frame in self.frames]))

    def mutants(self, seed: int, numbers: range) -> Iterator[tuple[int, bytes]]:
        for number in numbers:
            yield number, self.mutant(seed, number)

    def mutant(self, seed: int, number: int) -> bytes:
        """Return one changed frame with the length that it announces."""
        rng = random.Random(f"{seed}/{number}")
        body = bytearray(rng.choice(self.frames))
        for _ in range(rng.choice([1, 1, 1, 1, 2, 4])):
            # What was cut to the API key has nothing left to change.
            if len(body) > _API_KEY_BYTES:
                rng.choice(_MUTATIONS)(rng, body, self.frames)
        length = len(body)
        if rng.random() < 0.03:
            length = rng.choice([*_EXTREMES, length - 1, length + 1, 2 * length])
        return struct.pack(">q", length)[4:] + bytes(body)


def _at(rng: random.Random, body: bytearray, size: int = 1) -> int:
    """Return a place after the API key: what a client never asks for is not its mutant."""
    return rng.randrange(_API_KEY_BYTES, max(_API_KEY_BYTES + 1, len(body) - size + 1))


def _flip(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    body[_at(rng, body)] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    body[_at(rng, body)] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _set_integer(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    size = rng.choice([2, 4, 8])
    at = _at(rng, body, size)
    value = rng.choice([*_EXTREMES, len(body), len(body) - at, rng.randrange(1000)])
    body[at : at + size] = struct.pack(">q", value)[-size:]


def _set_varint(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    long = [
        b"\xff\xff\xff\xff\x07",
        b"\xff\xff\xff\xff\x0f",
        b"\x80" * 10,
        b"\xff\x7f",
        b"\x80\x01",
    ]
    at = _at(rng, body)
    body[at : at + 1] = rng.choice(long)


def _cut(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, body)
    del body[at : at + rng.choice([1, 2, 4, 8, rng.randrange(1, len(body) + 1)])]


def _repeat(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, body)
    piece = bytes(body[at : at + rng.choice([1, 4, 16, 64, 256])])
    body[at:at] = piece * rng.choice([1, 1, 2, 8])


def _insert_noise(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    at = _at(rng, body)
    body[at:at] = rng.randbytes(rng.choice([1, 2, 4, 16]))


def _splice(rng: random.Random, body: bytearray, frames: Sequence[bytes]) -> None:
    """End as another request does."""
    other = rng.choice(frames)
    body[_at(rng, body) :] = other[rng.randrange(len(other)) :]


def _change_version(rng: random.Random, body: bytearray, _: Sequence[bytes]) -> None:
    body[2:4] = struct.pack(">h", rng.randrange(-1, 20))


def _change_api(rng: random.Random, body: bytearray, frames: Sequence[bytes]) -> None:
    """A body under another API's key and version; only what clients ask for."""
    body[:4] = rng.choice(frames)[:4]


_MUTATIONS = [
    *([_flip, _set_byte, _set_integer, _set_varint] * 2),
    *[_cut, _repeat, _insert_noise, _splice, _change_version, _change_api],
]


async def send_all(address: str, mutants: Iterator[tuple[int, bytes]]) -> dict[str, int]:
    """Send each on a connection of its own, many at a time; count how they ended."""
    host, port = split_address(address)
    outcomes = {"answered": 0, "closed": 0, "waiting": 0}

    async def send() -> None:
        for _, mutant in mutants:
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(mutant)
                answer = await asyncio.wait_for(reader.read(_ANSWER_BYTES), _ANSWER_SECONDS)
                outcomes["answered" if answer else "closed"] += 1
            except TimeoutError:
                outcomes["waiting"] += 1
            except ConnectionError:
                outcomes["closed"] += 1
            finally:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    await asyncio.gather(*(send() for _ in range(_CONNECTIONS)))
    return outcomes
