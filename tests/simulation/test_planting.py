"""A planted bug is wherever its function is, and gone afterwards."""

from headrace_broker.metadata.brokers import registration
from headrace_broker.server.api import allocate_producer_ids
from headrace_broker.server.quorum import controller
from simulation.mutants import MUTANTS

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
