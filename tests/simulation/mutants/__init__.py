"""Bugs planted on purpose: a simulation that does not find them proves nothing.

A mutant patches the product while it is installed, and says in how many nodes, and within how many
seeds, it must be found.
"""

from simulation.mutants.mutant import Mutant, find
from simulation.mutants.replication import REPLICATION_MUTANTS
from simulation.mutants.storage import STORAGE_MUTANTS

MUTANTS = (*STORAGE_MUTANTS, *REPLICATION_MUTANTS)

__all__ = ["MUTANTS", "Mutant", "find"]
