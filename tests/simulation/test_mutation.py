"""The mutator changes one thing at a time, and what it makes can be run, here or in a fork."""

import importlib.util
import time

from simulation.mutation.forks import forked
from simulation.mutation.planting import live_functions, mutated_codes, plant
from simulation.mutation.sites import count_mutations, mutate

_SOURCE = '''
def least(a, b, *, log):
    """What a docstring says is not mutated: 1 < 2."""
    log.note(a)
    if a < b and not log.full:
        return min(a, b + 1)
    raise ValueError(b)


def never_mutated(limit: int = 7, text: "tuple[1]" = ()):
    return limit
'''


def test_every_mutant_differs_from_the_source_in_one_place():
    made = [mutate(_SOURCE, number) for number in range(count_mutations(_SOURCE))]
    assert len({mutant.source for mutant in made}) == len(made)
    assert {mutant.what for mutant in made} == {
        "left out: log.note(a)",
        "left out: raise ValueError(b)",
        "the condition is turned: a < b and (not log.full)",
        "And becomes Or",
        "min becomes max",
        "Lt becomes LtE",
        "Add becomes Sub",
        "1 becomes 2",
    }
    for mutant in made:
        compile(mutant.source, "mutant", "exec")


class _Log:
    full = False

    def note(self, _text):
        """Keep nothing."""


def test_a_planted_mutant_reaches_who_imported_the_function(tmp_path):
    path = tmp_path / "mutated.py"
    path.write_text(_SOURCE)
    spec = importlib.util.spec_from_file_location("mutated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    least = module.least  # as `from mutated import least` has it
    made = [mutate(_SOURCE, number) for number in range(count_mutations(_SOURCE))]
    (mutant,) = (each for each in made if each.what == "min becomes max")

    def work(say) -> int:
        assert plant(mutated_codes(path, mutant), live_functions()) == 1
        say(str(least(1, 5, log=_Log())).encode())
        return 3

    assert forked(work, cpu_seconds=10) == (3, b"6")
    assert least(1, 5, log=_Log()) == 1, "the fork alone has it"


def test_a_fork_that_never_ends_is_ended():
    def work(_say) -> int:
        while time.monotonic():
            pass
        return 0

    assert forked(work, cpu_seconds=1)[0] < 0


def test_a_fork_that_waits_for_ever_is_ended():
    def work(_say) -> int:
        time.sleep(3600)
        return 0

    assert forked(work, cpu_seconds=10, wall_seconds=0.1)[0] < 0
