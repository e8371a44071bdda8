"""The page of lists is the code's, and what it counts is there."""

from simulation.lists import PAGE, page, violations
from simulation.marks import FREQUENT, MARKS
from simulation.mutants import FOUND_AT, KILLED_BY, MUTANTS


def test_the_page_is_that_of_the_code():
    assert PAGE.read_text() == page(), "run `make protocols`"


def test_the_page_names_what_invariants_and_workloads_report():
    found = violations()
    assert {"lost-write", "gap", "poll-skip", "nonmonotonic-poll"} <= set(found["history.py"])
    assert "leader-ahead" in found["invariants/decisions.py"]
    assert "hanging-transaction" in found["workloads/transactions.py"]


def test_every_rare_situation_must_be_reached():
    assert not [mark for mark, least in MARKS.items() if least < 1]
    assert set(FREQUENT) <= set(MARKS)


def test_every_seed_that_is_known_is_of_a_planted_bug():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert set(FOUND_AT) <= set(names)


def test_every_unit_test_that_kills_a_planted_bug_is_there():
    assert set(KILLED_BY) <= {mutant.name for mutant in MUTANTS}
    assert not set(KILLED_BY) & set(FOUND_AT)
    for where in KILLED_BY.values():
        path, _, name = where.partition("::")
        assert f"def {name}(" in (PAGE.parents[1] / path).read_text()
