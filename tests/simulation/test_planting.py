"""A planted bug is wherever its function is, and gone afterwards."""

from types import FunctionType

from headrace_broker.metadata.brokers import registration
from headrace_broker.server.api import allocate_producer_ids
from headrace_broker.server.quorum import controller
from simulation.mutants import MUTANTS
from simulation.mutants.mutant import _modules

_PLACES = (registration, controller, allocate_producer_ids)


def test_a_function_that_others_have_imported_is_planted_there_too():
    (mutant,) = (each for each in MUTANTS if each.name == "blocks of producer ids overlap")

    def functions():
        return {vars(place)["decide_allocate_producer_ids"] for place in _PLACES}

    before = functions()
    with mutant.installed():
        assert len(functions()) == 1
        assert functions() != before
    assert functions() == before


def test_no_table_keeps_a_function_that_a_planted_bug_replaces():
    """A table that was made by an import would go on with the sound function."""
    planted = {
        id(found): mutant.name
        for mutant in MUTANTS
        for owner, name, _ in ((mutant.owner, mutant.attribute, None), *mutant.also)
        if isinstance(found := vars(owner)[name], FunctionType)
    }
    tables = [
        value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, dict | list | tuple) and value is not vars(module)
    ]
    kept = {
        planted[id(each)]
        for table in tables
        for each in (table.values() if isinstance(table, dict) else table)
        if id(each) in planted
    }
    assert not kept
