"""A few of many cases for `make test`; the others are for `make test-all`."""

from collections.abc import Sequence

import pytest


def one_in(count: int, cases: Sequence[tuple[object, ...]]) -> list[object]:
    """Return the cases for `parametrize`: of each `count` all but the first are slow."""
    return [
        case if place % count == 0 else pytest.param(*case, marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
