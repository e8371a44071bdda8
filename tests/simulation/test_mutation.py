"""The mutator changes one thing at a time, and what it makes can be run."""

from simulation.mutation.sites import count_mutations, mutate

_SOURCE = '''
def least(a, b, *, log):
    """What a docstring says is not mutated: 1 < 2."""
    log.note(a)
    if a < b and not log.full:
        return min(a, b + 1)
    raise ValueError(b)
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
