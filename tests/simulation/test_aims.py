"""What the aimed faults reach, on seeds that are known to."""

import pytest

from simulation.scenario import simulate
from simulation.share_faults import GIVEN_TWICE
from support.samples import one_in


@pytest.mark.parametrize(
    ("seed", "mark"),
    one_in(
        3,
        [
            (800016, "a damaged range is refused"),
            (800000, "an fsync ends after a truncation"),
            (4000006, GIVEN_TWICE),
            (3000013, "a former coordinator's marker is refused"),
            (4000028, "a former controller decides what a leader asks for"),
            (8000015, "a producer ends after an older client has had its id"),
            (800018, "a sequence has a gap"),
            (3000082, "a verification is taken back"),
            (12000044, "a fault strikes when share state is pruned"),
        ],
    ),
)
def test_an_aimed_fault_reaches_what_it_is_aimed_at(seed: int, mark: str):
    outcome = simulate(seed, 3)
    assert not outcome.violations, outcome.violations
    assert outcome.reached[mark]
