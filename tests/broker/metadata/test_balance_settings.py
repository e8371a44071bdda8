"""How a plan's moves are cut into settings: a string of the protocol has 32767 bytes at most."""

import pytest

from headrace_broker.metadata.configs.balance_settings import (
    PlannedMove,
    plan_settings,
    read_moves,
)

PIECE_MAX = 30_000


def _moves(characters):
    """Moves whose texts, joined by `;`, have so many characters."""
    moves, left = [], characters
    while left > 0:
        # `…:0:1>2@0` has eight characters beside the topic's name, and `;` is before all but one.
        size = min(left, 150) if left < 150 or left >= 300 else left // 2
        name = "t" * (size - 8 - (1 if moves else 0))
        moves.append(PlannedMove(topic=name, partition=0, before=(1,), after=(2,)))
        left -= size
    return moves


def _pieces(moves):
    settings = plan_settings(moves)
    return [settings[f"headrace.balance.moves.{i}"] for i in range(len(settings) - 1)]


@pytest.mark.parametrize(
    ("characters", "pieces"), [(100, 1), (PIECE_MAX, 1), (PIECE_MAX + 1, 2), (PIECE_MAX - 1, 1)]
)
def test_pieces_are_as_long_as_they_may_be_and_no_longer(characters, pieces):
    moves = _moves(characters)
    made = _pieces(moves)
    assert len(";".join(made)) == characters
    assert len(made) == pieces
    assert max(map(len, made)) <= PIECE_MAX
    assert read_moves(plan_settings(moves)) == tuple(moves)


def test_a_plan_that_does_not_fit_is_refused():
    assert len(_pieces(_moves(64 * PIECE_MAX))) == 64
    with pytest.raises(ValueError, match="too long"):
        plan_settings(_moves(65 * PIECE_MAX))
