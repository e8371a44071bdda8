import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.server.network.frames import (
    OWN_BUFFER_BYTES,
    buffer_bytes,
)

FRAME_MAX = 100 * 1024 * 1024


@given(st.integers(4, FRAME_MAX), st.integers(0, FRAME_MAX))
def test_a_frames_buffer_always_has_room_for_the_next_byte(needed: int, filled: int) -> None:
    assert buffer_bytes(needed, min(filled, needed)) > min(filled, needed) - (filled >= needed)


@pytest.mark.parametrize("needed", [100_000, 900_000, FRAME_MAX])
def test_an_announced_length_alone_takes_little_memory(needed: int) -> None:
    assert buffer_bytes(needed, 4) == OWN_BUFFER_BYTES


@given(st.integers(4, FRAME_MAX), st.integers(4, FRAME_MAX))
def test_a_buffer_is_at_most_eight_times_what_arrived(needed: int, filled: int) -> None:
    assert buffer_bytes(needed, filled) <= max(OWN_BUFFER_BYTES, 8 * filled)


def test_the_buffer_of_a_frame_of_one_mebibyte_grows_twice_at_most() -> None:
    sizes, filled = [], 4
    while filled < 1_000_000:
        filled = buffer_bytes(1_000_000, filled)
        sizes.append(filled)
    assert sizes == [65536, 262144, 1048576]


@pytest.mark.parametrize("needed", [4, 1000, OWN_BUFFER_BYTES])
def test_small_frames_share_one_size_so_that_buffers_are_pooled(needed: int) -> None:
    assert buffer_bytes(needed, 10) == OWN_BUFFER_BYTES


def test_a_long_frames_buffer_doubles_until_it_fits() -> None:
    sizes, filled = [], 4
    while filled < FRAME_MAX:
        filled = buffer_bytes(FRAME_MAX, filled)
        sizes.append(filled)
    assert sizes[-1] == FRAME_MAX
    assert len(sizes) <= 10
