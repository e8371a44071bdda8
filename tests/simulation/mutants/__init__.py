"""Bugs planted on purpose: a simulation that does not find them proves nothing.

A mutant patches the product while it is installed, and says in how many nodes, and within how many
seeds, it must be found.
"""

from simulation.mutants.catalogue import MUTANTS
from simulation.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]
